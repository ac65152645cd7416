"""Readouts on disk: one forward pass answers every later question.

A directory holds one model's readouts:

    manifest.json           what they depend on, and the label sets of the tasks
    readouts/*.parquet      append-only parts, one row per distinct prompt
    documents/*.parquet     which document asked which prompts
    embeddings.safetensors  the output embeddings E [V, d], so that any kernel can be built later
    vocabulary.parquet      the text of every token
    set_aside/              files that could not be used, never deleted

Every file is written under a temporary name and renamed, so a killed run leaves whole files only,
and any number of processes may write: names never collide, and a prompt that two of them read is
simply there twice. A part's name ends in the digest of its bytes, which tells when it has rotted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

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
_PART_ROWS = 1024  # rows that wait in memory for their part at most …
_PART_SECONDS = 10.0  # … and how long, or one batch: what a killed run has to do again
_LOCK_SECONDS = 60.0  # the manifest is locked for milliseconds
_STALE_SECONDS = 3600.0  # a temporary file that old belongs to a run that was killed
_DIGEST = re.compile(r"\d{20}-([0-9a-f]{16})\.parquet")  # the name of a part


class ForeignReadouts(ValueError):
    """The directory belongs to another model, another prompt, or another program."""


def folder_of(given: object) -> Path:
    """The directory that `readouts=` names; it need not exist yet.

    Raises:
        ValueError: it names none, or something else is there.
        ForeignReadouts: what is there was not written by this program.
    """
    text = str(given).strip()
    if isinstance(given, bool) or not text:
        raise ValueError(f"readouts={given!r}: name a directory, such as readouts=readouts/gemma.")
    try:
        folder = Path(text).expanduser()
    except RuntimeError as error:  # "~nobody"
        raise ValueError(f"readouts={given}: {error}") from error
    for path in (folder, *folder.parents):
        if os.path.lexists(path):
            if not path.is_dir():
                raise ValueError(f"readouts={given}: {path} is there and is not a directory.")
            break
    if (folder / MANIFEST).exists():
        Manifest.read(folder)
    return folder


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


_EMPTY = text_key("")


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
            ForeignReadouts: it cannot be read, or is not one of ours.
        """
        path = folder / MANIFEST
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            return cls(**record)._checked()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{folder} holds no readouts ({MANIFEST} is missing): run the evaluation with "
                f"--model_args …,readouts={folder} first."
            ) from None
        except OSError as error:
            raise ForeignReadouts(f"{path} cannot be read ({_first_line(error)}).") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForeignReadouts(
                f"{path} is damaged or was not written by this version of semsoft "
                f"({_first_line(error)}): use another directory, or, if the readouts here are "
                "your own, delete this file and run the evaluation on them again (readouts of "
                "other models are told apart by their own fingerprints)."
            ) from error

    def _checked(self) -> Manifest:
        kinds = {"fingerprint": str, "about": dict, "label_sets": dict, "tasks": dict}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"its {name!r} is not of the right kind")
        return self

    def write(self, folder: Path) -> None:
        record = {"format": FORMAT, **vars(self)}
        try:
            data = json.dumps(record, indent=1, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, from a path or a label
            data = json.dumps(record, indent=1).encode()
        _atomically(folder / MANIFEST, lambda path: path.write_bytes(data))


_Asked = tuple[str, int, bytes]  # task, number, context


def read_documents(folder: Path) -> list[StoredDocument]:
    """All documents of a directory, each once and as it was asked last, by task and number.

    Raises:
        FileNotFoundError: there are no readouts.
        ForeignReadouts: a part cannot be read; it names the part.
    """
    fingerprint = Manifest.read(folder).fingerprint
    found: dict[_Asked, StoredDocument] = {}
    for path in parts(folder, DOCUMENTS):
        try:
            table = _read_part(path, _DOCUMENT_SCHEMA)
        except FileNotFoundError:  # a run has set it aside just now
            continue
        except (OSError, ForeignReadouts) as error:
            raise ForeignReadouts(
                f"{_first_line(error)}: which documents it held is unknown; run the evaluation "
                "again on this directory to write them once more."
            ) from error
        if fingerprint_of(table) == fingerprint:
            found.update(_documents_in(table))
        else:
            logger.warning("%s is from another model: left out.", path)
    return [found[key] for key in sorted(found)]


def _documents_in(table: pa.Table) -> Iterator[tuple[_Asked, StoredDocument]]:
    for row in table.to_pylist():
        for name in ("labels", "prompts", "places"):
            row[name] = tuple(row[name])
        document = StoredDocument(**row)
        yield (document.task, document.doc_id, document.context), document


def parts(folder: Path, kind: str) -> list[Path]:
    """The finished files of a kind, oldest first."""
    return sorted((folder / kind).glob("*.parquet"))


def read_readouts(path: Path, top_k: int) -> pa.Table:
    """One part, as a table.

    Raises:
        FileNotFoundError: it is gone, set aside by a run.
        OSError: it cannot be opened.
        ForeignReadouts: it is truncated, corrupt, or not a part of such a directory.
    """
    return _read_part(path, _readout_schema(top_k))


def _read_part(path: Path, schema: pa.Schema) -> pa.Table:
    data = path.read_bytes()  # errors from here are the system's, and not the part's
    written = _DIGEST.fullmatch(path.name)
    if written and written[1] != _digest(data):
        raise ForeignReadouts(f"{path} is truncated or corrupt (other bytes than were written)")
    table = _parse(path, data)
    if not table.schema.equals(schema):
        raise ForeignReadouts(f"{path} is not a part of this directory: it has other columns")
    return table


def _parse(path: Path, data: bytes) -> pa.Table:
    try:
        opened = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        return opened.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ForeignReadouts(f"{path} is truncated or corrupt ({_first_line(error)})") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def fingerprint_of(table: pa.Table) -> str:
    """The fingerprint that a part was written under, "" if it says none."""
    return (table.schema.metadata or {}).get(b"fingerprint", b"").decode(errors="replace")


def read_embeddings(folder: Path) -> torch.Tensor:
    """E [V, d] of the model that the readouts are from.

    Raises:
        FileNotFoundError: there are no readouts.
        ForeignReadouts: there is no E, or it cannot be read.
    """
    manifest = Manifest.read(folder)
    path = folder / EMBEDDINGS
    try:
        with safe_open(path, framework="pt") as opened:
            _check_own(opened, manifest.fingerprint)
            return opened.get_tensor("embeddings")
    except (OSError, SafetensorError, ForeignReadouts) as error:
        missing = isinstance(error, FileNotFoundError)
        why = (manifest.about.get("no_embeddings") if missing else None) or _first_line(error)
        raise ForeignReadouts(
            f"{path}, the output embeddings, cannot be read ({why}): only constrained scores can "
            "be computed from these readouts; run the evaluation on this directory again."
        ) from error


def _check_own(opened: Any, fingerprint: str) -> None:
    written = (opened.metadata() or {}).get("fingerprint", fingerprint)
    if written != fingerprint:
        raise ForeignReadouts("it is from another model")


def read_vocabulary(folder: Path) -> list[str]:
    """The text of every token, [V], not always distinct; empty if it cannot be had."""
    path = folder / VOCABULARY
    try:
        texts: list[str] = _parse(path, path.read_bytes())["text"].to_pylist()
    except FileNotFoundError:
        return []
    except (OSError, ForeignReadouts, KeyError) as error:
        logger.warning("The texts of the tokens cannot be read: %s.", _first_line(error))
        return []
    return texts


# --------------------------------------------------------------------------------------------
# writing
# --------------------------------------------------------------------------------------------


class Store:
    """One directory of readouts, open for a run.

    A disk that is full, or that may not be written to, keeps nobody from finishing a run: what
    cannot be written waits in memory, and is tried again.

    Args:
        folder: is made if it does not exist.
        fingerprint: of what the readouts depend on.
        top_k: K, tokens per readout.
        about: see `Manifest`.

    Raises:
        ValueError: `folder` does not name a directory.
        ForeignReadouts: the directory holds the readouts of another model.
        OSError: there is nothing in it yet, and it cannot be written to.
    """

    def __init__(
        self, folder: str | Path, fingerprint: str, top_k: int, about: Mapping[str, Any]
    ) -> None:
        self.folder = folder_of(folder)
        self.top_k = top_k
        self.fingerprint = fingerprint
        self._about = dict(about)
        self._writes: deque[Callable[[], object]] = deque()  # manifest and documents, in order
        self._pending: list[tuple[bytes, Readout]] = []
        self._tried = time.monotonic()
        self._failed = False
        self._lock = FileLock(self.folder / ".lock", timeout=_LOCK_SECONDS)
        self._open()

    def _open(self) -> None:
        known = (self.folder / MANIFEST).exists()
        introduce = partial(self._update, lambda manifest: manifest.about.update(self._about))
        try:
            for kind in (READOUTS, DOCUMENTS):
                (self.folder / kind).mkdir(parents=True, exist_ok=True)
            introduce()
        except OSError as error:
            if not known:
                raise OSError(
                    f"readouts={self.folder} cannot be written to ({_first_line(error)}): name "
                    "another directory, or make space there."
                ) from error
            self._complain(error)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what killed runs had begun to write."""
        for folder in (self.folder, self.folder / READOUTS, self.folder / DOCUMENTS):
            for path in (*folder.glob(".*.tmp"), *folder.glob(".tmp*")):  # safetensors' own, too
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                        path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process after the other, where the file system has locks.

        Without them, two processes that begin at the same moment may forget a label set; every
        file is still whole.
        """
        try:
            self._lock.acquire()
        except (OSError, NotImplementedError, Timeout) as error:
            logger.debug("%s cannot be locked: %s", self.folder, error)
            yield
            return
        try:
            yield
        finally:
            self._lock.release()

    def _update(self, change: Callable[[Manifest], object]) -> None:
        """Read, change and write the manifest."""
        with self._locked():
            try:
                manifest = Manifest.read(self.folder)
            except FileNotFoundError:
                manifest = Manifest(self.fingerprint)
                before = ""
            else:
                self._check_own(manifest)
                before = json.dumps(vars(manifest))
            change(manifest)
            if json.dumps(vars(manifest)) != before:
                manifest.write(self.folder)

    def _check_own(self, manifest: Manifest) -> None:
        if manifest.fingerprint == self.fingerprint:
            return
        theirs, own = (
            f"{about.get('model', 'another model')} ({about.get('dtype', '?')}, "
            f"K {about.get('top_k', '?')})"
            for about in (manifest.about, self._about)
        )
        named = f"of {own}" if own != theirs else "of this one: its weights or configuration differ"
        raise ForeignReadouts(
            f"readouts={self.folder} holds readouts of {theirs}, not {named}. Give every model, "
            "precision and K a directory of its own."
        )

    # -- the model's side ----------------------------------------------------------------------

    def save_model(
        self, embeddings: Callable[[], torch.Tensor], texts: Callable[[], Sequence[str]]
    ) -> None:
        """Keep E and the texts of the tokens, unless they are there.

        An E that cannot be had (quantised, offloaded) is noted in the manifest; what cannot be
        written now is tried again by the next run.
        """
        try:
            self._save_vocabulary(texts)
            self._save_embeddings(embeddings)
        except OSError as error:
            logger.error(
                "The output embeddings cannot be written to %s (%s): only constrained scores can "
                "be computed from its readouts, until a run on it finds space.",
                self.folder,
                _first_line(error),
            )

    def _save_embeddings(self, embeddings: Callable[[], torch.Tensor]) -> None:
        path = self.folder / EMBEDDINGS
        try:
            matrix = embeddings()
        except ValueError as error:
            reason = str(error)
            self._soon(
                lambda: self._update(lambda manifest: manifest.about.update(no_embeddings=reason))
            )
            return
        if path.exists():
            try:
                with safe_open(path, framework="pt") as opened:
                    _check_own(opened, self.fingerprint)
                    if opened.get_slice("embeddings").get_shape() == list(matrix.shape):
                        return
                problem = "it has another shape"
            except (SafetensorError, ForeignReadouts) as error:
                problem = _first_line(error)
            self._set_aside(path, f"{path} cannot be used ({problem})")
        kept = {"embeddings": _as_small_as_exact(matrix.cpu()).contiguous()}
        _atomically(path, lambda temporary: self._write_matrix(kept, temporary))

    def _write_matrix(self, kept: dict[str, torch.Tensor], path: Path) -> None:
        try:
            save_file(kept, path, metadata={"fingerprint": self.fingerprint})
        except SafetensorError as error:  # a full disk, too
            raise OSError(_first_line(error)) from error
        with suppress(OSError):  # it makes files for their owner alone
            path.chmod((self.folder / MANIFEST).stat().st_mode & 0o777)

    def _save_vocabulary(self, texts: Callable[[], Sequence[str]]) -> None:
        path = self.folder / VOCABULARY
        if path.exists():
            if read_vocabulary(self.folder):
                return
            self._set_aside(path, f"{path} cannot be used")
        try:
            own = [_encodable(text) for text in texts()]
        except Exception as error:  # some tokenizer's own code: pictures lack words, no more
            logger.warning("The texts of the tokens cannot be stored: %s.", _first_line(error))
            return
        data = _parquet(pa.table({"text": pa.array(own, pa.string())}))
        _atomically(path, lambda temporary: temporary.write_bytes(data))

    # -- who asks ------------------------------------------------------------------------------

    def save_tasks(
        self, tasks: Mapping[str, Mapping[str, Any]], label_sets: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Note the label sets of a run's tasks."""

        def change(manifest: Manifest) -> None:
            manifest.tasks.update({name: dict(task) for name, task in tasks.items()})
            manifest.label_sets.update({name: dict(own) for name, own in label_sets.items()})

        self._soon(lambda: self._update(change))

    def save_documents(self, documents: Sequence[StoredDocument]) -> None:
        """Note who asked what; documents that are there already are not written again.

        Raises:
            ForeignReadouts: the directory holds other prompts of the same documents.
        """
        known: dict[_Asked, StoredDocument] = {}
        for table in self._good_parts(DOCUMENTS, _DOCUMENT_SCHEMA):
            known.update(_documents_in(table))
        self._check_prompts(known, documents)
        fresh = [d for d in documents if known.get((d.task, d.doc_id, d.context)) != d]
        for start in range(0, len(fresh), _PART_ROWS):
            table = _table_of_documents(fresh[start : start + _PART_ROWS])
            self._soon(partial(self._write, DOCUMENTS, table))

    def _check_prompts(self, known: Iterable[_Asked], documents: Sequence[StoredDocument]) -> None:
        """The same document with another prompt would be another experiment in the same place."""
        before, now = _contexts(known), _contexts((d.task, d.doc_id, d.context) for d in documents)
        for (task, number), contexts in now.items():
            if (stored := before.get((task, number))) and not stored & contexts:
                raise ForeignReadouts(
                    f"readouts={self.folder} holds document {number} of task {task} with another "
                    "prompt (another split, number of examples, or chat template): give every "
                    "kind of prompt a directory of its own."
                )

    # -- readouts ------------------------------------------------------------------------------

    def recall(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, Readout]]:
        """The readouts that are here, each once, with one part at a time in memory."""
        if not (wanted := set(keys)):
            return
        for table in self._good_parts(READOUTS, _readout_schema(self.top_k)):
            rows = None
            for i, key in enumerate(table["prompt"].to_pylist()):
                if key in wanted:
                    wanted.remove(key)
                    rows = rows or _Rows(table)
                    yield key, rows[i]

    def add(self, key: bytes, readout: Readout) -> None:
        """Keep a readout; it reaches the disk with its part."""
        self._pending.append((key, readout))
        if len(self._pending) >= _PART_ROWS and not self._failed:
            self.flush()

    def flush_if_due(self) -> None:
        """To be called after every batch."""
        if time.monotonic() - self._tried > _PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits in memory, if that is possible now."""
        self._tried = time.monotonic()
        if not (self._writes or self._pending):
            return
        try:
            while self._writes:
                self._writes[0]()
                self._writes.popleft()
            while self._pending:
                self._write(READOUTS, _table_of(self._pending[:_PART_ROWS], self.top_k))
                del self._pending[:_PART_ROWS]
        except (OSError, ForeignReadouts) as error:  # foreign: somebody took the directory over
            self._complain(error)
        else:
            if self._failed:
                logger.info("readouts=%s can be written to again.", self.folder)
            self._failed = False

    def _soon(self, write: Callable[[], object]) -> None:
        self._writes.append(write)
        if not self._failed:
            self.flush()

    def _complain(self, error: BaseException) -> None:
        """Once, until it has gone well again."""
        (logger.debug if self._failed else logger.error)(
            "readouts=%s cannot be written to (%s): the run goes on, its scores are not affected; "
            "writing is tried again from time to time.",
            self.folder,
            _first_line(error),
        )
        self._failed = True

    def close(self) -> None:
        """Write the rest, and say so if that is impossible."""
        self.flush()
        if self._pending or self._writes:
            logger.error(
                "readouts=%s is not complete (%s), because it cannot be written to. The scores of "
                "this run are; run it again with space on the disk to complete the readouts.",
                self.folder,
                f"{len(self._pending)} readouts are missing"
                if self._pending
                else "its documents are not noted",
            )

    # -- parts ---------------------------------------------------------------------------------

    def _good_parts(self, kind: str, schema: pa.Schema) -> Iterator[pa.Table]:
        """Every part that can be used; the others are named and set aside."""
        for path in parts(self.folder, kind):
            if (table := self._usable(path, schema)) is not None:
                yield table

    def _usable(self, path: Path, schema: pa.Schema) -> pa.Table | None:
        try:
            table = _read_part(path, schema)
        except ForeignReadouts as problem:
            self._set_aside(path, str(problem))
            return None
        except FileNotFoundError:  # another process has set it aside just now
            return None
        except OSError as error:  # rights, a network file system: the part may be as good as new
            logger.warning(
                "%s cannot be read (%s): what it holds is computed again.", path, _first_line(error)
            )
            return None
        if fingerprint_of(table) != self.fingerprint:
            self._set_aside(path, f"{path} is from another model or precision")
            return None
        return table

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            target = _free_name(self.folder / SET_ASIDE / path.name)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
        except FileNotFoundError:  # another process was quicker
            return
        except OSError as error:
            where = f"it cannot be moved to {SET_ASIDE} ({_first_line(error)})"
        else:
            where = f"moved to {target}"
        logger.warning("%s: %s; what it held is computed again.", why, where)

    def _write(self, kind: str, table: pa.Table) -> None:
        data = _parquet(table.replace_schema_metadata({"fingerprint": self.fingerprint}))
        path = self.folder / kind / f"{time.time_ns():020d}-{_digest(data)}.parquet"
        _atomically(path, lambda temporary: temporary.write_bytes(data))


def _contexts(asked: Iterable[_Asked]) -> dict[tuple[str, int], set[bytes]]:
    """The prompts of each document; an empty one, for unconditional scores, tells nothing."""
    found: dict[tuple[str, int], set[bytes]] = {}
    for task, number, context in asked:
        if context != _EMPTY:
            found.setdefault((task, number), set()).add(context)
    return found


# --------------------------------------------------------------------------------------------
# rows
# --------------------------------------------------------------------------------------------


def _table_of_documents(documents: Sequence[StoredDocument]) -> pa.Table:
    rows = [vars(d) for d in documents]
    try:
        return pa.Table.from_pylist(rows, schema=_DOCUMENT_SCHEMA)
    except UnicodeEncodeError:
        for row in (rows := [dict(row) for row in rows]):
            row["task"] = _encodable(row["task"])
            row["labels"] = tuple(map(_encodable, row["labels"]))
        return pa.Table.from_pylist(rows, schema=_DOCUMENT_SCHEMA)


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
    """Rows of a part as readouts, which do not keep the part in memory."""

    def __init__(self, table: pa.Table) -> None:
        self._fixed = {name: fixed_column(table, name) for name in _FIXED}
        self._ragged = {name: ragged_column(table, name) for name in _RAGGED}
        self._single = {name: table[name].to_numpy() for name in _SINGLE}

    def __getitem__(self, i: int) -> Readout:
        own: dict[str, Any] = {name: column[i].copy() for name, column in self._fixed.items()}
        for name, (values, offsets) in self._ragged.items():
            own[name] = values[offsets[i] : offsets[i + 1]].copy()
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


def _parquet(table: pa.Table) -> bytes:
    split = [f"{name}.list.element" for name in ("topk_logprobs",) if name in table.column_names]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["task", "label_set"],
        use_byte_stream_split=split or False,
        write_page_checksum=True,
        write_statistics=False,  # of no use here, and half a kilobyte in every part
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a whole file or none: under a temporary name, to the disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(temporary)
        _to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _to_disk(path: Path) -> None:
    with open(path, "rb+") as opened:
        try:
            os.fsync(opened.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # has no such thing
                raise


def _free_name(path: Path) -> Path:
    taken = 0
    free = path
    while os.path.lexists(free):
        taken += 1
        free = path.with_name(f"{path.stem}.{taken}{path.suffix}")
    return free


def _as_small_as_exact(matrix: torch.Tensor) -> torch.Tensor:
    """bfloat16 if that loses nothing, as for weights that were stored so and widened to run."""
    if matrix.dtype != torch.float32:
        return matrix
    for chunk in matrix.split(16384):
        if not torch.equal(chunk.to(torch.bfloat16).float(), chunk):
            return matrix
    return matrix.to(torch.bfloat16)


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _encodable(text: str) -> str:
    """Half a surrogate pair has no place in a file."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
