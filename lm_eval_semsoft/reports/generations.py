"""Generated answers of a readouts directory, task by task.

for generations in load_generations("readouts/gemma"):
    generations.texts, generations.traces
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_semsoft.engine import store
from lm_eval_semsoft.engine.records import StoredDocument
from lm_eval_semsoft.engine.trace import Trace

from .readings import Source, keys_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Generations:
    """The answers of one task of one directory, n documents.

    Attributes:
        source: the directory.
        task: the task's name.
        keys: [n] the documents' own ids, or their numbers; all different.
        docs: [n] the task's documents.
        texts: [n] the answers.
        traces: [n] what the tokens of each tell.
        missing: documents of the run that have no answer yet.
    """

    source: Source
    task: str
    keys: tuple[str, ...]
    docs: tuple[dict[str, Any], ...]
    texts: tuple[str, ...]
    traces: tuple[Trace, ...]
    missing: int = 0

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.source.folder.resolve().name

    @property
    def n(self) -> int:
        return len(self.keys)


def load_generations(folder: str | Path) -> list[Generations]:
    """Every task of a directory whose answers were generated; there may be none.

    Raises:
        FileNotFoundError, engine.parts.ForeignReadouts: as `Source.open`.
    """
    source = Source.open(folder)
    return generations_of(source, store.read_documents(source.folder))


def generations_of(source: Source, stored: Sequence[StoredDocument]) -> list[Generations]:
    """`load_generations` from documents that have been read."""
    tasks: dict[str, list[StoredDocument]] = {}
    for document in stored:
        if not document.labels:
            tasks.setdefault(document.task, []).append(document)
    if not tasks:
        return []
    answers = {
        key: (answer.text, answer.trace)
        for key, answer in store.read_answers(source.folder).items()
        if answer.trace is not None  # not a sample
    }
    found = []
    for task, documents in tasks.items():
        here = [d for d in documents if d.prompts[0] in answers]
        if missing := len(documents) - len(here):
            logger.warning(
                "%s: %d of %d documents of %s have no answer yet; run the evaluation again on "
                "this directory to complete it.",
                source.folder,
                missing,
                len(documents),
                task,
            )
        docs = tuple(json.loads(d.doc) for d in here)
        own = [answers[d.prompts[0]] for d in here]
        texts, traces = tuple(text for text, _ in own), tuple(trace for _, trace in own)
        found.append(Generations(source, task, keys_of(here, docs), docs, texts, traces, missing))
    return found
