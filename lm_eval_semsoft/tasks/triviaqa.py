"""TriviaQA (Joshi et al. 2017): questions of quiz players, with many aliases of the answer.

Loader of the tasks ``triviaqa_…``. The rules are in ``task_configs/triviaqa/README.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.data import Row, broken_row


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
    questions.check_options("triviaqa", n_questions, question_seed, context, other)
    return questions.load(SPEC, n_questions, question_seed, context)


def parse(path: Path, number: int, row: Row) -> Row:
    """A row of the hub (``answer`` with value and aliases), or one with ``golden_answers``."""
    questions.check_columns(path, number, row, "question")
    text = questions.one_text(path, number, "question", row["question"])
    if "golden_answers" in row:
        answers = questions.texts(path, number, "golden_answers", row["golden_answers"])
    else:
        answers = _hub_answers(path, number, row)
    return {
        "id": row.get("question_id", row.get("id")),
        "question": unquoted(text),
        "answers": answers,
        "context": None,
    }


def _hub_answers(path: Path, number: int, row: Row) -> list[str]:
    """The answer, then its aliases; the ``normalized_…`` are the same ones in lower case."""
    answer = row.get("answer")
    if not isinstance(answer, dict) or not isinstance(answer.get("aliases"), list):
        expected = "golden_answers, or an answer with value and aliases"
        raise broken_row(path, number, expected, answer if "answer" in row else sorted(row))
    return questions.texts(path, number, "answer", [answer.get("value"), *answer["aliases"]])


def unquoted(text: str) -> str:
    """A question without the quotes that a CSV file left: ``"Who sang ""Lola""?"``."""
    inside = text[1:-1]
    is_field = len(text) > 1 and text[0] == text[-1] == '"' and '""' in inside
    if is_field and '"' not in inside.replace('""', ""):
        return inside.replace('""', '"')
    return text


SPEC = questions.question_spec(
    "triviaqa",
    questions.reader(
        "triviaqa", ("question", "question_id", "answer.value", "answer.aliases"), parse
    ),
    repo_id="mandarjoshi/trivia_qa",
    revision="0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
    file="rc.nocontext/validation-00000-of-00001.parquet",
    rows=17944,
)
