"""Civil Comments (Borkan et al. 2019): is a comment toxic, and how many raters thought so.

Loader of ``civil_comments_ambiguous``. The rules (which rows, which few-shot examples) are in
``task_configs/civil_comments/README.md``.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import fewshot, metrics, soft_metrics
from lm_eval_semsoft.tasks.data import (
    BrokenData,
    DatasetSpec,
    HubFiles,
    LoadedRows,
    Row,
    broken_row,
    load_rows,
    read_csv,
    read_jsonl,
    warn_of_typos,
    warn_once,
)

logger = logging.getLogger(__name__)

LABELS = ("okay", "toxic")
SPLITS = {"test": "test", "validation": "validation", "dev": "validation", "train": "train"}
OPTIONS = ("split", "ambiguity", "max_rows")
AMBIGUOUS = (0.25, 0.75)
TOXIC_FROM = 0.5  # a comment is toxic if at least this share of its raters said so
SUBSAMPLE_SEED = 1234
DIGITS = 6  # of a fraction: the hub has single precision, other copies have six decimals
MAX_RATERS = 1_000_000  # of one comment; more is a mistake
TOLERANCE = 1e-6  # so that 1/3 as a bound meets .333333 as a fraction

FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "text": datasets.Value("string"),
        "toxicity": datasets.Value("float64"),
        "toxicity_annotator_count": datasets.Value("int64"),
        "label": datasets.Value("int64"),
        "labels": [datasets.Value("int64")],
        "source": datasets.Value("string"),
        "published_data": datasets.Value("int64"),
    }
)


def load(
    split: str = "test",
    ambiguity: Sequence[float] = AMBIGUOUS,
    max_rows: int | None = None,
    **other: Any,
) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAML; options come from ``--metadata``.

    Args:
        split: what is evaluated: ``test``, ``validation`` (or ``dev``), ``train``.
        ambiguity: [low, high]; only comments of which this share of raters said "toxic" are
            evaluated, bounds included.
        max_rows: evaluate a random (seeded) subset of that many comments; None evaluates all.
        other: what else the harness passes (model arguments, version, …); ignored.

    Returns:
        ``test``: the evaluated rows, whatever their split, with columns as in `FEATURES`;
        ``train``: one row that tells `LabelDiverseSampler` where examples are.

    Raises:
        ValueError: an option is unknown, or no row is left.
        DataUnavailable, BrokenData: see `lm_eval_semsoft.tasks.data.load_rows`.
    """
    chosen = SPLITS[check_choice("split", split, tuple(SPLITS))]
    band = _checked_band(ambiguity)
    _check_max_rows(max_rows)
    warn_of_typos("civil_comments", other, OPTIONS)
    loaded = load_rows(SPEC, chosen)
    where = {"split": chosen, "source": loaded.source, "low": band[0], "high": band[1]}
    return datasets.DatasetDict(
        test=_dataset(evaluation_rows(loaded, band, max_rows), loaded),
        train=datasets.Dataset.from_list([where]),
    )


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of one document, its text verbatim (a function: see `goemotions.doc_to_text`)."""
    return f"Comment: {doc['text']}\nTone:"


def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, metrics.Payload]:
    """Payloads of one document: those of every label-set task, and those against the raters."""
    payloads = metrics.process_results(doc, results)
    published = payloads.pop("published_data")
    shares = (1 - doc["toxicity"], doc["toxicity"])
    soft = soft_metrics.payloads(str(doc["id"]), results, shares)
    return {**payloads, **soft, "published_data": published}


# --- which rows ----------------------------------------------------------------------------------


def evaluation_rows(
    loaded: LoadedRows, band: tuple[float, float], max_rows: int | None
) -> list[Row]:
    """The rows that are scored, in the order of the file; duplicates stay, as published."""
    rows = [row for row in loaded.rows if row["text"].strip()]
    if empty := len(loaded.rows) - len(rows):
        warn_once(f"{loaded.path}: {empty} of {len(loaded.rows)} rows have no text; left out.")
    inside = [row for row in rows if _in_band(row, *band)]
    if not inside:
        fractions = [row["toxicity"] for row in rows] or [math.nan]
        raise ValueError(
            f"ambiguity={list(band)!r} leaves none of the {len(rows)} rows with text of "
            f"{loaded.path}: their fractions lie between {min(fractions):g} and "
            f"{max(fractions):g} ([0, 1] keeps everything)."
        )
    if max_rows is not None and max_rows < len(inside):
        kept = random.Random(SUBSAMPLE_SEED).sample(range(len(inside)), max_rows)
        inside = [inside[i] for i in sorted(kept)]
    n = len(loaded.rows)
    logger.info("civil_comments: %d of %d rows are scored (ambiguity=%s)", len(inside), n, band)
    return inside


def _in_band(row: Row, low: float, high: float) -> bool:
    return bool(low - TOLERANCE <= row["toxicity"] <= high + TOLERANCE)


def _checked_band(ambiguity: Any) -> tuple[float, float]:
    pair = list(ambiguity) if isinstance(ambiguity, (list, tuple)) else []
    if len(pair) == 2 and all(map(_is_number, pair)) and 0 <= pair[0] <= pair[1] <= 1:
        return float(pair[0]), float(pair[1])
    raise ValueError(
        f"ambiguity={ambiguity!r} is not known: use [low, high] with 0 <= low <= high <= 1, "
        f"such as {list(AMBIGUOUS)!r}, or [0, 1] for everything."
    )


def _check_max_rows(max_rows: Any) -> None:
    whole = isinstance(max_rows, int) and not isinstance(max_rows, bool) and max_rows >= 1
    if max_rows is not None and not whole:
        raise ValueError(f"max_rows={max_rows!r} is not known: use a whole number from 1, or none.")


# --- reading -------------------------------------------------------------------------------------


def read_file(path: Path) -> list[Row]:
    """Rows of a local copy or of the packaged sample: JSON lines, or CSV with a header.

    Needed are ``text`` and ``toxicity``; ``id`` and ``toxicity_annotator_count`` are used if they
    are there, other columns are ignored.

    Raises:
        BrokenData: not such a file, or a bad row.
    """
    if path.suffix == ".csv":
        return _with_ids(_row(path, n, _typed(row)) for n, row in read_csv(path))
    return _with_ids(_row(path, n, row) for n, row in read_jsonl(path))


def read_parquet_file(path: Path) -> list[Row]:
    """Rows of the hub's parquet: text, toxicity.

    Raises:
        BrokenData: not such a file, or a bad row.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=["text", "toxicity"])
    except (pyarrow.ArrowException, OSError) as error:
        raise BrokenData(f"{path}: expected parquet with text, toxicity ({error}).") from error
    rows = enumerate(table.to_pylist(), start=1)
    return _with_ids(_row(path, n, {**row, "text": row["text"] or ""}) for n, row in rows)


def _typed(row: Row) -> Row:
    """Numbers instead of a CSV's strings where they are numbers; an empty field is none."""
    typed = dict(row)
    for name in ("toxicity", "toxicity_annotator_count"):
        if name in typed:
            with contextlib.suppress(ValueError):  # `_row` says what is wrong with it
                typed[name] = float(typed[name]) if typed[name].strip() else None
    return typed


def _row(path: Path, number: int, row: Row) -> Row:
    """One checked row; its id may still be empty."""
    for name in ("text", "toxicity"):
        if name not in row:
            raise broken_row(path, number, f"a row with {name}", sorted(row))
    key = "" if row.get("id") is None else str(row["id"]).strip()
    text, fraction, raters = row["text"], row["toxicity"], row.get("toxicity_annotator_count")
    if not isinstance(text, str) or not _is_unicode(text + key):
        raise broken_row(path, number, "text to be a string of Unicode characters", text)
    if not _is_number(fraction) or not 0 <= fraction <= 1:
        raise broken_row(path, number, "toxicity to be a fraction of raters, 0 to 1", fraction)
    if raters is not None and not (_is_number(raters) and raters in range(1, MAX_RATERS + 1)):
        expected = "toxicity_annotator_count to be a number of raters"
        raise broken_row(path, number, expected, raters)
    fraction = round(float(fraction), DIGITS)
    label = int(fraction >= TOXIC_FROM)
    return {
        "id": key,
        "text": text,
        "toxicity": fraction,
        "toxicity_annotator_count": None if raters is None else int(raters),
        "label": label,
        "labels": [label],
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    """JSON can hold halves of characters ("\\ud83d"), which no tokenizer and no file takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_ids(rows: Iterator[Row]) -> list[Row]:
    """Rows with distinct ids: their own, or one made of the text; repeated ones are numbered."""
    repeats: Counter[str] = Counter()
    taken: set[str] = set()
    kept = []
    for row in rows:
        key = wanted = row["id"] or f"cc{hashlib.sha256(row['text'].encode()).hexdigest()[:16]}"
        while key in taken:
            repeats[wanted] += 1
            key = f"{wanted}-{repeats[wanted] + 1}"
        taken.add(key)
        kept.append({**row, "id": key})
    return kept


def _dataset(rows: Sequence[Row], loaded: LoadedRows) -> datasets.Dataset:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["source"] = [loaded.source] * len(rows)
    columns["published_data"] = [loaded.published] * len(rows)
    return datasets.Dataset.from_dict(columns, features=FEATURES)


SPEC = DatasetSpec(
    name="civil_comments",
    files={"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"},
    other_suffixes=(".csv",),
    read=read_file,
    hub=HubFiles(
        repo_id="google/civil_comments",
        revision="f2970eb3a55777454c94069077cc8d9b5866312d",
        files={
            "train": "data/train-00000-of-00002.parquet",  # half of the rows: more than enough
            "validation": "data/validation-00000-of-00001.parquet",
            "test": "data/test-00000-of-00001.parquet",
        },
        read=read_parquet_file,
    ),
    published_rows={"validation": 97320, "test": 97320},
)


class LabelDiverseSampler(fewshot.LabelDiverseSampler):
    """Reads its examples when the first one is asked for.

    The hub's train file has 194 MB, and a zero-shot run needs none of them. So `load` hands over
    one row that says which split is evaluated, from which source and in which band.
    """

    spec = SPEC

    def candidates(self) -> Sequence[Row]:
        (where,) = self.df
        loaded = load_rows(SPEC, where["split"], source=where["source"])
        band = where["low"], where["high"]
        return fewshot.fewshot_rows(
            SPEC, where["split"], loaded, keep=lambda row: _in_band(row, *band)
        )
