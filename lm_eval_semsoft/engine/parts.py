"""The files of a readouts directory: whole or not there, and known by their digests."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lm_eval_semsoft.core.errors import first_line

_DIGEST = re.compile(r"\d{20}-([0-9a-f]{16})\.parquet")  # the name of a part


class ForeignReadouts(ValueError):
    """The directory belongs to another model, another prompt, or another program."""


def parts(folder: Path, kind: str) -> list[Path]:
    """The finished files of a kind, oldest first."""
    return sorted((folder / kind).glob("*.parquet"))


def part_name(data: bytes) -> str:
    """A name that sorts by time and tells whether the bytes are still those."""
    return f"{time.time_ns():020d}-{_digest(data)}.parquet"


def read_part(path: Path, schema: pa.Schema, extra: str | None = None) -> pa.Table:
    """A part of a readouts directory.

    Args:
        path: of the part.
        schema: the columns that it must have.
        extra: name of a column that it may have as well, to be read where it is there; such a
            column costs nothing where it is not asked for.

    Raises:
        FileNotFoundError: it is gone, set aside by a run.
        OSError: it cannot be opened.
        ForeignReadouts: it is truncated, corrupt, or not a part of such a directory.
    """
    data = path.read_bytes()  # errors from here are the system's, and not the part's
    written = _DIGEST.fullmatch(path.name)
    if written and written[1] != _digest(data):
        raise ForeignReadouts(f"{path} is truncated or corrupt (other bytes than were written)")
    table = read_table(path, data, [*schema.names, *([extra] if extra else [])])
    if not table.select([n for n in table.column_names if n != extra]).schema.equals(schema):
        raise ForeignReadouts(f"{path} is not a part of this directory: it has other columns")
    return table


def read_table(path: Path, data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns, of those that are named, that a Parquet file's bytes hold.

    Raises:
        ForeignReadouts: it is truncated or corrupt; `path` names it.
    """
    try:
        opened = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        return opened.read(None if columns is None else list(columns))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ForeignReadouts(f"{path} is truncated or corrupt ({first_line(error)})") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def fingerprint_of(table: pa.Table) -> str:
    """The fingerprint that a part was written under, "" if it says none."""
    return (table.schema.metadata or {}).get(b"fingerprint", b"").decode(errors="replace")


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


def parquet_bytes(table: pa.Table) -> bytes:
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


def atomically(path: Path, write: Callable[[Path], object]) -> None:
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


def free_name(path: Path) -> Path:
    taken = 0
    free = path
    while os.path.lexists(free):
        taken += 1
        free = path.with_name(f"{path.stem}.{taken}{path.suffix}")
    return free


def encodable(text: str) -> str:
    """Half a surrogate pair has no place in a file."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
