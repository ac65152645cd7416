"""Readouts on disk: one forward pass answers every later question.

A directory holds one model's readouts:

    manifest.json           what they depend on, and the label sets of the tasks
    readouts/*.parquet      append-only parts, one row per distinct prompt
    documents/*.parquet     which document asked which prompts
    embeddings.safetensors  the output embeddings E [V, d], so that any kernel can be built later
    vocabulary.parquet      the text of every token
    set_aside/              parts that could not be used, never deleted

Every file is written under a temporary name and renamed, so a killed run leaves whole files only,
and any number of processes may write: names never collide, and a prompt that two of them read is
simply there twice. Parquet's page checksums tell when a part has rotted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .forward import Engine, NaNLogits
from .plan import Prompt
from .readout import NUCLEUS_LEVELS, Readout

logger = logging.getLogger(__name__)

FORMAT = 1  # of everything in the directory; another number is another program's
MANIFEST = "manifest.json"
READOUTS = "readouts"
DOCUMENTS = "documents"
SET_ASIDE = "set_aside"
EMBEDDINGS = "embeddings.safetensors"
VOCABULARY = "vocabulary.parquet"

_KEY = pa.binary(16)
_FIXED = ("topk_ids", "topk_logprobs", "nucleus_sizes", "nucleus_entropies")  # fields of `Readout`
_SINGLE = ("entropy", "lead_logprob")
_RAGGED = ("label_logprobs", "label_greedy", "label_first")
_PART_ROWS = 256  # rows that wait in memory for their part at most …
_PART_SECONDS = 10.0  # … and how long: what a killed run has to do again


class ForeignReadouts(ValueError):
    """The directory belongs to another model, another prompt, or another program."""


# --------------------------------------------------------------------------------------------
# keys
# --------------------------------------------------------------------------------------------


def prompt_key(prompt: Prompt) -> bytes:
    """16 bytes that stand for the tokens of a prompt and of its labels."""
    lengths = [len(prompt.tokens), *map(len, prompt.labels)]
    if prompt.lead:
        lengths.append(-prompt.lead)
    flat = [*prompt.tokens, *(token for label in prompt.labels for token in label)]
    digest = hashlib.sha256(np.array([len(lengths), *lengths, *flat], dtype="<i8").tobytes())
    return digest.digest()[:16]


def text_key(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


# --------------------------------------------------------------------------------------------
# what stands in a directory
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredDocument:
    """A task's document and where its labels' scores are found.

    Attributes:
        task, doc_id: as the harness numbers them.
        context: `text_key` of the prompt.
        doc: the task's document as JSON.
        label_set: key of `Manifest.label_sets`, None where neighbours do not vote.
        labels: [L] the label texts, in the order of the task's choices.
        prompts: `prompt_key` of each prompt that was read for it (several only where a context had
            to be cut for long labels).
        places: [L] where each label stands among the labels of all those prompts, in order.
    """

    task: str
    doc_id: int
    context: bytes
    doc: str
    label_set: str | None
    labels: tuple[str, ...]
    prompts: tuple[bytes, ...]
    places: tuple[int, ...]


_DOCUMENT_SCHEMA = pa.schema(
    {
        "task": pa.string(),
        "doc_id": pa.int64(),
        "context": _KEY,
        "doc": pa.string(),
        "label_set": pa.string(),
        "labels": pa.list_(pa.string()),
        "prompts": pa.list_(_KEY),
        "places": pa.list_(pa.int32()),
    }
)


def _readout_schema(top_k: int) -> pa.Schema:
    n = len(NUCLEUS_LEVELS)
    return pa.schema(
        {
            "prompt": _KEY,
            "topk_ids": pa.list_(pa.int32(), top_k),
            "topk_logprobs": pa.list_(pa.float32(), top_k),
            "label_logprobs": pa.list_(pa.float32()),
            "label_greedy": pa.list_(pa.bool_()),
            "label_first": pa.list_(pa.int32()),
            "entropy": pa.float64(),
            "nucleus_sizes": pa.list_(pa.int32(), n),
            "nucleus_entropies": pa.list_(pa.float32(), n),
            "lead_logprob": pa.float64(),
        }
    )


@dataclass
class Manifest:
    """What a directory's readouts depend on, and what later questions need.

    Attributes:
        fingerprint: of weights, precision and K: readouts of another one are never served.
        about: name of the model and its tokenizer, K, layers, versions, the run's scoring; for
            people and as defaults of later commands.
        label_sets: name -> {labels, spelled, variants} (`core.semantic_softmax.LabelSet`).
        tasks: task -> {why_identity}: why neighbours do not vote there, or None.
    """

    fingerprint: str
    about: dict[str, Any] = field(default_factory=dict)
    label_sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """
        Raises:
            FileNotFoundError: there is none.
            ForeignReadouts: it is not one of ours.
        """
        path = folder / MANIFEST
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("format") == FORMAT:
                return cls(**record)
            reason = f"it is not of format {FORMAT}"
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{folder} holds no readouts ({MANIFEST} is missing): run the evaluation with "
                f"--model_args …,readouts={folder} first."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error)
        raise ForeignReadouts(f"{path} was not written by this version of semsoft: {reason}.")

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **vars(self)}, indent=1, ensure_ascii=False)
        _atomically(folder / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))


def read_documents(folder: Path) -> list[StoredDocument]:
    """All documents of a directory, each once, ordered by task and number.

    Raises:
        ForeignReadouts: a part cannot be read; it names the part.
    """
    found: dict[tuple[str, int, bytes], StoredDocument] = {}
    for path in parts(folder, DOCUMENTS):
        table = _read_part(path, _DOCUMENT_SCHEMA)
        for row in table.to_pylist():
            for name in ("labels", "prompts", "places"):
                row[name] = tuple(row[name])
            document = StoredDocument(**row)
            found[document.task, document.doc_id, document.context] = document
    return [found[key] for key in sorted(found)]


def parts(folder: Path, kind: str) -> list[Path]:
    """The finished files of a kind, oldest first."""
    return sorted((folder / kind).glob("*.parquet"))


def read_readouts(path: Path, top_k: int) -> pa.Table:
    """One part, as a table.

    Raises:
        ForeignReadouts: it is truncated, corrupt, or not a part of such a directory.
    """
    return _read_part(path, _readout_schema(top_k))


def _read_part(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ForeignReadouts(f"{path} is truncated or corrupt ({_first_line(error)})") from error
    if not table.schema.equals(schema):
        raise ForeignReadouts(f"{path} is not a part of this directory: it has other columns")
    return table


def fingerprint_of(table: pa.Table) -> str:
    """The fingerprint that a part was written under, "" if it says none."""
    return (table.schema.metadata or {}).get(b"fingerprint", b"").decode(errors="replace")


def read_embeddings(folder: Path) -> torch.Tensor:
    """E [V, d] of the model that the readouts are from.

    Raises:
        ForeignReadouts: there is none, or it cannot be read.
    """
    path = folder / EMBEDDINGS
    try:
        with safe_open(path, framework="pt") as opened:
            return opened.get_tensor("embeddings")
    except (FileNotFoundError, SafetensorError) as error:
        why = Manifest.read(folder).about.get("no_embeddings") or _first_line(error)
        raise ForeignReadouts(
            f"{path}, the output embeddings, cannot be read ({why}): only constrained scores can "
            "be computed from these readouts; run the evaluation on this directory again."
        ) from error


def read_vocabulary(folder: Path) -> list[str]:
    """The text of every token, [V]; empty if it was not stored."""
    path = folder / VOCABULARY
    if not path.exists():
        return []
    texts: list[str] = pq.read_table(path)["text"].to_pylist()
    return texts


# --------------------------------------------------------------------------------------------
# writing
# --------------------------------------------------------------------------------------------


class Store:
    """One directory of readouts, open for a run.

    Args:
        folder: is made if it does not exist.
        fingerprint: of what the readouts depend on.
        top_k: K, tokens per readout.
        about: see `Manifest`.

    Raises:
        ForeignReadouts: the directory holds the readouts of another model.
        OSError: it cannot be written to.
    """

    def __init__(
        self, folder: str | Path, fingerprint: str, top_k: int, about: Mapping[str, Any]
    ) -> None:
        self.folder = Path(folder)
        self.top_k = top_k
        self.fingerprint = fingerprint
        for kind in (READOUTS, DOCUMENTS):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / ".lock")
        self._pending: list[tuple[bytes, Readout]] = []
        self._flushed = time.monotonic()
        self._failed = False
        self._update(lambda manifest: manifest.about.update(about))

    def _update(self, change: Callable[[Manifest], object]) -> None:
        """Read, change and write the manifest, one process after the other."""
        with self._lock:
            try:
                manifest = Manifest.read(self.folder)
            except FileNotFoundError:
                manifest = Manifest(self.fingerprint)
            if manifest.fingerprint != self.fingerprint:
                raise ForeignReadouts(
                    f"readouts={self.folder} holds readouts of "
                    f"{manifest.about.get('model', 'another model')} "
                    f"({manifest.about.get('dtype', '?')}, K {manifest.about.get('top_k', '?')}), "
                    "not of this model, precision and K: give every model a directory of its own."
                )
            before = json.dumps(vars(manifest))
            change(manifest)
            if json.dumps(vars(manifest)) != before or not (self.folder / MANIFEST).exists():
                manifest.write(self.folder)

    # -- the model's side ----------------------------------------------------------------------

    def save_model(
        self, embeddings: Callable[[], torch.Tensor], texts: Callable[[], Sequence[str]]
    ) -> None:
        """Keep E and the texts of the tokens, unless they are there.

        An E that cannot be had (quantised, offloaded) is noted in the manifest.
        """
        with self._lock:
            self._save_vocabulary(texts)
            if (self.folder / EMBEDDINGS).exists():
                return
            try:
                matrix = _as_small_as_exact(embeddings().cpu())
            except ValueError as error:
                reason = str(error)
            else:
                kept = {"embeddings": matrix.contiguous()}
                _atomically(self.folder / EMBEDDINGS, lambda path: save_file(kept, path))
                return
        self._update(lambda manifest: manifest.about.update(no_embeddings=reason))

    def _save_vocabulary(self, texts: Callable[[], Sequence[str]]) -> None:
        if not (self.folder / VOCABULARY).exists():
            table = pa.table({"text": pa.array(texts(), pa.string())})
            _atomically(
                self.folder / VOCABULARY,
                lambda path: pq.write_table(table, path, compression="zstd"),
            )

    def save_tasks(
        self, tasks: Mapping[str, Mapping[str, Any]], label_sets: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Note the label sets of a run's tasks."""

        def change(manifest: Manifest) -> None:
            manifest.tasks.update({name: dict(task) for name, task in tasks.items()})
            manifest.label_sets.update({name: dict(own) for name, own in label_sets.items()})

        self._update(change)

    def save_documents(self, documents: Sequence[StoredDocument]) -> None:
        """Note who asked what; documents that are there already are not written again.

        Raises:
            ForeignReadouts: the directory holds other prompts of the same documents.
        """
        known = self._known_documents()
        asked: dict[tuple[str, int], set[bytes]] = {}
        for d in documents:
            asked.setdefault((d.task, d.doc_id), set()).add(d.context)
        for place, contexts in asked.items():
            if place in known and not known[place] & contexts:
                raise ForeignReadouts(
                    f"readouts={self.folder} holds document {place[1]} of task {place[0]} with "
                    "another prompt (another split, number of examples, or chat template): give "
                    "every kind of prompt a directory of its own."
                )
        fresh = [d for d in documents if d.context not in known.get((d.task, d.doc_id), ())]
        if fresh:
            rows = [vars(d) for d in fresh]
            table = pa.Table.from_pylist(rows, schema=_DOCUMENT_SCHEMA)
            self._write(DOCUMENTS, table)

    def _known_documents(self) -> dict[tuple[str, int], set[bytes]]:
        known: dict[tuple[str, int], set[bytes]] = {}
        for _, table in self._good_parts(DOCUMENTS, _DOCUMENT_SCHEMA):
            columns = (table[name].to_pylist() for name in ("task", "doc_id", "context"))
            for task, doc_id, context in zip(*columns, strict=True):
                known.setdefault((task, doc_id), set()).add(context)
        return known

    # -- readouts ------------------------------------------------------------------------------

    def recall(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, Readout]]:
        """The readouts that are here, each once, part by part."""
        wanted = set(keys)
        for _, table in self._good_parts(READOUTS, _readout_schema(self.top_k)):
            rows = None
            for i, key in enumerate(table["prompt"].to_pylist()):
                if key in wanted:
                    wanted.remove(key)
                    rows = rows or _Rows(table)
                    yield key, rows[i]

    def add(self, key: bytes, readout: Readout) -> None:
        """Keep a readout; it reaches the disk with its part."""
        self._pending.append((key, readout))
        waited = time.monotonic() - self._flushed
        if waited > _PART_SECONDS or (len(self._pending) >= _PART_ROWS and not self._failed):
            self.flush()

    def flush(self) -> None:
        """Write what waits in memory. A disk that is full keeps nobody from finishing a run."""
        if not self._pending:
            return
        self._flushed = time.monotonic()
        try:
            self._write(READOUTS, _table_of(self._pending, self.top_k))
        except OSError as error:
            (logger.debug if self._failed else logger.error)(
                "readouts=%s cannot be written to (%s): the run goes on, its scores are not "
                "affected; writing is tried again from time to time.",
                self.folder,
                _first_line(error),
            )
            self._failed = True
            return
        self._pending.clear()
        self._failed = False

    def close(self) -> None:
        """Write the rest, and say so if that is impossible."""
        self.flush()
        if self._pending:
            logger.error(
                "%d readouts are missing in %s, which cannot be written to. The scores of this run "
                "are complete; run it again with space on the disk to complete the readouts.",
                len(self._pending),
                self.folder,
            )
            self._pending.clear()

    # -- parts ---------------------------------------------------------------------------------

    def _good_parts(self, kind: str, schema: pa.Schema) -> Iterator[tuple[Path, pa.Table]]:
        """Every part that can be used; the others are named and set aside."""
        for path in parts(self.folder, kind):
            if (table := self._usable(path, schema)) is not None:
                yield path, table

    def _usable(self, path: Path, schema: pa.Schema) -> pa.Table | None:
        try:
            table = _read_part(path, schema)
        except ForeignReadouts as problem:
            self._set_aside(path, str(problem))
            return None
        except FileNotFoundError:  # another process has set it aside just now
            return None
        if fingerprint_of(table) != self.fingerprint:
            self._set_aside(path, f"{path} is from another model or precision")
            return None
        return table

    def _set_aside(self, path: Path, why: str) -> None:
        target = self.folder / SET_ASIDE / path.name
        target.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another process was quicker
            os.replace(path, target)
            logger.warning("%s: moved to %s; what it held is computed again.", why, target)

    def _write(self, kind: str, table: pa.Table) -> None:
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"
        table = table.replace_schema_metadata({"fingerprint": self.fingerprint})
        _atomically(self.folder / kind / name, lambda path: _write_parquet(table, path))


class Recorder:
    """An engine that looks into a store first and keeps there what it reads.

    Args:
        engine: reads what is not there.
        store: open for the engine's model.
    """

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    def read(
        self,
        prompts: Sequence[Prompt],
        batch_size: int | None = 1,
        top_k: int | None = None,
        progress: Callable[[int], object] = lambda n: None,
    ) -> Iterator[tuple[int, Readout]]:
        """As `Engine.read`; `top_k` is the store's."""
        keys = [prompt_key(prompt) for prompt in prompts]
        places: dict[bytes, list[int]] = {}
        for index, key in enumerate(keys):
            places.setdefault(key, []).append(index)
        for key, readout in self._store.recall(places):
            for index in places.pop(key):
                yield index, readout
                progress(1)
        if len(places) < len(set(keys)):
            logger.info(
                "%d of %d prompts were found in %s.",
                len(set(keys)) - len(places),
                len(set(keys)),
                self._store.folder,
            )
        missing = [index for own in places.values() for index in own]
        try:
            found = self._engine.read(
                [prompts[i] for i in missing], batch_size, self._store.top_k, progress
            )
            for place, readout in found:
                self._store.add(keys[missing[place]], readout)
                yield missing[place], readout
        except NaNLogits as error:
            raise NaNLogits(missing[error.index]) from error
        finally:
            self._store.close()


# --------------------------------------------------------------------------------------------
# rows
# --------------------------------------------------------------------------------------------


def _table_of(pending: Sequence[tuple[bytes, Readout]], top_k: int) -> pa.Table:
    readouts = [readout for _, readout in pending]
    schema = _readout_schema(top_k)
    columns: dict[str, Any] = {"prompt": [key for key, _ in pending]}
    for name in _FIXED:
        stacked = np.stack([getattr(r, name) for r in readouts])
        columns[name] = pa.FixedSizeListArray.from_arrays(stacked.ravel(), stacked.shape[1])
    for name in _RAGGED:
        own = [getattr(r, name) for r in readouts]
        offsets = np.cumsum([0, *map(len, own)]).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(own)))
    for name in _SINGLE:
        columns[name] = [getattr(r, name) for r in readouts]
    return pa.table(columns, schema=schema)


class _Rows:
    """Rows of a part as readouts."""

    def __init__(self, table: pa.Table) -> None:
        self._fixed = {name: fixed_column(table, name) for name in _FIXED}
        self._ragged = {name: ragged_column(table, name) for name in _RAGGED}
        self._single = {name: table[name].to_numpy() for name in _SINGLE}

    def __getitem__(self, i: int) -> Readout:
        own: dict[str, Any] = {name: column[i] for name, column in self._fixed.items()}
        for name, (values, offsets) in self._ragged.items():
            own[name] = values[offsets[i] : offsets[i + 1]]
        for name, column in self._single.items():
            own[name] = float(column[i])
        return Readout(**own)


def fixed_column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column of lists of one length: [rows, length]."""
    column = table[name].combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    flat: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(table), -1)


def ragged_column(table: pa.Table, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A column of lists: all values, and where each row's begin [rows + 1]."""
    column = table[name].combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    offsets = np.asarray(column.offsets.to_numpy(), dtype=np.int64)
    values: NDArray[Any] = column.values.to_numpy(zero_copy_only=False)
    return values, offsets


# --------------------------------------------------------------------------------------------
# files
# --------------------------------------------------------------------------------------------


def _write_parquet(table: pa.Table, path: Path) -> None:
    split = [f"{name}.list.element" for name in ("topk_logprobs",) if name in table.column_names]
    pq.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=["task", "label_set"],
        use_byte_stream_split=split or False,
        write_page_checksum=True,
    )


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a whole file or none: under a temporary name, to the disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb+") as opened:
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _as_small_as_exact(matrix: torch.Tensor) -> torch.Tensor:
    """bfloat16 if that loses nothing, as for weights that were stored so and widened to run."""
    if matrix.dtype != torch.float32:
        return matrix
    for chunk in matrix.split(16384):
        if not torch.equal(chunk.to(torch.bfloat16).float(), chunk):
            return matrix
    return matrix.to(torch.bfloat16)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
