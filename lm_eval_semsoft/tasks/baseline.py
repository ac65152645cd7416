"""Tasks in which a model answers a question and tells its confidence: what they have in common.

A task reads one `Reply` per document; answers are judged for all documents at once (`right`), and
each filter of the task makes of it what its convention for unreadable replies says.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lm_eval.api.instance import Instance

from lm_eval_semsoft.judges import DEFAULT
from lm_eval_semsoft.judges.text import has_content
from lm_eval_semsoft.tasks import confidence_metrics, metrics, questions
from lm_eval_semsoft.tasks.data import warn_of_typos
from lm_eval_semsoft.tasks.listing import Metric, list_metrics
from lm_eval_semsoft.tasks.logged import Logged, make_writable
from lm_eval_semsoft.tasks.metrics import DocValue, Payload
from lm_eval_semsoft.tasks.prompts import FixedExamples, InstructedTask
from lm_eval_semsoft.tasks.right import judge_named, reference_of, right_answers

METRICS = {
    **confidence_metrics.METRICS,
    "parse_rate": Metric(metrics.mean, metrics.mean_stderr, True),
    "n_tokens": Metric(metrics.of_known(metrics.mean), metrics.of_known(metrics.mean_stderr), None),
    "no_gold": Metric(metrics.mean, None, None),
    "published_data": Metric(metrics.mean, None, None),
}

OPTIONS = ("judge", "reference_judge")


@dataclass(frozen=True)
class Reply:
    """What a model said to one question.

    Attributes:
        answer: "" if there is none.
        confidence: 0..1; NaN if there is none.
        parsed: could both be read?
        n_tokens: that were generated; NaN where the model does not say.
    """

    answer: str
    confidence: float
    parsed: bool
    n_tokens: float


class BaselineTask(InstructedTask):
    """A task from a YAML that reads an answer and a confidence.

    ``--metadata``: ``judge`` and ``reference_judge``, see `tasks.right.reference_of`, and the
    options of the loader.

    Raises:
        JudgeError: there is no such judge, or its model is missing; before the model runs.
    """

    conventions: ClassVar[Sequence[str]]  # names of the filters

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = dict(config or {})
        options = config.get("metadata") or {}
        warn_of_typos(str(config.get("task")), options.keys() - {*OPTIONS}, OPTIONS)
        judge = reference_of(options.get("judge", DEFAULT), options.get("reference_judge"))
        self.judge = judge_named(judge)
        config["fewshot_config"] = {
            "sampler": FixedExamples,
            "samples": self.examples(options.get("context", "none")),
        }
        super().__init__(config)
        self.config.metadata = {**options, "reference_judge": self.judge.name}
        list_metrics(self, METRICS)

    @abstractmethod
    def examples(self, context: str) -> list[dict[str, Any]]:
        """Solved questions, with (``gold``) or without (``none``) a text that holds the answer."""

    @abstractmethod
    def read(self, instances: Sequence[Instance]) -> Reply:
        """The reply of one document, whose generation request is the first of the instances."""

    def apply_filters(self) -> None:
        """Read and judge all documents; each convention is a filter.

        The first request of a document gets what `record` makes of the reply, others their plain
        response.
        """
        make_writable(self.instances)
        by_doc: dict[int, list[Instance]] = {}
        for instance in sorted(self.instances, key=lambda instance: instance.idx):
            by_doc.setdefault(instance.doc_id, []).append(instance)
        replies = [self.read(own) for own in by_doc.values()]
        docs = [own[0].doc for own in by_doc.values()]
        right = right_answers(
            self.judge,
            [doc["question"] for doc in docs],
            [reply.answer for reply in replies],
            [doc["answers"] for doc in docs],
        )
        for (first, *others), reply, is_right in zip(by_doc.values(), replies, right, strict=True):
            for name in self.conventions:
                first.filtered_resps[name] = record(reply, is_right, name)
                for other in others:
                    other.filtered_resps[name] = other.resps[0]

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Payload]:
        """Payloads of one document, from the record that a filter made of it."""
        found = {**payloads(doc, results[0]), "bypass": DocValue(0.0, str(doc["id"]))}
        wanted = self.aggregation()  # with --predict_only, nothing but the harness's "bypass"
        return {name: payload for name, payload in found.items() if name in wanted}


def record(reply: Reply, right: float, convention: str) -> Logged:
    """What stands in the samples of a run: JSON, with None where something is not known.

    Args:
        reply: of one document.
        right: 1, 0, or NaN if nobody knows.
        convention: what an unreadable reply counts as. ``zero``: confidence 0, and the answer, if
            there is one, is judged. ``exclude``: nothing. Any other: as it is.
    """
    confidence = reply.confidence
    if not reply.parsed and convention == "zero":
        confidence = 0.0
    if not reply.parsed and convention == "exclude":
        confidence = right = math.nan
    return Logged(
        answer=reply.answer,
        confidence=None if math.isnan(confidence) else confidence,
        right=None if math.isnan(right) else bool(right),
        parsed=reply.parsed,
        n_tokens=None if math.isnan(reply.n_tokens) else int(reply.n_tokens),
    )


def payloads(doc: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Payload]:
    """Payloads of one document, given its `record`."""
    key = str(doc["id"])
    confidence, correct, n_tokens = (
        _or_nan(told[name]) for name in ("confidence", "right", "n_tokens")
    )
    counted: dict[str, Payload] = {
        **confidence_metrics.payloads(key, confidence, correct),
        "parse_rate": DocValue(float(told["parsed"]), key),
        "n_tokens": DocValue(n_tokens, key),
    }
    return {
        **metrics.twice(counted),
        "no_gold": DocValue(float(not any(map(has_content, doc["answers"]))), key),
        "published_data": DocValue(doc["published_data"], key),
    }


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def ask(doc: Mapping[str, Any]) -> str:
    """The question of a document, after its context if it has one."""
    return questions.doc_to_text(doc).removesuffix("\nAnswer:")
