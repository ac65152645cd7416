"""Which prompts must be read for which documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lm_eval_semsoft.engine.plan import Prompt, Tokens
from lm_eval_semsoft.engine.readout import Readout

from .pairs import Document


@dataclass(frozen=True)
class Part:
    """A prompt of a document and the continuations that are scored after it."""

    prompt: Prompt
    labels: tuple[str, ...]


class Work:
    """Which distinct prompts must be read, and which documents wait for them.

    Attributes:
        documents: [D].
        parts: [D] each document's parts.
        prompts: distinct prompts.
        users: prompt -> documents that wait for it.
    """

    def __init__(self, documents: Sequence[Document], parts: Sequence[list[Part]]) -> None:
        self.documents = documents
        self.parts = parts
        places: dict[tuple[Tokens, tuple[Tokens, ...]], int] = {}
        self.prompts: list[Prompt] = []
        self.users: list[list[int]] = []
        self._needs: list[list[int]] = []
        self._got: dict[int, Readout] = {}
        for document, own in enumerate(parts):
            needs = []
            for part in own:
                key = (part.prompt.tokens, part.prompt.labels)
                if key not in places:
                    places[key] = len(self.prompts)
                    self.prompts.append(part.prompt)
                    self.users.append([])
                self.users[places[key]].append(document)
                needs.append(places[key])
            self._needs.append(needs)

    def deliver(self, index: int, readout: Readout) -> list[int]:
        """Note a readout; return the documents that are now complete."""
        self._got[index] = readout
        return [d for d in self.users[index] if all(n in self._got for n in self._needs[d])]

    def take(self, document: int) -> list[Readout]:
        return [self._got[n] for n in self._needs[document]]
