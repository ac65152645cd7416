"""NQ-Open (Lee et al. 2019, after Kwiatkowski et al. 2019): what people asked a search engine.

Loader of the tasks ``nq_open_…``. The rules are in ``task_configs/nq_open/README.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.data import Row


def load(
    n_questions: int | None = questions.N_QUESTIONS,
    question_seed: int = questions.QUESTION_SEED,
    context: str = "none",
    **other: Any,
) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAMLs; arguments, result and errors as `questions.load`.

    Raises:
        ValueError: an option is unknown; ``context="gold"``, since the data has no paragraphs.
    """
    questions.check_options("nq_open", n_questions, question_seed, context, other)
    return questions.load(SPEC, n_questions, question_seed, context)


def parse(path: Path, number: int, row: Row) -> Row:
    """``question`` and the list ``answer``, on the hub and elsewhere."""
    questions.check_columns(path, number, row, "question", "answer")
    return {
        "id": row.get("id"),
        "question": questions.one_text(path, number, "question", row["question"]),
        "answers": questions.texts(path, number, "answer", row["answer"]),
        "context": None,
    }


SPEC = questions.question_spec(
    "nq_open",
    questions.reader("nq", ("id", "question", "answer"), parse),
    repo_id="google-research-datasets/nq_open",
    revision="5dd9790a83002ad084ddeb7c420dc716852c6f28",
    file="nq_open/validation-00000-of-00001.parquet",
    rows=3610,
)
