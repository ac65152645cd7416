"""Questions with lettered options: prompts of the ``human_alignment`` tasks.

Wording and examples follow the study of human-aligned uncertainty (arXiv 2605.30675), so that its
figures can be compared; the rules are in ``task_configs/human_alignment/README.md``.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from lm_eval_semsoft.tasks.prompts import InstructedTask

LETTERS = string.ascii_uppercase
EXAMPLES = (
    ("What is the chemical symbol for gold?", ("Ag", "Mo", "Au", "Gd"), 2),
    ("In what year did the First World War end?", ("1939", "1918", "1914", "1945"), 1),
)


class Task(InstructedTask):
    """Multiple choice: a chat model is told to answer with a letter."""

    instruction = (
        "You will be given multiple choice questions. Answer each one with the letter of the "
        "right option and nothing else."
    )


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of one document: the question, its lettered options, ``Answer:``."""
    options = zip(LETTERS, doc["options"], strict=False)
    lines = [f"{letter}. {option}" for letter, option in options]
    return "\n".join([f"Question: {doc['question']}", *lines, "Answer:"])


def doc_to_choice(doc: Mapping[str, Any]) -> list[str]:
    """One letter per option of this document."""
    return list(LETTERS[: len(doc["options"])])


def examples() -> list[dict[str, Any]]:
    """The two solved questions in front of every document."""
    return [
        {"question": question, "options": list(options), "label": label}
        for question, options, label in EXAMPLES
    ]
