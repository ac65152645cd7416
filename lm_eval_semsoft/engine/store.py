"""Readouts on disk: one forward pass answers every later question.

A directory holds one model's readouts:

    manifest.json           what they depend on, and the label sets of the tasks
    readouts/*.parquet      append-only parts, one row per distinct prompt
    answers/*.parquet       the same for generated answers, one row per prompt and sample
    documents/*.parquet     which document asked which prompts
    embeddings.safetensors  the output embeddings E [V, d], so that any kernel can be built later
    vocabulary.parquet      the text of every token
    set_aside/              files that could not be used, never deleted

Every file is written under a temporary name and renamed, so a killed run leaves whole files only,
and any number of processes may write: names never collide, and a prompt that two of them read is
simply there twice. A part's name ends in the digest of its bytes, which tells when it has rotted.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .manifest import MANIFEST, Manifest, folder_of
from .parts import (
    ForeignReadouts,
    atomically,
    encodable,
    fingerprint_of,
    first_line,
    free_name,
    parquet_bytes,
    part_name,
    parts,
    read_part,
    read_table,
)
from .readout import Readout
from .records import (
    ANSWER_SCHEMA,
    DOCUMENT_SCHEMA,
    GENERATED,
    HIDDEN,
    Answer,
    Asked,
    HiddenShape,
    ReadoutRows,
    StoredDocument,
    answers_in,
    documents_in,
    holds_hidden,
    readout_schema,
    table_of_answers,
    table_of_documents,
    table_of_readouts,
    text_key,
)

logger = logging.getLogger(__name__)

READOUTS = "readouts"
ANSWERS = "answers"
DOCUMENTS = "documents"
SET_ASIDE = "set_aside"
EMBEDDINGS = "embeddings.safetensors"
VOCABULARY = "vocabulary.parquet"
EMPTY = text_key("")

_KINDS = (READOUTS, ANSWERS, DOCUMENTS)  # of parts

_PART_ROWS = 1024  # rows that wait in memory for their part at most …
_PART_BYTES = 2**26  # … or of their captured activations
_PART_SECONDS = 10.0  # … and how long, or one batch: what a killed run has to do again
_LOCK_SECONDS = 60.0  # the manifest is locked for milliseconds
_STALE_SECONDS = 3600.0  # a temporary file that old belongs to a run that was killed


def read_documents(folder: Path) -> list[StoredDocument]:
    """All documents of a directory, each once and as it was asked last, by task and number.

    Raises:
        FileNotFoundError: there are no readouts.
        ForeignReadouts: a part cannot be read; it names the part.
    """
    fingerprint = Manifest.read(folder).fingerprint
    found: dict[Asked, StoredDocument] = {}
    for path in parts(folder, DOCUMENTS):
        try:
            table = read_part(path, DOCUMENT_SCHEMA)
        except FileNotFoundError:  # a run has set it aside just now
            continue
        except (OSError, ForeignReadouts) as error:
            raise ForeignReadouts(
                f"{first_line(error)}: which documents it held is unknown; run the evaluation "
                "again on this directory to write them once more."
            ) from error
        if fingerprint_of(table) == fingerprint:
            found.update(documents_in(table))
        else:
            logger.warning("%s is from another model: left out.", path)
    return [found[key] for key in sorted(found)]


def read_readouts(folder: Path, top_k: int, hidden: bool = False) -> Iterator[pa.Table]:
    """The parts of readouts, with captured activations if they are asked for and there.

    Raises:
        FileNotFoundError, ForeignReadouts: no readouts, or not ours; a part that cannot be used is
            only named in a warning.
    """
    yield from _tables(folder, READOUTS, readout_schema(top_k), HIDDEN if hidden else None)


def read_answers(folder: Path) -> dict[bytes, Answer]:
    """All generated answers of a directory, by `records.answer_key`.

    Raises:
        as `read_readouts`.
    """
    tables = _tables(folder, ANSWERS, ANSWER_SCHEMA, GENERATED)
    return {key: answer for table in tables for key, answer in answers_in(table)}


def _tables(
    folder: Path, kind: str, schema: pa.Schema, extra: str | None = None
) -> Iterator[pa.Table]:
    """The parts of a kind that can be used; the others are named."""
    fingerprint = Manifest.read(folder).fingerprint
    for path in parts(folder, kind):
        try:
            table = read_part(path, schema, extra)
        except FileNotFoundError:  # a run has set it aside just now
            continue
        except (OSError, ForeignReadouts) as problem:
            logger.warning("%s: left out; run the evaluation again on this directory.", problem)
            continue
        if fingerprint_of(table) == fingerprint:
            yield table
        else:
            logger.warning("%s is from another model: left out.", path)


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
        why = (manifest.about.get("no_embeddings") if missing else None) or first_line(error)
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
        texts: list[str] = read_table(path, path.read_bytes())["text"].to_pylist()
    except FileNotFoundError:
        return []
    except (OSError, ForeignReadouts, KeyError) as error:
        logger.warning("The texts of the tokens cannot be read: %s.", first_line(error))
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
        hidden: [layers, d] of the activations that this run captures; None = it captures none.

    Raises:
        ValueError: `folder` does not name a directory.
        ForeignReadouts: the directory holds the readouts of another model.
        OSError: there is nothing in it yet, and it cannot be written to.
    """

    def __init__(
        self,
        folder: str | Path,
        fingerprint: str,
        top_k: int,
        about: Mapping[str, Any],
        hidden: HiddenShape | None = None,
    ) -> None:
        self.folder = folder_of(folder)
        self.top_k = top_k
        self.fingerprint = fingerprint
        self.hidden = hidden
        self._about = {**about, **({"layers": list(hidden)} if hidden else {})}
        self._writes: deque[Callable[[], object]] = deque()  # manifest and documents, in order
        self._pending: list[tuple[bytes, Readout]] = []
        self._answers: list[tuple[bytes, Answer]] = []
        self._tried = time.monotonic()
        self._failed = False
        self._lock = FileLock(self.folder / ".lock", timeout=_LOCK_SECONDS)
        self._open()

    def _open(self) -> None:
        known = (self.folder / MANIFEST).exists()
        introduce = partial(self._update, lambda manifest: manifest.about.update(self._about))
        try:
            for kind in _KINDS:
                (self.folder / kind).mkdir(parents=True, exist_ok=True)
            introduce()
        except OSError as error:
            if not known:
                raise OSError(
                    f"readouts={self.folder} cannot be written to ({first_line(error)}): name "
                    "another directory, or make space there."
                ) from error
            self._complain(error)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what killed runs had begun to write."""
        for folder in (self.folder, *(self.folder / kind for kind in _KINDS)):
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
                first_line(error),
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
                problem = first_line(error)
            self._set_aside(path, f"{path} cannot be used ({problem})")
        kept = {"embeddings": _as_small_as_exact(matrix.cpu()).contiguous()}
        atomically(path, lambda temporary: self._write_matrix(kept, temporary))

    def _write_matrix(self, kept: dict[str, torch.Tensor], path: Path) -> None:
        try:
            save_file(kept, path, metadata={"fingerprint": self.fingerprint})
        except SafetensorError as error:  # a full disk, too
            raise OSError(first_line(error)) from error
        with suppress(OSError):  # it makes files for their owner alone
            path.chmod((self.folder / MANIFEST).stat().st_mode & 0o777)

    def _save_vocabulary(self, texts: Callable[[], Sequence[str]]) -> None:
        path = self.folder / VOCABULARY
        if path.exists():
            if read_vocabulary(self.folder):
                return
            self._set_aside(path, f"{path} cannot be used")
        try:
            own = [encodable(text) for text in texts()]
        except Exception as error:  # some tokenizer's own code: pictures lack words, no more
            logger.warning("The texts of the tokens cannot be stored: %s.", first_line(error))
            return
        data = parquet_bytes(pa.table({"text": pa.array(own, pa.string())}))
        atomically(path, lambda temporary: temporary.write_bytes(data))

    # -- who asks ------------------------------------------------------------------------------

    def save_tasks(
        self, tasks: Mapping[str, Mapping[str, Any]], label_sets: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Note the label sets of a run's tasks."""

        def change(manifest: Manifest) -> None:
            manifest.tasks.update({name: dict(task) for name, task in tasks.items()})
            manifest.label_sets.update({name: dict(own) for name, own in label_sets.items()})

        self._soon(lambda: self._update(change))

    def save_documents(self, documents: Iterable[StoredDocument]) -> None:
        """Note who asked what; documents that are there already are not written again.

        Raises:
            ForeignReadouts: the directory holds other prompts of the same documents.
        """
        documents = list(documents)
        known: dict[Asked, StoredDocument] = {}
        for table in self._good_parts(DOCUMENTS, DOCUMENT_SCHEMA):
            known.update(documents_in(table))
        self._check_prompts(known, documents)
        fresh = [d for d in documents if known.get((d.task, d.doc_id, d.context)) != d]
        for start in range(0, len(fresh), _PART_ROWS):
            table = table_of_documents(fresh[start : start + _PART_ROWS])
            self._soon(partial(self._write, DOCUMENTS, table))

    def _check_prompts(self, known: Iterable[Asked], documents: Sequence[StoredDocument]) -> None:
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
        """The readouts that are here, each once, with one part at a time in memory.

        A run that captures activations finds those that have some.
        """
        if not (wanted := set(keys)):
            return
        extra = HIDDEN if self.hidden else None
        for table in self._good_parts(READOUTS, readout_schema(self.top_k), extra):
            if self.hidden and not holds_hidden(table, self.hidden):
                continue
            rows = None
            for i, key in enumerate(table["prompt"].to_pylist()):
                if key in wanted:
                    wanted.remove(key)
                    rows = rows or ReadoutRows(table, self.hidden)
                    yield key, rows[i]

    def add(self, key: bytes, readout: Readout) -> None:
        """Keep a readout; it reaches the disk with its part."""
        self._pending.append((key, readout))
        if len(self._pending) >= self._part_rows() and not self._failed:
            self.flush()

    def _part_rows(self) -> int:
        layers, width = self.hidden or (0, 0)
        return max(1, min(_PART_ROWS, _PART_BYTES // (2 * layers * width or 1)))

    def recall_answers(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, Answer]]:
        """The generated answers that are here, each once."""
        if not (wanted := set(keys)):
            return
        for table in self._good_parts(ANSWERS, ANSWER_SCHEMA, GENERATED):
            for key, answer in answers_in(table):
                if key in wanted:
                    wanted.remove(key)
                    yield key, answer

    def add_answer(self, key: bytes, answer: Answer) -> None:
        """Keep a generated answer; it reaches the disk with its part."""
        self._answers.append((key, answer))
        if len(self._answers) >= _PART_ROWS and not self._failed:
            self.flush()

    def flush_if_due(self) -> None:
        """To be called after every batch."""
        if time.monotonic() - self._tried > _PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits in memory, if that is possible now."""
        self._tried = time.monotonic()
        if not (self._writes or self._pending or self._answers):
            return
        try:
            while self._writes:
                self._writes[0]()
                self._writes.popleft()
            while self._pending:
                n = self._part_rows()
                self._write(READOUTS, table_of_readouts(self._pending[:n], self.top_k))
                del self._pending[:n]
            while self._answers:
                self._write(ANSWERS, table_of_answers(self._answers[:_PART_ROWS]))
                del self._answers[:_PART_ROWS]
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
            first_line(error),
        )
        self._failed = True

    def close(self) -> None:
        """Write the rest, and say so if that is impossible."""
        self.flush()
        unwritten = len(self._pending) + len(self._answers)
        if unwritten or self._writes:
            logger.error(
                "readouts=%s is not complete (%s), because it cannot be written to. The scores of "
                "this run are; run it again with space on the disk to complete the readouts.",
                self.folder,
                f"{unwritten} readouts are missing" if unwritten else "its documents are not noted",
            )

    # -- parts ---------------------------------------------------------------------------------

    def _good_parts(
        self, kind: str, schema: pa.Schema, extra: str | None = None
    ) -> Iterator[pa.Table]:
        """Every part that can be used; the others are named and set aside."""
        for path in parts(self.folder, kind):
            if (table := self._usable(path, schema, extra)) is not None:
                yield table

    def _usable(self, path: Path, schema: pa.Schema, extra: str | None) -> pa.Table | None:
        try:
            table = read_part(path, schema, extra)
        except ForeignReadouts as problem:
            self._set_aside(path, str(problem))
            return None
        except FileNotFoundError:  # another process has set it aside just now
            return None
        except OSError as error:  # rights, a network file system: the part may be as good as new
            logger.warning(
                "%s cannot be read (%s): what it holds is computed again.", path, first_line(error)
            )
            return None
        if fingerprint_of(table) != self.fingerprint:
            self._set_aside(path, f"{path} is from another model or precision")
            return None
        return table

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            target = free_name(self.folder / SET_ASIDE / path.name)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
        except FileNotFoundError:  # another process was quicker
            return
        except OSError as error:
            where = f"it cannot be moved to {SET_ASIDE} ({first_line(error)})"
        else:
            where = f"moved to {target}"
        logger.warning("%s: %s; what it held is computed again.", why, where)

    def _write(self, kind: str, table: pa.Table) -> None:
        data = parquet_bytes(table.replace_schema_metadata({"fingerprint": self.fingerprint}))
        path = self.folder / kind / part_name(data)
        atomically(path, lambda temporary: temporary.write_bytes(data))


def _contexts(asked: Iterable[Asked]) -> dict[tuple[str, int], set[bytes]]:
    """The prompts of each document; an empty one, for unconditional scores, tells nothing."""
    found: dict[tuple[str, int], set[bytes]] = {}
    for task, number, context in asked:
        if context != EMPTY:
            found.setdefault((task, number), set()).add(context)
    return found


def _as_small_as_exact(matrix: torch.Tensor) -> torch.Tensor:
    """bfloat16 if that loses nothing, as for weights that were stored so and widened to run."""
    if matrix.dtype != torch.float32:
        return matrix
    for chunk in matrix.split(16384):
        if not torch.equal(chunk.to(torch.bfloat16).float(), chunk):
            return matrix
    return matrix.to(torch.bfloat16)
