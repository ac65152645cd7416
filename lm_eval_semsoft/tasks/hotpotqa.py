"""HotpotQA (Yang et al. 2018): questions that need two articles. Loader of ``hotpotqa_…``.

The rules are in ``task_configs/hotpotqa/README.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.data import DatasetSpec, Row, broken_row

COLUMNS = ("id", "question", "answer")
PARAGRAPHS = ("supporting_facts", "context")


def load(
    n_questions: int | None = questions.N_QUESTIONS,
    question_seed: int = questions.QUESTION_SEED,
    context: str = "none",
    **other: Any,
) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAMLs; arguments, result and errors as `questions.load`.

    ``context="gold"`` gives each question the paragraphs that its supporting facts come from.

    Raises:
        ValueError: an option is unknown.
    """
    questions.check_options("hotpotqa", n_questions, question_seed, context, other, paragraphs=True)
    return questions.load(spec(context), n_questions, question_seed, context)


def parse(path: Path, number: int, row: Row) -> Row:
    """``question``, ``answer`` and, where they are there, ``context`` and ``supporting_facts``."""
    questions.check_columns(path, number, row, "question", "answer")
    answer = questions.one_text(path, number, "answer", row["answer"])
    return {
        "id": row.get("id"),
        "question": questions.one_text(path, number, "question", row["question"]),
        "answers": [answer] if answer else [],
        "context": _gold_paragraphs(path, number, row) if _has_paragraphs(row) else None,
    }


def _has_paragraphs(row: Row) -> bool:
    return all(row.get(name) is not None for name in PARAGRAPHS)


def _gold_paragraphs(path: Path, number: int, row: Row) -> str:
    """One line per article that is named by a supporting fact, in the order of the context."""
    facts, context = (row[name] for name in PARAGRAPHS)
    named = _column(path, number, facts, "supporting_facts", "title")
    titles = _column(path, number, context, "context", "title")
    paragraphs = _column(path, number, context, "context", "sentences")
    if len(titles) != len(paragraphs):
        raise broken_row(path, number, "context to have sentences for each title", context)
    lines = []
    for title, sentences in zip(titles, paragraphs, strict=True):
        if title in named:
            if not isinstance(sentences, list):
                raise broken_row(path, number, "sentences to be a list of texts", sentences)
            words = [questions.one_text(path, number, "sentences", s) for s in sentences]
            heading = questions.one_text(path, number, "title", title)
            lines.append(f"{heading}: {' '.join(filter(None, words))}")
    return "\n".join(lines)


def _column(path: Path, number: int, table: Any, name: str, key: str) -> list[Any]:
    column = table.get(key) if isinstance(table, dict) else None
    if not isinstance(column, list):
        raise broken_row(path, number, f"{name} to have a list {key}", table)
    return column


def spec(context: str) -> DatasetSpec:
    """HotpotQA as `load_rows` wants it; paragraphs are read only where they are asked for."""
    columns = (*COLUMNS, *PARAGRAPHS) if context == "gold" else COLUMNS
    return questions.question_spec(
        "hotpotqa",
        questions.reader("hotpotqa", columns, parse),
        repo_id="hotpotqa/hotpot_qa",
        revision="1908d6afbbead072334abe2965f91bd2709910ab",
        file="distractor/validation-00000-of-00001.parquet",
        rows=7405,
    )
