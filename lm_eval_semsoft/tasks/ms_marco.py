"""MS MARCO question answering (Bajaj et al. 2016): what people asked Bing.

Loader of the tasks ``ms_marco_…``. The rules are in ``task_configs/ms_marco/README.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.data import DatasetSpec, Row, broken_row

VERSIONS = {"v2.1": 101093, "v1.1": 10047}  # rows of the validation split
OPTIONS = (*questions.OPTIONS, "data_version")
COLUMNS = ("query_id", "query", "answers", "wellFormedAnswers")
PASSAGES = ("passages.is_selected", "passages.passage_text")
NO_ANSWER = "no answer present"


def load(
    n_questions: int | None = questions.N_QUESTIONS,
    question_seed: int = questions.QUESTION_SEED,
    context: str = "none",
    data_version: str = "v2.1",
    **other: Any,
) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAMLs; other arguments, result, errors as `questions.load`.

    ``context="gold"`` gives each question the passages that its answer was written from.

    Args:
        n_questions, question_seed, context: see `questions.load`.
        data_version: ``v2.1`` or ``v1.1``. Not ``version``: the harness passes the task's under
            that name.
        other: what else the harness passes; ignored.

    Raises:
        ValueError: an option is unknown.
    """
    if other.get("version") in VERSIONS:
        raise ValueError(
            f"version={other['version']!r} would name the task's version, not the data's: "
            "use data_version."
        )
    check_choice("data_version", data_version, tuple(VERSIONS))
    questions.check_options(
        "ms_marco",
        n_questions,
        question_seed,
        context,
        other,
        paragraphs=True,
        options=OPTIONS,
    )
    return questions.load(spec(data_version, context), n_questions, question_seed, context)


def parse(path: Path, number: int, row: Row) -> Row:
    """A row with the hub's columns; ``passages`` and ``wellFormedAnswers`` may be missing."""
    questions.check_columns(path, number, row, "query", "answers")
    # The original files say "[]" in one string where there is no well-formed answer.
    well_formed = row.get("wellFormedAnswers") or []
    answers = questions.texts(path, number, "answers", row["answers"])
    if well_formed != "[]":
        answers += questions.texts(path, number, "wellFormedAnswers", well_formed)
    return {
        "id": row.get("query_id"),
        "question": questions.one_text(path, number, "query", row["query"]),
        "answers": [a for a in dict.fromkeys(answers) if a.casefold().rstrip(".") != NO_ANSWER],
        "context": None if row.get("passages") is None else _selected(path, number, row),
    }


def _selected(path: Path, number: int, row: Row) -> str:
    """One line per selected passage; "" if none is."""
    passages = row["passages"] if isinstance(row["passages"], dict) else {}
    columns: list[Any] = [passages.get(name) for name in ("is_selected", "passage_text")]
    if not all(isinstance(column, list) for column in columns):
        expected = "passages with is_selected and passage_text"
        raise broken_row(path, number, expected, row["passages"])
    marks, lines = columns
    if len(marks) != len(lines):
        raise broken_row(path, number, "is_selected to have a mark per passage", marks)
    chosen = [text for mark, text in zip(marks, lines, strict=True) if mark]
    return "\n".join(questions.texts(path, number, "passage_text", chosen))


def spec(data_version: str, context: str) -> DatasetSpec:
    """MS MARCO as `load_rows` wants it; passages are read only where they are asked for."""
    columns = (*COLUMNS, *PASSAGES) if context == "gold" else COLUMNS
    return questions.question_spec(
        "ms_marco",
        questions.reader("ms_marco", columns, parse),
        repo_id="microsoft/ms_marco",
        revision="a47ee7aae8d7d466ba15f9f0bfac3b3681087b3a",
        file=f"{data_version}/validation-00000-of-00001.parquet",
        rows=VERSIONS[data_version],
    )
