"""What a readouts directory must know of a run: its documents, tasks and label sets."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lm_eval_semsoft.core.semantic_softmax import LabelSet
from lm_eval_semsoft.engine.labels import Encode, label_set
from lm_eval_semsoft.engine.records import StoredDocument, prompt_key, text_key

from .label_scores import TaskLabels
from .work import Job

_MOST_VALUES = 1000  # of an array in a document; pictures and sounds are not kept


@dataclass
class Record:
    """The documents of a run as a store keeps them.

    Attributes:
        documents: one per document of the run.
        tasks, label_sets: see `engine.store.Manifest`.
    """

    documents: list[StoredDocument] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    label_sets: dict[str, dict[str, Any]] = field(default_factory=dict)


def record_of(
    jobs: Sequence[Job], known: Mapping[str | None, TaskLabels], encode: Encode
) -> Record:
    """Describe a run's documents for the store, whatever the run's scoring is."""
    record = Record()
    names: dict[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], str | None] = {}
    for number, job in enumerate(jobs):
        document = job.document
        task = str(document.task)
        record.tasks.setdefault(task, {"why_identity": known[document.task].why_identity})
        flat = [
            (label, p.prompt.labels[i][p.prompt.lead :])
            for p in job.parts
            for i, label in enumerate(p.labels)
        ]
        # As the task counts its choices: one that stands there twice was read once.
        asked = [(n, i) for i, (label, _) in enumerate(flat) for n in document.indices[label]]
        order = [i for _, i in sorted(asked)]
        labels = tuple(flat[i][0] for i in order)
        spelled = tuple(flat[i][1] for i in order)
        name = None
        if known[document.task].fixed and len(labels) == len(known[document.task].tokens):
            if (labels, spelled) not in names:
                names[labels, spelled] = _keep(record, labels, spelled, encode)
            name = names[labels, spelled]
        record.documents.append(
            StoredDocument(
                task=task,
                doc_id=number if document.doc_id is None else document.doc_id,
                context=text_key(document.context),
                doc=_as_json(document.doc),
                label_set=name,
                labels=tuple(label.strip() for label in labels),
                prompts=tuple(prompt_key(part.prompt) for part in job.parts),
                places=tuple(order),
            )
        )
    return record


def _keep(
    record: Record,
    labels: tuple[str, ...],
    spelled: tuple[tuple[int, ...], ...],
    encode: Encode,
) -> str | None:
    """Note a label set under a name; None where the labels are not distinct words."""
    try:
        own: LabelSet = label_set([label.strip() for label in labels], spelled, encode)
    except ValueError:  # a run that scores with it says what is wrong; the others need no kernel
        return None
    text = json.dumps(vars(own), ensure_ascii=False)
    name = text_key(text).hex()[:8]
    record.label_sets[name] = json.loads(text)
    return name


def _as_json(doc: object) -> str:
    """A task's document, whatever is in it; what JSON has no word for stands as text."""
    try:
        return json.dumps(doc, default=_plain, skipkeys=True)
    except (ValueError, RecursionError):  # it contains itself
        return json.dumps(reprlib.repr(doc))


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.size <= _MOST_VALUES:
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
