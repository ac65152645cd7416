"""Questions answered in the model's own words: prompts and metrics of ``coane_oe``.

As in the study of human-aligned uncertainty (arXiv 2605.30675), a model is asked for few words with
the answer itself in curly brackets, and the first bracket is already there, so the generated text
begins inside. The model's doubt is taken over three parts of it:

- ``fr``: the whole text;
- ``bfr``: the part before the first closing bracket;
- ``first``: the first token.

The measures come from the trace that a semsoft model's `GeneratedText` carries. Other models return
plain strings, and then everything but the accuracy is NaN.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_semsoft.engine.trace import answer_doubt
from lm_eval_semsoft.tasks import metrics
from lm_eval_semsoft.tasks.metrics import DocRecord, DocValue, Payload
from lm_eval_semsoft.tasks.prompts import InstructedTask

# Measures in the table; `semsoft align` has all.
MEASURES = (
    *("fr_entropy", "fr_top1", "fr_perplexity"),
    *("bfr_entropy", "bfr_top1", "bfr_perplexity"),
    *("first_entropy", "first_top1"),
)
TIME_TARGETS = {"rt": "response_time", "rt_correct": "response_time_correct"}
REQUEST = (
    "Answer in as few words as possible and put the key part of the answer in curly brackets { }."
)
EXAMPLES = (
    ("What is the chemical symbol for gold?", "The chemical symbol for gold is {Au}."),
    ("In what year did the First World War end?", "{1918}."),
)


class Task(InstructedTask):
    """Free response: what is asked for stands under a base model's every question, and in a chat
    model's system message."""

    instruction = f"You will be asked questions. {REQUEST}"

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        """The question as the prompt's kind wants it."""
        if self.is_chat and doc_to_text in (None, base_prompt, self.config.doc_to_text):
            return f"Question: {doc['question']}"
        return super().doc_to_text(doc, doc_to_text)


def base_prompt(doc: Mapping[str, Any]) -> str:
    """One question for a base model; the harness adds `` {``."""
    return f"Question: {doc['question']}\n{REQUEST}\nAnswer:"


def doc_to_target(doc: Mapping[str, Any]) -> str:
    """The text behind an example, or the (first) right answer of a document."""
    return str(doc["answers"][0])


def examples() -> list[dict[str, Any]]:
    """The two solved questions in front of every document."""
    return [{"question": question, "answers": [answer]} for question, answer in EXAMPLES]


# --- is it right ---------------------------------------------------------------------------------


def bracketed_text(text: str) -> str:
    """The part inside the first curly brackets; the prompt has opened them.

    Without a closing bracket, that is the rest of the first line.
    """
    inside, closed, _ = text.partition("}")
    before, opened, behind = inside.partition("{")
    inside = behind if opened else before  # it opened them (again) itself
    return inside.strip() if closed else inside.strip().partition("\n")[0]


def normalised_words(text: str) -> list[str]:
    """Lower-case words without accents, punctuation and articles."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    plain = re.sub(r"['’.]", "", plain)  # O'Connor, St. Gregory, U.S.
    words = re.findall(r"\w+", plain)
    return [word for word in words if word not in ("a", "an", "the")]


def is_exact(given: str, answers: Sequence[str]) -> bool:
    """Is the answer one of the right ones, word for word (after `normalised_words`)?"""
    words = normalised_words(given)
    return bool(words) and any(words == normalised_words(answer) for answer in answers)


def is_right(given: str, answers: Sequence[str]) -> bool:
    """Does the answer contain a right one as consecutive words (*the city of Paris*: Paris)?"""
    words = _spaced(given)
    return any(_spaced(answer) in words for answer in answers if normalised_words(answer))


def _spaced(text: str) -> str:
    return f" {' '.join(normalised_words(text))} "


# --- metrics -------------------------------------------------------------------------------------


def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
    """Payloads of one document, under the same keys for every model.

    Args:
        doc: with the columns of `lm_eval_semsoft.tasks.people.FEATURES`.
        results: the generated text, a `GeneratedText` with ``.trace`` or a plain string.
    """
    key, text = str(doc["id"]), str(results[0])
    given = bracketed_text(text)
    correct = float(is_right(given, doc["answers"]))
    found = doubts(results[0])
    sure = DocRecord((1 / found["bfr_perplexity"], correct), key)
    targets = {name: float(doc[column]) for name, column in TIME_TARGETS.items()}
    targets["error"] = 1 - float(doc["human_accuracy"])
    payloads: dict[str, Payload] = {
        "accuracy": DocValue(correct, key),
        "exact_match": DocValue(float(is_exact(given, doc["answers"])), key),
        "ece": sure,
        "ece_sweep": sure,
        "human_accuracy": DocValue(float(doc["human_accuracy"]), key),
        **{
            f"spearman_{target}_{measure}": DocRecord((found[measure], value), key)
            for target, value in targets.items()
            for measure in MEASURES
        },
    }
    counts = ("dropped_times", "dropped_documents", "published_data")
    return {**metrics.twice(payloads), **{name: DocValue(doc[name], key) for name in counts}}


def doubts(text: Any) -> dict[str, float]:
    """The model's doubt about its answer, measure -> value; NaN without a trace."""
    trace = getattr(text, "trace", None)
    if trace is None:
        return dict.fromkeys(MEASURES, math.nan)
    found = answer_doubt(trace, str(text))
    return {name: found[name] for name in MEASURES}


# Aggregations of the answers whose confidence is known: an empty answer, and one of a model that
# does not tell its doubt, has none.
ece = metrics.of_known(metrics.ece)
ece_stderr = metrics.of_known(metrics.ece_stderr)
ece_sweep = metrics.of_known(metrics.ece_sweep)
ece_sweep_stderr = metrics.of_known(metrics.ece_sweep_stderr)
