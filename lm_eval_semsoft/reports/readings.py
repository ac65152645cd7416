"""A readouts directory as arrays: what every later question starts from.

readings = load("readouts/gemma")           # one task of one model
log_s = scores.log_scores(readings, Scoring(tau=0.3))
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import (
    Kernel,
    LabelSet,
    Moments,
    Scoring,
    Space,
    build_kernel,
    fit_space,
    label_cosines,
)
from lm_eval_semsoft.engine import store
from lm_eval_semsoft.engine.manifest import MANIFEST, Manifest
from lm_eval_semsoft.engine.parts import (
    ForeignReadouts,
    fixed_column,
    ragged_column,
)
from lm_eval_semsoft.engine.records import StoredDocument, hidden_column, holds_hidden, text_key

logger = logging.getLogger(__name__)

_COSINES_KEPT, _KERNELS_KEPT = 8, 2  # matrices [V, L] in memory at once


class _Kernels:
    """What was computed from one model's output embeddings."""

    def __init__(self) -> None:
        self.cosines: dict[tuple[LabelSet, str, str], NDArray[np.float32]] = {}
        self.spaces: dict[str, Space] = {}
        self.moments: Moments | None = None
        self.built: dict[tuple[LabelSet, Scoring], Kernel] = {}


# Directories of one model (evaluated and development documents, say) share them.
_KERNELS: WeakValueDictionary[str, _Kernels] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Source:
    """One readouts directory: what is known of its model.

    Attributes:
        folder: where it is.
        manifest: the fields of `engine.Manifest`.
    """

    folder: Path
    manifest: dict[str, Any]
    _kernels: _Kernels = field(default_factory=_Kernels)

    @classmethod
    def open(cls, folder: str | Path) -> Source:
        """
        Raises:
            FileNotFoundError: no such directory, or no readouts in it.
            engine.store.ForeignReadouts: not ours.
        """
        path = Path(folder).expanduser()
        manifest = Manifest.read(path)
        if not isinstance(manifest.about.get("top_k"), int):
            raise ForeignReadouts(f"{path / MANIFEST} does not tell K.")
        kernels = _KERNELS.setdefault(manifest.fingerprint, _Kernels())
        return cls(path, vars(manifest), kernels)

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
        """Give the memory of cosines, kernels and spaces back."""
        self._kernels.cosines.clear()
        self._kernels.built.clear()
        self._kernels.spaces.clear()
        self._kernels.moments = None

    def cosines(self, labels: LabelSet, space: str, anchors: str) -> NDArray[np.float32]:
        """cos(v, l), [V, L], as `core.semantic_softmax.label_cosines`; the latest are kept."""
        matrix = self._matrix  # must be here, even if another directory's has served
        key, kept, spaces = (labels, space, anchors), self._kernels.cosines, self._kernels.spaces
        if key not in kept:
            if space not in spaces:
                self._kernels.moments = self._kernels.moments or Moments(matrix)
                spaces[space] = fit_space(matrix, space, self._kernels.moments)
            while len(kept) >= _COSINES_KEPT:
                kept.pop(next(iter(kept)))
            kept[key] = label_cosines(matrix, spaces[space], labels, anchors)
        return kept[key]

    def kernel(self, labels: LabelSet, scoring: Scoring) -> Kernel:
        """The voting weights, as `core.semantic_softmax.build_kernel`; the latest are kept."""
        cosines = self.cosines(labels, scoring.space, scoring.anchors)
        key, kept = (labels, scoring), self._kernels.built
        if key not in kept:
            while len(kept) >= _KERNELS_KEPT:
                kept.pop(next(iter(kept)))
            kept[key] = build_kernel(cosines, labels, scoring)
        return kept[key]


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
        keys: [n] the documents' own ids, or their numbers; all different (an id that comes again
            gets a count: `x`, `x#2`).
        docs: [n] the task's documents.
        target: [n, L] which labels are right, None if the documents do not tell.
        topk_ids: [n, K] int32, most probable first.
        topk_logprobs: [n, K] float32.
        label_logprobs: [n, L] float32, -inf where a document has fewer choices.
        entropy: [n] of the full distribution, nats.
        nucleus_sizes, nucleus_entropies: [n, 4] at `core.uncertainty.NUCLEUS_LEVELS`, nats.
        choices: [n] the texts of each document's own labels.
        first: [n] `prompt_key` of the readout that the arrays are from.
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
    nucleus_sizes: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 4), np.int32))
    nucleus_entropies: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((0, 4), np.float32)
    )
    choices: tuple[tuple[str, ...], ...] = ()
    first: tuple[bytes, ...] = ()
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


def take(readings: Readings, rows: Sequence[int]) -> Readings:
    """Some of the documents, in this order."""
    if list(rows) == list(range(readings.n)):
        return readings
    places = np.asarray(rows, dtype=np.int64)
    arrays = (
        "target", "topk_ids", "topk_logprobs", "label_logprobs", "entropy", "nucleus_sizes",
        "nucleus_entropies",
    )  # fmt: skip
    tuples = ("keys", "docs", "choices", "first", "prompts")
    chosen: dict[str, Any] = {}
    for name in (*arrays, *tuples):
        own = getattr(readings, name)
        if own is not None and len(own):
            chosen[name] = own[places] if name in arrays else tuple(own[i] for i in places)
    return replace(readings, **chosen)


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
    found = readings_of(source, store.read_documents(source.folder), samples)
    if not found:
        raise nothing_in(folder)
    return found


def readings_of(
    source: Source,
    stored: Sequence[StoredDocument],
    samples: Mapping[int, int] | None = None,
) -> list[Readings]:
    """`load_all` from documents that have been read; [] where there is nothing."""
    tasks: dict[str, list[StoredDocument]] = {}
    for document in _conditional(stored):
        if not document.labels:  # an answer that was generated (`reports.generations`)
            continue
        tasks.setdefault(document.task, []).append(document)
    if not tasks:
        return []
    rows = _Rows(source)
    found = []
    for task, documents in tasks.items():
        if len({d.doc_id for d in documents}) < len(documents):
            logger.warning(
                "%s: task %s has several prompts a document; left out.", source.folder, task
            )
            continue
        if (readings := _assemble(source, task, documents, rows, samples)) is not None:
            found.append(readings)
    return found


def nothing_in(folder: str | Path) -> ValueError:
    return ValueError(
        f"{folder} holds no readouts of any task yet (generated answers have none: give "
        "`semsoft report` what `lm_eval --log_samples --output_path DIR` wrote)."
    )


def _conditional(documents: Sequence[StoredDocument]) -> list[StoredDocument]:
    """Without the empty prompts that `acc_mutual_info` adds to a document's own."""
    empty = text_key("")
    own = {(d.task, d.doc_id) for d in documents if d.context != empty}
    return [d for d in documents if d.context != empty or (d.task, d.doc_id) not in own]


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
    if task is None:
        raise ValueError(f"{folder} holds the tasks {', '.join(names)}: name one with --task.")
    check_task(folder, names, task)
    return found[names.index(task)]


def check_task(folder: str | Path, names: Sequence[str], task: str | None) -> None:
    """Is a task among those that a directory holds? None stands for all of them.

    Raises:
        ValueError: it is not.
    """
    if task is not None and task not in names:
        raise ValueError(
            f"{folder} holds the tasks {', '.join(names)}: {task!r} is not among them."
        )


def distinct_names(named: Sequence[tuple[str, str]]) -> list[str]:
    """A name for each (name, directory): the directory where several share a name."""
    directories: dict[str, set[str]] = {}
    for name, directory in named:
        directories.setdefault(name, set()).add(directory)
    return [directory if len(directories[name]) > 1 else name for name, directory in named]


def load_hidden(readings: Readings) -> NDArray[np.float16]:
    """The activations after every block at each document's answer position, [n, layers, d].

    Raises:
        ValueError: the run did not capture them, for some of the documents at least.
    """
    source = readings.source
    layers = source.manifest["about"].get("layers")
    where: dict[bytes, list[int]] = {}  # documents may share a prompt
    for i, key in enumerate(readings.first):
        where.setdefault(key, []).append(i)
    found = np.zeros(readings.n, dtype=np.bool_)
    out = np.zeros((readings.n, *layers) if layers else (readings.n, 0, 0), dtype=np.float16)
    for table in _tables(source, hidden=True) if layers else ():
        if not holds_hidden(table, tuple(layers)):
            continue
        own = hidden_column(table, tuple(layers))
        for row, key in enumerate(table["prompt"].to_pylist()):
            if key in where:
                out[where[key]], found[where[key]] = own[row], True
    if not found.all():
        raise ValueError(
            f"{source.folder} has activations of {int(found.sum())} of {readings.n} documents of "
            f"{readings.task}: run the evaluation on it with --model_args …,capture=hidden."
        )
    return out


def read_samples(path: Path) -> dict[int, int]:
    """Right choices from a `samples_<task>_*.jsonl` of the harness: document number -> choice.

    Raises:
        ValueError: not such a file, with the line.
    """
    # Only a line feed ends a line: the documents in it may hold U+2028 and the like.
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
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


def _tables(source: Source, hidden: bool = False) -> Iterator[Any]:
    return store.read_readouts(source.folder, source.manifest["about"]["top_k"], hidden)


class _Rows:
    """The readouts of a directory, prompt by prompt, without copies."""

    def __init__(self, source: Source) -> None:
        self.columns: list[dict[str, Any]] = []
        self.place: dict[bytes, tuple[int, int]] = {}
        for table in _tables(source):
            self._add(table)

    def _add(self, table: Any) -> None:
        for row, key in enumerate(table["prompt"].to_pylist()):
            self.place.setdefault(key, (len(self.columns), row))
        self.columns.append(
            {
                "topk_ids": fixed_column(table, "topk_ids"),
                "topk_logprobs": fixed_column(table, "topk_logprobs"),
                "label_logprobs": ragged_column(table, "label_logprobs"),
                "entropy": table["entropy"].to_numpy(),
                "nucleus_sizes": fixed_column(table, "nucleus_sizes"),
                "nucleus_entropies": fixed_column(table, "nucleus_entropies"),
                "lead_logprob": table["lead_logprob"].to_numpy(),
            }
        )

    def labels(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Log-probabilities of the labels of all prompts of one document, one after the other.

        After contexts of several lengths, what the labels begin with has several probabilities.
        """
        own, leads = [], []
        for key in keys:
            part, row = self.place[key]
            values, offsets = self.columns[part]["label_logprobs"]
            own.append(values[offsets[row] : offsets[row + 1]])
            leads.append(float(self.columns[part]["lead_logprob"][row]))
        if len(set(leads)) > 1:
            own = [x + (lead - max(leads)) for x, lead in zip(own, leads, strict=True)]
        return np.concatenate(own)

    def gather(self, name: str, keys: Sequence[bytes]) -> NDArray[Any]:
        """One row per key of a column of equal lengths."""
        places = np.array([self.place[key] for key in keys], dtype=np.int64).reshape(-1, 2)
        sample = self.columns[places[0, 0]][name]
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
) -> Readings | None:
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
    if not read:
        return None
    shared = _shared_label_set(source, task, read)
    docs = tuple(json.loads(d.doc) for d in read)
    width = max(len(d.labels) for d in read)
    # Where a context had to be cut for long labels there are several prompts; the longest holds
    # the neighbours' votes of nearly all labels.
    first = [d.prompts[0] for d in read]
    return Readings(
        source=source,
        task=task,
        labels=read[0].labels if shared else tuple(f"choice {i + 1}" for i in range(width)),
        label_set=_label_set(source.manifest["label_sets"][shared]) if shared else None,
        why_identity=source.manifest["tasks"].get(task, {}).get("why_identity"),
        keys=keys_of(read, docs),
        docs=docs,
        target=_targets(read, docs, width, samples),
        topk_ids=rows.gather("topk_ids", first),
        topk_logprobs=rows.gather("topk_logprobs", first),
        label_logprobs=_label_logprobs(read, rows, width),
        entropy=rows.gather("entropy", first),
        nucleus_sizes=rows.gather("nucleus_sizes", first),
        nucleus_entropies=rows.gather("nucleus_entropies", first),
        choices=tuple(d.labels for d in read),
        first=tuple(first),
        prompts=tuple(d.context.hex() for d in read),
        missing=len(documents) - len(read),
    )


def _shared_label_set(source: Source, task: str, documents: Sequence[StoredDocument]) -> str | None:
    names = {d.label_set for d in documents}
    if len(names) > 1 and len({d.labels for d in documents}) == 1:
        logger.warning(
            "%s: the labels of %s are not the same tokens after every prompt; only constrained "
            "scores can be computed.",
            source.folder,
            task,
        )
    if len(names) > 1 or None in names:
        return None
    (name,) = names
    if name not in source.manifest["label_sets"]:
        logger.warning(
            "%s: the label set of %s is not in the manifest; run the evaluation again on this "
            "directory to note it.",
            source.folder,
            task,
        )
        return None
    return name


def _label_set(record: Mapping[str, Any]) -> LabelSet:
    return LabelSet(
        tuple(record["labels"]),
        tuple(map(tuple, record["spelled"])),
        tuple(map(tuple, record["variants"])),
    )


def keys_of(documents: Sequence[StoredDocument], docs: Sequence[object]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    keys = []
    for document, doc in zip(documents, docs, strict=True):
        own = doc.get("id") if isinstance(doc, dict) else None
        key = str(document.doc_id if own is None else own)
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return tuple(keys)


def _label_logprobs(
    documents: Sequence[StoredDocument], rows: _Rows, width: int
) -> NDArray[np.float32]:
    out = np.full((len(documents), width), -np.inf, dtype=np.float32)
    for i, d in enumerate(documents):
        own = rows.labels(d.prompts)
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
        yield own if _are_choices(own, len(document.labels)) else None


def _are_choices(given: Any, n: int) -> bool:
    """Some of the n choices, by number? True and False are no numbers here."""
    whole = isinstance(given, list) and all(type(x) is int and 0 <= x < n for x in given)
    return whole and bool(given)
