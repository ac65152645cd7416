"""General-knowledge questions with people's answers and response times (Coane & Umanath 2021).

Loaders of ``coane_mc`` (four options) and ``coane_oe`` (free response). The rules are in
``task_configs/coane_mc/README.md`` and ``task_configs/coane_oe/README.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import people
from lm_eval_semsoft.tasks.data import (
    BrokenData,
    DatasetSpec,
    Row,
    broken_row,
    load_rows,
    read_jsonl,
    warn_of_typos,
)

LETTERS = "ABCD"
# The published file spells one of the columns that nobody here needs MC_Human_Proc_Wrong.
TEXTS = ("Question", "Correct_Answer", "Correct_Answer_Text")
LISTS = ("Answers", "Answer_Ratios")
SHARES = ("MC_Human_Prop_Correct",)
FR_SHARES = tuple(f"FR_Human_Prop_{kind}" for kind in ("Correct", "Wrong", "DK", "DR"))
MC_TIMES = tuple(f"MC_Human_RT_{kind}" for kind in ("Correct", "Wrong", "Combined"))
FR_TIMES = tuple(f"FR_Human_RT_{kind}" for kind in ("Correct", "Wrong", "ANS"))
NUMBERS = (*SHARES, *FR_SHARES, *MC_TIMES, *FR_TIMES)
COLUMNS = (*TEXTS, *LISTS, *NUMBERS)
OPTIONS = ("duplicates", "log_times", "trim_times")
DUPLICATES = ("drop", "keep")


def load_mc(
    duplicates: str = "drop", log_times: bool = False, trim_times: Any = None, **other: Any
) -> datasets.DatasetDict:
    """The ``custom_dataset`` of ``coane_mc``; options come from ``--metadata``.

    Args:
        duplicates: ``drop`` leaves questions out of which a wrong option reads like the right one;
            ``keep`` counts either as right.
        log_times: response times become natural logarithms of milliseconds.
        trim_times: [low, high] in ms; times outside become NaN. None keeps all.
        other: what else the harness passes; ignored.

    Returns:
        ``test``: all questions, columns as in `people.FEATURES`.

    Raises:
        ValueError: an option is unknown.
        DataUnavailable, BrokenData: see `lm_eval_semsoft.tasks.data.load_rows`.
    """
    check_choice("duplicates", duplicates, DUPLICATES)
    times = people.time_rule(log_times, trim_times)
    warn_of_typos("coane_mc", other, OPTIONS)
    loaded = load_rows(SPEC, "all")
    rows, dropped = [], Counter[str]()
    for row in loaded.rows:
        document = mc_document(row)
        if duplicates == "drop" and len(document["labels"]) > 1:
            dropped["with a wrong option that reads like the right one"] += 1
        else:
            rows.append(document)
    return people.finish("coane_mc", rows, loaded, dropped, times)


def load_oe(log_times: bool = False, trim_times: Any = None, **other: Any) -> datasets.DatasetDict:
    """The ``custom_dataset`` of ``coane_oe``; arguments, result and errors as `load_mc`."""
    times = people.time_rule(log_times, trim_times)
    warn_of_typos("coane_oe", other, OPTIONS[1:])
    loaded = load_rows(SPEC, "all")
    return people.finish("coane_oe", map(oe_document, loaded.rows), loaded, times=times)


def mc_document(row: Row) -> Row:
    """A question with its four options, and what people did who saw them."""
    right = LETTERS.index(row["Correct_Answer"])
    correct, wrong, combined = (row[name] for name in MC_TIMES)
    return people.document(
        row["id"],
        row["Question"],
        options=row["Answers"],
        labels=people.right_options(row["Answers"], right),
        human_shares=people.normalised(row["Answer_Ratios"]),
        human_accuracy=row["MC_Human_Prop_Correct"],
        response_time_correct=correct,
        response_time_wrong=wrong,
        response_time=_combined(correct, wrong, combined, row["MC_Human_Prop_Correct"]),
    )


def oe_document(row: Row) -> Row:
    """A question without options, and what people did who had to recall the answer.

    ``human_shares`` are those who were right, wrong, did not know, did not remember.
    """
    correct, wrong, answered = (row[name] for name in FR_TIMES)
    shares = people.normalised([row[name] for name in FR_SHARES])
    return people.document(
        row["id"],
        row["Question"],
        human_shares=shares,
        human_accuracy=shares[0],
        response_time_correct=correct,
        response_time_wrong=wrong,
        response_time=answered,
        answers=[row["Correct_Answer_Text"]],
    )


def _combined(correct: float, wrong: float, combined: float, share: float) -> float:
    """The published mean over everybody; where it is missing, that of the only group there is."""
    if math.isnan(combined) and share in (0, 1):
        return correct if share == 1 else wrong
    return combined


# --- reading -------------------------------------------------------------------------------------


def read_file(path: Path) -> list[Row]:
    """Rows of the published parquet, or of JSON lines with the same columns (null: unknown).

    Each gets an ``id`` from its place in the file: ``coane000`` and so on.

    Raises:
        BrokenData: not such a file, or a bad row.
    """
    rows = read_jsonl(path) if path.suffix == ".jsonl" else enumerate(_parquet(path), start=1)
    return [_row(path, n, i, row) for i, (n, row) in enumerate(rows)]


def _parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[Row] = pyarrow.parquet.read_table(path, columns=list(COLUMNS)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        wanted = ", ".join(COLUMNS)
        raise BrokenData(f"{path}: expected parquet with {wanted} ({error}).") from error
    return rows


def _row(path: Path, number: int, place: int, row: Row) -> Row:
    if missing := [name for name in COLUMNS if name not in row]:
        raise broken_row(path, number, f"a row with {', '.join(missing)}", sorted(row))
    for name in TEXTS:
        if not isinstance(row[name], str) or not row[name].strip():
            raise broken_row(path, number, f"{name} to be a text", row[name])
    options = _strings(path, number, row["Answers"])
    right = row["Correct_Answer"].strip()
    if right not in LETTERS[: len(options)] or len(right) != 1:
        raise broken_row(path, number, "Correct_Answer to be A, B, C or D", right)
    shares = row["Answer_Ratios"]
    if not isinstance(shares, Sequence) or len(shares) != len(options) or not _are_shares(shares):
        raise broken_row(path, number, "Answer_Ratios to hold a share per answer", shares)
    numbers = {name: _number(path, number, name, row[name]) for name in NUMBERS}
    for name in SHARES:
        if numbers[name] > 1:
            raise broken_row(path, number, f"{name} to be a share from 0 to 1", row[name])
    if not _are_shares([numbers[name] for name in FR_SHARES]):
        raise broken_row(path, number, "free-response shares from 0 to 1", numbers)
    return {
        "id": f"coane{place:03}",
        "Question": row["Question"].strip(),
        "Answers": options,
        "Answer_Ratios": [float(share) for share in shares],
        "Correct_Answer": right,
        "Correct_Answer_Text": row["Correct_Answer_Text"].strip(),
        **numbers,
    }


def _strings(path: Path, number: int, values: Any) -> list[str]:
    texts = list(values) if isinstance(values, (list, tuple)) else []
    if len(texts) != len(LETTERS) or not all(isinstance(t, str) and t.strip() for t in texts):
        raise broken_row(path, number, f"Answers to be {len(LETTERS)} texts", values)
    return [text.strip() for text in texts]


def _are_shares(values: Sequence[Any]) -> bool:
    known = all(isinstance(v, (int, float)) and 0 <= v <= 1 for v in values)
    return known and math.fsum(values) > 0


def _number(path: Path, number: int, name: str, value: Any) -> float:
    if value is None:
        return math.nan
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value < 0 or math.isinf(value):
        raise broken_row(path, number, f"{name} to be a number from 0, or null", value)
    return float(value)


SPEC = DatasetSpec(
    name="coane",
    files={"all": "coane.parquet"},
    other_suffixes=(".jsonl",),
    read=read_file,
    published_rows={"all": 421},
    origin=(
        "https://github.com/KyleAMoore/LLM-UQ-Align-and-Calibrate/raw/"
        "a61e6899535516c5356b4f2b9592f88c5112fd25/Data/Coane/coane_data.parquet"
    ),
)
