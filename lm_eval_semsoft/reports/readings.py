"""A readouts directory as arrays: what every later question starts from.

readings = load("readouts/gemma")           # one task of one model
log_s = scores.log_scores(readings, Scoring(tau=0.3))
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import LabelSet, Scoring, Space, fit_space, label_cosines
from lm_eval_semsoft.engine import store
from lm_eval_semsoft.engine.store import StoredDocument

logger = logging.getLogger(__name__)

_COSINES_KEPT = 8  # matrices [V, L] in memory at once


@dataclass(frozen=True, eq=False)
class Source:
    """One readouts directory: what is known of its model.

    Attributes:
        folder: where it is.
        manifest: the fields of `engine.store.Manifest`.
    """

    folder: Path
    manifest: dict[str, Any]
    _cosines: dict[tuple[LabelSet, str, str], NDArray[np.float32]] = field(default_factory=dict)
    _spaces: dict[str, Space] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: str | Path) -> Source:
        """
        Raises:
            FileNotFoundError: no such directory, or no readouts in it.
            engine.store.ForeignReadouts: not ours.
        """
        path = Path(folder)
        return cls(path, vars(store.Manifest.read(path)))

    @property
    def model(self) -> str:
        """The model as the run named it."""
        return str(self.manifest["about"].get("model", "unknown model"))

    @cached_property
    def _matrix(self) -> torch.Tensor:
        return store.read_embeddings(self.folder)

    @cached_property
    def _texts(self) -> list[str]:
        return store.read_vocabulary(self.folder)

    def embeddings(self) -> torch.Tensor:
        """The output embeddings E, [V, d]."""
        return self._matrix

    def token_texts(self) -> Sequence[str]:
        """The text of every token, [V]."""
        return self._texts

    def forget(self) -> None:
        """Give the memory of cosines and spaces back."""
        self._cosines.clear()
        self._spaces.clear()

    def cosines(self, labels: LabelSet, space: str, anchors: str) -> NDArray[np.float32]:
        """cos(v, l), [V, L], as `core.semantic_softmax.label_cosines`; the latest are kept."""
        key = (labels, space, anchors)
        if key not in self._cosines:
            if space not in self._spaces:
                self._spaces[space] = fit_space(self._matrix, space)
            while len(self._cosines) >= _COSINES_KEPT:
                self._cosines.pop(next(iter(self._cosines)))
            self._cosines[key] = label_cosines(self._matrix, self._spaces[space], labels, anchors)
        return self._cosines[key]


@dataclass(frozen=True, eq=False)
class Readings:
    """The documents of one task of one directory.

    n documents, L labels, K stored tokens, V tokens in the vocabulary.

    Attributes:
        source: the directory.
        task: the task's name.
        labels: [L] label texts; `choice 1` … where every document has its own.
        label_set: their spelling, None where documents do not share one label set.
        why_identity: why neighbours do not vote by default, None if they do.
        keys: [n] the documents' own ids, or their numbers.
        docs: [n] the task's documents.
        target: [n, L] which labels are right, None if the documents do not tell.
        topk_ids: [n, K] int32, most probable first.
        topk_logprobs: [n, K] float32.
        label_logprobs: [n, L] float32, -inf where a document has fewer choices.
        entropy: [n] of the full distribution, nats.
        prompts: [n] hex digits that stand for each prompt, to tell documents apart.
        missing: documents of the run that have no readout yet.
    """

    source: Source
    task: str
    labels: tuple[str, ...]
    label_set: LabelSet | None
    why_identity: str | None
    keys: tuple[str, ...]
    docs: tuple[dict[str, Any], ...]
    target: NDArray[np.bool_] | None
    topk_ids: NDArray[np.int32]
    topk_logprobs: NDArray[np.float32]
    label_logprobs: NDArray[np.float32]
    entropy: NDArray[np.float64]
    prompts: tuple[str, ...] = ()
    missing: int = 0

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.source.folder.resolve().name

    @property
    def n(self) -> int:
        return len(self.keys)

    @property
    def run_scoring(self) -> Scoring:
        """What the run was scored with."""
        given = dict(self.source.manifest["about"].get("scoring", {}))
        given.pop("kernel", None)
        return Scoring(**given)

    @property
    def vocabulary(self) -> int:
        return len(self.source.embeddings())

    def gold(self) -> NDArray[np.bool_]:
        """`target`.

        Raises:
            ValueError: the documents do not tell.
        """
        if self.target is None:
            raise ValueError(
                f"The documents of task {self.task} in {self.source.folder} do not say which label "
                "is right (no field `labels`): give the run's samples file (lm_eval --log_samples) "
                "with --samples."
            )
        return self.target


def load_all(folder: str | Path, samples: Mapping[int, int] | None = None) -> list[Readings]:
    """Every task of a directory whose documents have one prompt each.

    Args:
        folder: a readouts directory.
        samples: document number -> right choice, where the documents do not tell.

    Raises:
        FileNotFoundError, engine.store.ForeignReadouts: as `Source.open`; a part that cannot be
            read is only named in a warning, and its documents count as missing.
        ValueError: nothing to read.
    """
    source = Source.open(folder)
    tasks: dict[str, list[StoredDocument]] = {}
    for document in store.read_documents(source.folder):
        tasks.setdefault(document.task, []).append(document)
    rows = _Rows(source)
    found = []
    for task, documents in tasks.items():
        if len({d.doc_id for d in documents}) < len(documents):
            logger.warning("%s: task %s has several prompts a document; left out.", folder, task)
            continue
        if (readings := _assemble(source, task, documents, rows, samples)).n:
            found.append(readings)
    if not found:
        raise ValueError(f"{folder} holds no readouts of any task yet.")
    return found


def load(
    folder: str | Path, task: str | None = None, samples: Mapping[int, int] | None = None
) -> Readings:
    """One task of a directory; it need not be named where there is only one.

    Raises:
        as `load_all`; ValueError if there are several tasks and none is named, or not this one.
    """
    found = load_all(folder, samples)
    names = [r.task for r in found]
    if task is None and len(found) == 1:
        return found[0]
    if task not in names:
        asked = "name one with --task" if task is None else f"{task!r} is not among them"
        raise ValueError(f"{folder} holds the tasks {', '.join(names)}: {asked}.")
    return found[names.index(task)]


def read_samples(path: Path) -> dict[int, int]:
    """Right choices from a `samples_<task>_*.jsonl` of the harness: document number -> choice.

    Raises:
        ValueError: not such a file, with the line.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(_sample(path, number, line) for number, line in enumerate(lines, start=1))


def _sample(path: Path, number: int, line: str) -> tuple[int, int]:
    try:
        record = json.loads(line)
        return int(record["doc_id"]), int(record["target"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}, line {number}: expected a sample with doc_id and a whole number as target "
            f"({error!r})."
        ) from error


class _Rows:
    """The readouts of a directory, prompt by prompt, without copies."""

    def __init__(self, source: Source) -> None:
        self.columns: list[dict[str, Any]] = []
        self.place: dict[bytes, tuple[int, int]] = {}
        for path in store.parts(source.folder, store.READOUTS):
            try:
                table = store.read_readouts(path, int(source.manifest["about"]["top_k"]))
            except store.ForeignReadouts as problem:
                logger.warning("%s: left out; run the evaluation again on this directory.", problem)
                continue
            if store.fingerprint_of(table) != source.manifest["fingerprint"]:
                logger.warning("%s is from another model: left out.", path)
                continue
            self._add(table)

    def _add(self, table: Any) -> None:
        for row, key in enumerate(table["prompt"].to_pylist()):
            self.place.setdefault(key, (len(self.columns), row))
        self.columns.append(
            {
                "topk_ids": store.fixed_column(table, "topk_ids"),
                "topk_logprobs": store.fixed_column(table, "topk_logprobs"),
                "label_logprobs": store.ragged_column(table, "label_logprobs"),
                "entropy": table["entropy"].to_numpy(),
            }
        )

    def labels(self, key: bytes) -> NDArray[np.float32]:
        part, row = self.place[key]
        values, offsets = self.columns[part]["label_logprobs"]
        own: NDArray[np.float32] = values[offsets[row] : offsets[row + 1]]
        return own

    def gather(self, name: str, keys: Sequence[bytes]) -> NDArray[Any]:
        """One row per key of a column of equal lengths."""
        if not self.columns:  # nothing was read yet
            return np.empty((0, 0))
        places = np.array([self.place[key] for key in keys]).reshape(-1, 2)
        sample = self.columns[0][name]
        out = np.empty((len(keys), *sample.shape[1:]), dtype=sample.dtype)
        for part in np.unique(places[:, 0]):
            here = places[:, 0] == part
            out[here] = self.columns[part][name][places[here, 1]]
        return out


def _assemble(
    source: Source,
    task: str,
    documents: Sequence[StoredDocument],
    rows: _Rows,
    samples: Mapping[int, int] | None,
) -> Readings:
    read = [d for d in documents if all(key in rows.place for key in d.prompts)]
    if len(read) < len(documents):
        logger.warning(
            "%s: %d of %d documents of %s have no readout yet; run the evaluation again on this "
            "directory to complete it.",
            source.folder,
            len(documents) - len(read),
            len(documents),
            task,
        )
    sets = {d.label_set for d in read}
    shared = sets.pop() if len(sets) == 1 else None
    docs = tuple(json.loads(d.doc) for d in read)
    width = max((len(d.labels) for d in read), default=0)
    # Where a context had to be cut for long labels there are several prompts; the longest holds
    # the neighbours' votes of nearly all labels.
    first = [d.prompts[0] for d in read]
    return Readings(
        source=source,
        task=task,
        labels=read[0].labels if shared else tuple(f"choice {i + 1}" for i in range(width)),
        label_set=_label_set(source.manifest["label_sets"][shared]) if shared else None,
        why_identity=source.manifest["tasks"].get(task, {}).get("why_identity"),
        keys=tuple(_key(d, doc) for d, doc in zip(read, docs, strict=True)),
        docs=docs,
        target=_targets(read, docs, width, samples),
        topk_ids=rows.gather("topk_ids", first),
        topk_logprobs=rows.gather("topk_logprobs", first),
        label_logprobs=_label_logprobs(read, rows, width),
        entropy=rows.gather("entropy", first),
        prompts=tuple(d.context.hex() for d in read),
        missing=len(documents) - len(read),
    )


def _label_set(record: Mapping[str, Any]) -> LabelSet:
    return LabelSet(
        tuple(record["labels"]),
        tuple(map(tuple, record["spelled"])),
        tuple(map(tuple, record["variants"])),
    )


def _key(document: StoredDocument, doc: object) -> str:
    own = doc.get("id") if isinstance(doc, dict) else None
    return str(document.doc_id if own is None else own)


def _label_logprobs(
    documents: Sequence[StoredDocument], rows: _Rows, width: int
) -> NDArray[np.float32]:
    out = np.full((len(documents), width), -np.inf, dtype=np.float32)
    for i, d in enumerate(documents):
        own = np.concatenate([rows.labels(key) for key in d.prompts])
        out[i, : len(d.places)] = own[list(d.places)]
    return out


def _targets(
    documents: Sequence[StoredDocument],
    docs: Sequence[Any],
    width: int,
    samples: Mapping[int, int] | None,
) -> NDArray[np.bool_] | None:
    out = np.zeros((len(documents), width), dtype=np.bool_)
    for i, right in enumerate(_right(documents, docs, samples)):
        if right is None:
            return None
        out[i, right] = True
    return out


def _right(
    documents: Sequence[StoredDocument],
    docs: Sequence[Any],
    samples: Mapping[int, int] | None,
) -> Iterator[list[int] | None]:
    for document, doc in zip(documents, docs, strict=True):
        own = doc.get("labels") if isinstance(doc, dict) else None
        if samples is not None:
            own = [samples[document.doc_id]] if document.doc_id in samples else None
        choices = range(len(document.labels))
        valid = isinstance(own, list) and all(isinstance(x, int) and x in choices for x in own)
        yield own if own and valid else None
