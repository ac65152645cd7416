"""Where the rows of a task come from: a local copy, the hub, or the packaged sample.

``load_rows`` walks through the sources in the order that ``SEMSOFT_DATA`` allows and
says which one it used, so that a task can report it (``published_data``). A task describes its
dataset once, as a `DatasetSpec`; everything here works for any dataset.

Environment:
    SEMSOFT_DATA      ``auto`` (default: local, hub, embedded), ``local``, ``hub`` or ``embedded``.
    SEMSOFT_DATA_DIR  the folder that holds local copies, one sub-folder per dataset.
    HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT, HF_TOKEN   work as everywhere else (huggingface_hub).
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm_eval_semsoft.core.errors import check_choice, first_line
from lm_eval_semsoft.engine.hub import hub_problem

logger = logging.getLogger(__name__)

Row = dict[str, Any]
RowReader = Callable[[Path], list[Row]]

SOURCES = ("local", "hub", "embedded")
EMBEDDED_DIR = Path(__file__).parent / "embedded"


class DataUnavailable(RuntimeError):
    """No allowed source has the data that was asked for; the message says how to get it."""


class BrokenData(ValueError):
    """A data file was found and cannot be read; the message names the file and the line."""


class _NotHere(Exception):
    """One source does not have the file (internal: the next source is tried)."""


@dataclass(frozen=True)
class HubFiles:
    """Parquet files of one dataset repository on the Hugging Face hub.

    Attributes:
        repo_id: ``owner/name``.
        revision: commit (40 hex digits), so that the data cannot change under a result; a branch
            only where no commit is known (the log has the file's SHA-256).
        files: split name -> path in the repository.
        read: turns one downloaded file into rows.
    """

    repo_id: str
    revision: str
    files: Mapping[str, str]
    read: RowReader


@dataclass(frozen=True)
class DatasetSpec:
    """All that `load_rows` must know of a dataset.

    Attributes:
        name: sub-folder of ``SEMSOFT_DATA_DIR`` and of the packaged samples.
        files: split name -> file name of a local copy and of the packaged sample.
        read: turns such a file into rows (raises `BrokenData`).
        hub: where the hub has it, or None.
        published_rows: split name -> rows of the published split; a local copy with another
            number is used, with a warning.
        other_suffixes: endings that the file name of a local copy (or of the packaged sample) may
            have instead, ``.csv``, say.
        origin: address of the published files, for the message that says how to get them; "" where
            the hub has them.
    """

    name: str
    files: Mapping[str, str]
    read: RowReader
    hub: HubFiles | None = None
    published_rows: Mapping[str, int] = field(default_factory=dict)
    other_suffixes: Sequence[str] = ()
    origin: str = ""

    def local_names(self, split: str) -> list[str]:
        """File names that a local copy of the split may have, the first one first."""
        name = self.files[split]
        return [name, *(str(Path(name).with_suffix(s)) for s in self.other_suffixes)]


@dataclass(frozen=True)
class LoadedRows:
    """Rows of one split and where they came from.

    Attributes:
        rows: one dict per row, as the dataset's reader makes them.
        source: ``local``, ``hub`` or ``embedded``.
        path: the file that was read.
        sha256: of that file's bytes.
    """

    rows: list[Row]
    source: str
    path: Path
    sha256: str

    @property
    def published(self) -> int:
        """1 for published data, 0 for a sample that we wrote ourselves."""
        return int(self.source != "embedded")


def load_rows(spec: DatasetSpec, split: str, source: str | None = None) -> LoadedRows:
    """Read one split from the first allowed source that has it.

    Args:
        spec: the dataset.
        split: a key of ``spec.files``.
        source: ``local``, ``hub`` or ``embedded`` forces one; None takes ``SEMSOFT_DATA``.

    Raises:
        DataUnavailable: no allowed source has the split. Without a network this takes at most
            about `engine.hub.PROBE_SECONDS`, once per process.
        BrokenData: a file was found and is broken.
        ValueError: ``SEMSOFT_DATA`` is not a known source.
    """
    wanted = source or requested_source()
    reasons: list[str] = []
    for candidate in SOURCES if wanted == "auto" else (wanted,):
        try:
            path = _FINDERS[candidate](spec, split)
        except _NotHere as reason:
            reasons.append(f"{candidate}: {reason}")
            continue
        loaded = _read(spec, path, candidate)
        _announce(spec, split, loaded, "; ".join(reasons) or f"SEMSOFT_DATA={wanted}")
        return loaded
    raise DataUnavailable(_how_to_get(spec, split, reasons))


def load_file(spec: DatasetSpec, path: Path) -> LoadedRows:
    """Read one file that the user names, wherever it lies, as a local copy.

    Raises:
        DataUnavailable: there is no such file.
        BrokenData: it is broken.
    """
    if not path.is_file():
        raise DataUnavailable(f"{spec.name}: there is no file {path}.")
    loaded = _read(spec, path, "local")
    _announce(spec, path.name, loaded, "named by the user")
    return loaded


def requested_source() -> str:
    """``SEMSOFT_DATA``, checked; ``auto`` when it is unset or empty."""
    given = os.environ.get("SEMSOFT_DATA") or "auto"
    return check_choice("SEMSOFT_DATA", given, ("auto", *SOURCES))


# --- finding a file ------------------------------------------------------------------------------


def _find_local(spec: DatasetSpec, split: str) -> Path:
    root = local_root()
    if root is None:
        raise _NotHere("SEMSOFT_DATA_DIR is not set")
    folder = root / spec.name
    for name in spec.local_names(split):
        if (folder / name).is_file():
            return folder / name
    raise _NotHere(f"there is no file {folder / _either(spec, split)}")


def local_root() -> Path | None:
    """The folder of local copies; None where ``SEMSOFT_DATA_DIR`` is not set.

    Raises:
        DataUnavailable: it names no folder.
    """
    root = os.environ.get("SEMSOFT_DATA_DIR")
    if not root:
        return None
    if not Path(root).expanduser().is_dir():
        raise DataUnavailable(f"SEMSOFT_DATA_DIR={root!r} is not a folder.")
    return Path(root).expanduser()


def _find_embedded(spec: DatasetSpec, split: str) -> Path:
    path = _sample(spec, split)
    if path is None:
        raise _NotHere("no sample of it is packaged")
    return path


def _sample(spec: DatasetSpec, split: str) -> Path | None:
    """The packaged sample of a split, if there is one."""
    paths = (EMBEDDED_DIR / spec.name / name for name in spec.local_names(split))
    return next((path for path in paths if path.is_file()), None)


def _find_hub(spec: DatasetSpec, split: str) -> Path:
    """The hub's file: from its cache, else downloaded (atomic, resumable, by huggingface_hub)."""
    if spec.hub is None or split not in spec.hub.files:
        raise _NotHere("the hub does not have it")
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _hub_file(spec.hub, split, local_files_only=True)
    except LocalEntryNotFoundError:
        pass
    if constants.HF_HUB_OFFLINE:
        raise _NotHere(f"HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not hold it")
    if problem := hub_problem(constants.ENDPOINT):
        raise _NotHere(problem)
    try:
        return _hub_file(spec.hub, split)
    except Exception as error:  # any failure of a download means: this source is not available
        raise _NotHere(f"{type(error).__name__}: {first_line(error)}") from error


def _hub_file(hub: HubFiles, split: str, local_files_only: bool = False) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            hub.repo_id,
            hub.files[split],
            repo_type="dataset",
            revision=hub.revision,
            local_files_only=local_files_only,
        )
    )


_FINDERS: dict[str, Callable[[DatasetSpec, str], Path]] = {
    "local": _find_local,
    "hub": _find_hub,
    "embedded": _find_embedded,
}


# --- reading a file ------------------------------------------------------------------------------


def _read(spec: DatasetSpec, path: Path, source: str) -> LoadedRows:
    digest = sha256(path)
    if source == "hub":
        assert spec.hub is not None
        _check_blob(path, digest)
        rows = spec.hub.read(path)
    else:
        rows = spec.read(path)
    if not rows:
        raise BrokenData(f"{path} holds no rows.")
    return LoadedRows(rows, source, path, digest)


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check_blob(path: Path, digest: str) -> None:
    """The hub's cache names large files by their SHA-256: a free check against damage."""
    blob = path.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", blob.name) and blob.name != digest:
        raise BrokenData(
            f"{blob} is damaged (its SHA-256 is {digest}, the hub says {blob.name}); "
            "delete that file and start again."
        )


def read_tsv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, fields) of a tab-separated file without header.

    Nothing is interpreted: quotes are text, "NA" is text, and only ``\\n`` ends a line (one
    ``\\r`` before it is dropped), so U+2028 and the like stay inside a comment. A UTF-8 byte-order
    mark is skipped.

    Raises:
        BrokenData: not UTF-8, or a line with another number of fields than ``columns``.
    """
    expected = f"{len(columns)} tab-separated fields ({', '.join(columns)})"
    for number, line in _lines(path):
        fields = line.removesuffix("\r").split("\t")
        if len(fields) != len(columns):
            raise broken_row(path, number, expected, line)
        yield number, fields


def read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number from 1, object) of a file with one JSON object per line.

    Lines without anything in them are skipped; only ``\\n`` ends a line, as in `read_tsv`.

    Raises:
        BrokenData: not UTF-8, or a line that is no JSON object.
    """
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise broken_row(path, number, "a JSON object", line)
        yield number, row


def read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (number of the row's first line, header -> field) of a comma-separated file.

    The first line is the header. Fields are strings; quoted ones may hold line breaks.

    Raises:
        BrokenData: not UTF-8, no CSV, or a row with another number of fields than the header.
    """
    reader = csv.reader(io.StringIO(_decode(path), newline=""), strict=True)
    header: list[str] = []
    end = 0
    try:
        for fields in reader:
            start, end = end + 1, reader.line_num
            if not fields:
                continue
            if not header:
                header = [name.strip() for name in fields]
                continue
            if len(fields) != len(header):
                expected = f"{len(header)} comma-separated fields ({', '.join(header)})"
                raise broken_row(path, start, expected, ",".join(fields))
            yield start, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise BrokenData(f"{path}, line {end + 1}: expected CSV ({error}).") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    lines = _decode(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return enumerate(lines, start=1)


def _decode(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw[: error.start].count(b"\n") + 1
        found = repr(raw[error.start : error.end])
        raise BrokenData(f"{path}, line {number}: expected UTF-8 text, found {found}.") from error


def broken_row(path: Path, number: int, expected: str, found: object) -> BrokenData:
    """The error for one bad row: file, line (or row) number, what was expected, what is there."""
    shown = repr(found)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    return BrokenData(f"{path}, line {number}: expected {expected}, found {shown}.")


# --- what the user is told -----------------------------------------------------------------------

_told: set[str] = set()


def warn_once(message: str) -> None:
    """Log ``message`` as a warning the first time that this process meets it."""
    if message not in _told:
        _told.add(message)
        logger.warning(message)


def _announce(spec: DatasetSpec, split: str, loaded: LoadedRows, why: str) -> None:
    n = len(loaded.rows)
    logger.info(
        "%s/%s: %d rows, source %s, %s (sha256 %s)",
        spec.name,
        split,
        n,
        loaded.source,
        loaded.path,
        loaded.sha256,
    )
    if not loaded.published:
        _warn_embedded(spec, split, why)
    published = spec.published_rows.get(split, n)
    if loaded.published and n != published:
        warn_once(
            f"{spec.name}/{split}: {loaded.path} has {n} rows, the published split has {published}."
        )


def _warn_embedded(spec: DatasetSpec, split: str, why: str) -> None:
    """Once per dataset, whichever split comes first."""
    if f"embedded {spec.name}" in _told:
        return
    _told.add(f"embedded {spec.name}")
    logger.warning(
        "%s: USING THE EMBEDDED SAMPLE, NOT THE PUBLISHED DATA. We wrote it for demonstrations and "
        "tests; do not report figures from it (metric published_data = 0). Why: %s. %s",
        spec.name,
        why,
        _ways_out(spec, split, sample=False),
    )


def _how_to_get(spec: DatasetSpec, split: str, reasons: Sequence[str]) -> str:
    sample = _sample(spec, split) is not None
    tried = "; ".join(reasons)
    return f"No data for {spec.name}/{split} ({tried}). {_ways_out(spec, split, sample)}"


def _ways_out(spec: DatasetSpec, split: str, sample: bool) -> str:
    origin = f" (from {spec.origin})" if spec.origin else ""
    ways = [
        f"set SEMSOFT_DATA_DIR to a folder that holds the published file{origin} as "
        f"{spec.name}/{_either(spec, split)}"
    ]
    if spec.hub is not None:
        ways.append(
            f"run once with access to the Hugging Face hub ({spec.hub.repo_id}; later runs use its "
            "cache)"
        )
    if sample:
        ways.append("set SEMSOFT_DATA=embedded for a small sample that is not the published data")
    return f"To get it: {', or '.join(ways)}."


def _either(spec: DatasetSpec, split: str) -> str:
    return " or ".join(spec.local_names(split))


def warn_of_typos(task: str, given: Iterable[str], options: Sequence[str]) -> None:
    """Unknown options cannot be refused (model arguments arrive too), near misses can tell."""
    for name in given:
        if near := difflib.get_close_matches(name, options, n=1, cutoff=0.8):
            logger.warning("%s: the option %r is ignored; is %r meant?", task, name, near[0])
