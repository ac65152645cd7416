"""Exam questions with the share of candidates per option, from the user's own files.

Loader of ``camchoice``. The questions of the study of human-aligned uncertainty (CMCQRD, the
Cambridge reading data set) may not be passed on, so whoever has them names the file. The rules are
in ``task_configs/camchoice/README.md``.
"""

from __future__ import annotations

import glob
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.tasks import people
from lm_eval_semsoft.tasks.data import (
    DatasetSpec,
    DataUnavailable,
    LoadedRows,
    Row,
    broken_row,
    load_file,
    load_rows,
    local_root,
    read_jsonl,
    requested_source,
    warn_of_typos,
)
from lm_eval_semsoft.tasks.multiple_choice import LETTERS

PERCENT_FROM = 1.5  # shares with a larger sum are percentages
SUMS = (0.9, 1.1)  # published shares are rounded; further off, something is missing

NO_SHARES = "without a share for every option"
ODD_SUM = f"with shares whose sum is not {SUMS[0]} to {SUMS[1]}"
REPEATED = "asked before (of several grades the highest stays)"


def load(path: str | Sequence[str] | None = None, **other: Any) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAML; options come from ``--metadata``.

    Args:
        path: a JSONL file, a folder of them, a pattern with ``*``, or a list of those. None takes
            ``SEMSOFT_DATA_DIR/camchoice/*.jsonl``, else the packaged sample.
        other: what else the harness passes; ignored.

    Returns:
        ``test``: columns as in `people.FEATURES`.

    Raises:
        ValueError: `path` is neither, or no question is left.
        DataUnavailable: there is no such file.
        BrokenData: a file has neither of the two layouts.
    """
    warn_of_typos("camchoice", other, ("path",))
    loaded = _load(path)
    dropped: Counter[str] = Counter()
    kept: dict[tuple[str, ...], Row] = {}
    for row in loaded.rows:
        shares = _shares(row["shares"])
        if isinstance(shares, str):
            dropped[shares] += 1
            continue
        same = (row["question"], *row["options"])
        if same in kept:
            dropped[REPEATED] += 1
            if row["grade"] <= kept[same]["grade"]:
                continue
        kept[same] = {**row, "shares": shares}
    documents = people.distinct(map(_document, kept.values()))
    return people.finish("camchoice", documents, loaded, dropped)


def _shares(given: Sequence[float | None]) -> list[float] | str:
    """Shares that sum to 1, or why there are none."""
    known = [share for share in given if share is not None and math.isfinite(share)]
    if len(known) < len(given):
        return NO_SHARES
    total = math.fsum(known)
    if total > PERCENT_FROM:
        total /= 100
    if not SUMS[0] <= total <= SUMS[1]:
        return ODD_SUM
    return people.normalised(known)


def _document(row: Row) -> Row:
    labels = people.right_options(row["options"], row["right"])
    return people.document(
        row["id"],
        row["question"],
        options=row["options"],
        labels=labels,
        human_shares=row["shares"],
        human_accuracy=sum(row["shares"][i] for i in labels),
    )


# --- which files ---------------------------------------------------------------------------------


def _load(path: str | Sequence[str] | None) -> LoadedRows:
    files = _local_files() if path is None else _named_files(path)
    if not files:  # says which sources there are, or takes the sample
        return load_rows(SPEC, "all")
    loaded = [load_file(SPEC, file) for file in files]
    rows = [row for one in loaded for row in one.rows]
    where = files[0] if len(files) == 1 else files[0].parent
    return LoadedRows(rows, "local", where, " ".join(one.sha256 for one in loaded))


def _local_files() -> list[Path]:
    root = local_root() if requested_source() in ("auto", "local") else None
    return sorted((root / SPEC.name).glob("*.jsonl")) if root else []


def _named_files(path: str | Sequence[str]) -> list[Path]:
    """The files that the user names, each once.

    Raises:
        ValueError: no string and no list of strings.
        DataUnavailable: a name that no file has.
    """
    names = [path] if isinstance(path, str) else path
    if not isinstance(names, (list, tuple)) or not names or not all(_is_name(n) for n in names):
        raise ValueError(
            f"path={path!r} is not known: use the name of a JSONL file, a folder, a pattern, or a "
            "list of those."
        )
    found: dict[Path, None] = {}
    for name in names:
        place = Path(name).expanduser()
        own = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
        if not place.exists():
            own = [Path(match) for match in sorted(glob.glob(str(place)))]
        if not own:
            raise DataUnavailable(f"camchoice: there is no JSONL file at path={name!r}.")
        found.update(dict.fromkeys(own))
    return list(found)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name.strip())


# --- reading -------------------------------------------------------------------------------------


def read_file(path: Path) -> list[Row]:
    """Questions of a file, in one of two layouts; shares as they stand there, None if unknown.

    - CMCQRD, one passage per line: ``text``, ``questions`` {number: ``text``, ``answer`` (a
      letter), ``options`` {letter: ``text``, ``fac``}};
    - NAEP, one question per line: ``stem``, ``options``, ``correct_option_index``,
      ``response_distribution``; ``item_id`` and ``grade`` are used if they are there.

    Raises:
        BrokenData: a line has another shape.
    """
    found: list[Row] = []
    for number, row in read_jsonl(path):
        if "questions" in row:
            found.extend(_passage(path, number, row))
        elif "stem" in row:
            found.append(_item(path, number, row))
        else:
            expected = "text and questions, or stem, options and response_distribution"
            raise broken_row(path, number, expected, sorted(row))
    return found


def _passage(path: Path, number: int, row: Row) -> Iterator[Row]:
    """The questions about one text; a prompt has the text, a space, the question."""
    text, questions = row.get("text"), row["questions"]
    if not isinstance(text, str) or not isinstance(questions, Mapping):
        raise broken_row(path, number, "text and questions", row)
    key = row.get("id", f"{path.stem}{number:04}")
    for name, question in questions.items():
        options = question.get("options") if isinstance(question, Mapping) else None
        if not isinstance(options, Mapping) or not all(
            isinstance(option, Mapping) for option in options.values()
        ):
            raise broken_row(path, number, "options by letter", question)
        letters = sorted(options)
        answer = question.get("answer")
        if answer not in letters:
            raise broken_row(path, number, f"answer to be one of {', '.join(letters)}", answer)
        yield _question(
            path,
            number,
            key=f"{key}.{name}",
            question=_join(text, question.get("text")),
            options=[options[letter].get("text") for letter in letters],
            right=letters.index(answer),
            shares=[options[letter].get("fac") for letter in letters],
        )


def _join(text: str, question: Any) -> Any:
    return f"{text.strip()} {question.strip()}".strip() if isinstance(question, str) else question


def _item(path: Path, number: int, row: Row) -> Row:
    return _question(
        path,
        number,
        key=str(row.get("item_id") or f"{path.stem}{number:04}"),
        question=row["stem"],
        options=row.get("options"),
        right=row.get("correct_option_index"),
        shares=row.get("response_distribution"),
        grade=row.get("grade") or 0,
    )


def _question(
    path: Path,
    number: int,
    *,
    key: str,
    question: Any,
    options: Any,
    right: Any,
    shares: Any,
    grade: Any = 0,
) -> Row:
    """One checked question."""
    if not isinstance(question, str) or not question.strip():
        raise broken_row(path, number, "the text of a question", question)
    texts = list(options) if isinstance(options, (list, tuple)) else []
    if not 2 <= len(texts) <= len(LETTERS) or not all(_is_name(text) for text in texts):
        raise broken_row(path, number, "two options or more, all with a text", options)
    if right not in range(len(texts)) or isinstance(right, bool):
        raise broken_row(path, number, "the number of the right option", right)
    given = list(shares) if isinstance(shares, (list, tuple)) else [None] * len(texts)
    if len(given) != len(texts) or not all(share is None or _is_share(share) for share in given):
        raise broken_row(path, number, "a share per option, 0 to 1, 0 to 100 or null", shares)
    if not isinstance(grade, (int, float)):
        raise broken_row(path, number, "a grade to be a number", grade)
    return {
        "id": key,
        "question": question.strip(),
        "options": [text.strip() for text in texts],
        "right": int(right),
        "shares": given,
        "grade": grade,
    }


def _is_share(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and (math.isnan(value) or 0 <= value <= 100)


SPEC = DatasetSpec(
    name="camchoice",
    files={"all": "camchoice.jsonl"},
    read=read_file,
    origin=(
        "your own copy of the Cambridge Multiple-Choice Questions Reading Dataset, whose licence "
        'lets nobody pass it on, or any file in its layout, which --metadata \'{"path": '
        '"FILE.jsonl"}\' can also name'
    ),
)
