"""Is an answer in the model's own words right? By exact match, then by a judge.

An answer is right if SQuAD's normalisation makes it equal to a gold answer, or if the judge says
that it means the same as one (a score of at least `judges.SAME`).
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence

from lm_eval_semsoft.judges import SAME, Judge, resolve
from lm_eval_semsoft.judges.text import has_content, squad
from lm_eval_semsoft.models import demo

logger = logging.getLogger(__name__)

# A gold answer often has dozens of aliases, and one of them that is merged by mistake makes a wrong
# answer right: so the encoder must be surer than among a model's own answers (docs/judges.md).
REFERENCE = "rules+encoder:minilm@0.75"


def reference_of(judge: str, reference_judge: str | None) -> str:
    """The judge of right and wrong: the one that was asked for, else one that fits the other.

    Args:
        judge: of meanings.
        reference_judge: None = `REFERENCE`, unless a judge of meanings without the packaged encoder
            was asked for: then that.
    """
    kind = str(judge).removeprefix("rules+").partition("@")[0]  # what is no name is refused later
    with_encoder = kind in ("encoder", "encoder:minilm")
    return reference_judge or (REFERENCE if with_encoder else judge)


def judge_named(name: str) -> Judge:
    """The judge of that name, the same one for all tasks of a process.

    Raises:
        JudgeError: see `lm_eval_semsoft.judges.resolve`.
    """
    return _judge(name) if isinstance(name, str) else resolve(name)  # which says what is wrong


@functools.cache
def _judge(name: str) -> Judge:
    judge = resolve(name, locate=demo.resolve)
    logger.info("Answers are judged by %s.", judge.name)
    return judge


def right_answers(
    judge: Judge,
    questions: Sequence[str],
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
) -> list[float]:
    """Which predictions are right: 1.0, 0.0, or NaN where nobody knows the answer.

    The judge sees all open pairs in one batch. A prediction without a letter, number or symbol is
    wrong.

    Args:
        judge: see `lm_eval_semsoft.judges.resolve`.
        questions: [n].
        predictions: [n].
        golds: [n], right answers to each question, any of which counts. Those that say nothing
            are left out.

    Raises:
        ValueError: the arguments differ in length.
    """
    known = [[gold for gold in own if has_content(gold)] for own in golds]
    rows = list(zip(questions, predictions, known, strict=True))
    exact = [_is_exact(prediction, own) for _, prediction, own in rows]
    open_rows = [
        i for i, (_, prediction, _) in enumerate(rows) if not exact[i] and has_content(prediction)
    ]
    pairs = [(rows[i][0], rows[i][1], gold) for i in open_rows for gold in rows[i][2]]
    owners = [i for i in open_rows for _ in rows[i][2]]
    scores = judge.equivalents(pairs)
    judged = {i for i, score in zip(owners, scores, strict=True) if score >= SAME}
    return [
        float(exact[i] or i in judged) if own else math.nan for i, (_, _, own) in enumerate(rows)
    ]


def _is_exact(prediction: str, golds: Sequence[str]) -> bool:
    if not has_content(prediction):
        return False
    normalised = squad(prediction)
    return any(normalised == squad(gold) for gold in golds)
