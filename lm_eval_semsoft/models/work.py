"""Which prompts must be read for which documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lm_eval_semsoft.engine.plan import Prompt, Tokens
from lm_eval_semsoft.engine.readout import Readout

from .label_scores import Votes
from .pairs import Document


@dataclass(frozen=True)
class Part:
    """A prompt of a document and the continuations that are scored after it."""

    prompt: Prompt
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A document, its prompts, and who votes for its labels (None: nobody, identity kernel).

    There is one part, or one per label length where the context must be cut to make room.
    """

    document: Document
    parts: tuple[Part, ...]
    votes: Votes | None


class Work:
    """Distinct prompts, and the jobs that wait for them.

    Attributes:
        prompts: each distinct prompt once.
        users: prompt -> jobs that need it.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        places: dict[tuple[Tokens, tuple[Tokens, ...]], int] = {}
        self.prompts: list[Prompt] = []
        self.users: list[list[Job]] = []
        self._readouts: dict[int, Readout] = {}
        self._needs: dict[int, list[int]] = {}
        for job in jobs:
            needs = self._needs[id(job)] = []
            for part in job.parts:
                key = (part.prompt.tokens, part.prompt.labels)
                if key not in places:
                    places[key] = len(self.prompts)
                    self.prompts.append(part.prompt)
                    self.users.append([])
                self.users[places[key]].append(job)
                needs.append(places[key])

    def deliver(self, index: int, readout: Readout) -> Iterator[tuple[Job, list[Readout]]]:
        """Note a prompt's readout; yield the jobs that are now complete, with all of theirs."""
        self._readouts[index] = readout
        for job in self.users[index]:
            needs = self._needs[id(job)]
            if all(n in self._readouts for n in needs):
                yield job, [self._readouts[n] for n in needs]
