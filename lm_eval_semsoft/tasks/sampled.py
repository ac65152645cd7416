"""Open questions answered many times: does a model's agreement with itself mean that it is right?

A question gets N sampled answers and a greedy one. A judge puts the samples into clusters of one
meaning (`core.semantic_entropy`); the first answer of the largest cluster is the prediction, and
its share of the samples the confidence. The same samples give the metrics of smaller N: filter
``n5`` is the first five of them.

Any model of the harness can run these tasks. Those of this package also tell how likely each
answer was; with others ``rao_semantic_entropy`` and ``n_tokens`` are NaN.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from numpy.typing import NDArray

from lm_eval_semsoft.core import classification, semantic_entropy
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.judges import DEFAULT, Judge
from lm_eval_semsoft.judges.text import clean, has_content
from lm_eval_semsoft.tasks import confidence_metrics, metrics
from lm_eval_semsoft.tasks.data import warn_of_typos
from lm_eval_semsoft.tasks.listing import Metric, list_metrics
from lm_eval_semsoft.tasks.logged import Logged, make_writable
from lm_eval_semsoft.tasks.metrics import DocRecord, DocValue, Payload
from lm_eval_semsoft.tasks.prompts import InstructedTask
from lm_eval_semsoft.tasks.questions import INSTRUCTION, chat_stops, chat_text, examples
from lm_eval_semsoft.tasks.right import judge_named, reference_of, right_answers

logger = logging.getLogger(__name__)

N_SAMPLES = 10
SUBSETS = (5, 2)
CONFIDENCES = ("share", "entropy")
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class Options:
    """What ``--metadata`` may say of these tasks, beside what their data loaders take.

    Attributes:
        n_samples: N.
        judge: of meanings, its name (docs/judges.md).
        reference_judge: of right and wrong; None: see `tasks.right.reference_of`.
        cluster: `core.semantic_entropy.METHODS`.
        confidence: ``share`` of the largest cluster, or ``entropy``: 1 - H / ln N.
    """

    n_samples: int = N_SAMPLES
    judge: str = DEFAULT
    reference_judge: str | None = None
    cluster: str = "greedy"
    confidence: str = "share"

    def __post_init__(self) -> None:
        if type(self.n_samples) is not int or self.n_samples < 1:  # True is no number here
            raise ValueError(f"n_samples={self.n_samples!r} must be a whole number from 1.")
        check_choice("cluster", self.cluster, semantic_entropy.METHODS)
        check_choice("confidence", self.confidence, CONFIDENCES)

    @property
    def sizes(self) -> tuple[int, ...]:
        """N and the smaller numbers of samples that are measured, too."""
        return (self.n_samples, *(k for k in SUBSETS if k < self.n_samples))


OPTIONS = tuple(Options.__dataclass_fields__)


class SampledTask(InstructedTask):
    """A task of open questions from a YAML (``class: !function …sampled.SampledTask``)."""

    instruction = INSTRUCTION
    form = "answer"

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = dict(config or {})
        given = config.get("metadata") or {}
        self.options = Options(**{k: v for k, v in given.items() if k in OPTIONS})
        warn_of_typos(str(config.get("task")), given.keys() - {*OPTIONS}, OPTIONS)
        # Before the data, and long before the answers: a missing judge is told now.
        self.judge = judge_named(self.options.judge)
        reference = reference_of(self.options.judge, self.options.reference_judge)
        self.reference_judge = judge_named(reference)
        if given.get("context") == "gold":
            with_texts = {"samples": functools.partial(examples, "gold")}
            config["fewshot_config"] = config["fewshot_config"] | with_texts
        self.ask_as_recorded(config)
        super().__init__(config)
        self.config.repeats = self.options.n_samples
        # The harness writes them into the results.
        told = {**asdict(self.options), "reference_judge": self.reference_judge.name}
        self.config.metadata = {**given, **told, "judge": self.judge.name}
        list_metrics(self, METRICS)

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        """The question as the prompt's kind wants it."""
        if self.is_chat and doc_to_text in (None, self.config.doc_to_text):
            return chat_text(doc)
        return super().doc_to_text(doc, doc_to_text)

    def construct_requests(
        self, doc: dict[str, Any], ctx: Any, **kwargs: Any
    ) -> list[Instance] | Instance:
        """N samples and a greedy answer.

        Raises:
            ValueError: ``--gen_kwargs`` turned sampling off.
        """
        name, doc_id, _ = kwargs.pop("metadata")
        sampling = self._generation_kwargs()
        greedy = {k: v for k, v in sampling.items() if k == "until" or k in _LENGTHS}
        greedy |= {"do_sample": False, "temperature": 0.0}
        asked = ((0, sampling, self.options.n_samples), (1, greedy, 1))
        return [
            Instance("generate_until", doc, (ctx, dict(how)), i, metadata=(name, doc_id, times))
            for i, how, times in asked
        ]

    def _generation_kwargs(self) -> dict[str, Any]:
        how = dict(self.config.generation_kwargs or {})
        if not how.get("do_sample") or not _above_0(how.get("temperature", 1.0)):
            raise ValueError(
                f"{self.config.task} samples its answers: do_sample={how.get('do_sample')!r} and "
                f"temperature={how.get('temperature')!r} must be true and above 0."
            )
        if self.is_chat:
            how["until"] = chat_stops(how.get("until", []))
        return how

    # -- from answers to meanings ----------------------------------------------------------------

    def apply_filters(self) -> list[Instance]:
        """Judge all answers at once, and give every question its clusters for every N."""
        make_writable(self.instances)
        pairs: dict[int, list[Instance]] = {}
        for instance in self.instances:
            pairs.setdefault(instance.doc_id, []).append(instance)
        asked = [sorted(own, key=lambda instance: instance.idx) for own in pairs.values()]
        questions = [question_of(sampled) for sampled, _ in asked]
        opts = self.options
        told = (opts.n_samples, self.judge.name, opts.cluster, opts.confidence)
        logger.info(
            "%s: %d samples, meanings by the judge %s, cluster %s, confidence %s; right and wrong "
            "by %s",
            *(self.config.task, *told, self.reference_judge.name),
        )
        self._warn_of_copies([[str(text) for text in sampled.resps] for sampled, _ in asked])
        outcomes = judge_all(
            self.judge,
            self.reference_judge,
            questions,
            [[*sampled.resps[: self.options.n_samples]] for sampled, _ in asked],
            [greedy.resps[0] for _, greedy in asked],
            self.options,
        )
        for (sampled, greedy), outcome in zip(asked, outcomes, strict=True):
            for k, samples in outcome.samples.items():
                sampled.filtered_resps[f"n{k}"] = samples
                greedy.filtered_resps[f"n{k}"] = outcome.greedy
        return list(self.instances)

    def _warn_of_copies(self, samples: Sequence[Sequence[str]]) -> None:
        """API models send the same seed with every request; a server that minds it samples once."""
        if len(samples) > 1 and self.options.n_samples > 1 and all(len({*s}) == 1 for s in samples):
            logger.warning(
                "%s: all %d samples of a question are the same text, for every question, so each "
                "confidence is 1. An API model of the harness sends one seed with all requests; "
                "--gen_kwargs '{\"seed\": null}' sends none.",
                self.config.task,
                self.options.n_samples,
            )

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """Payloads of one document for one N: all metrics, or `OF_SUBSETS` for a smaller one."""
        samples, greedy = results
        wanted = self.aggregation()
        found = payloads(doc, samples, greedy)
        if len(samples["answers"]) < self.options.n_samples:
            found = metrics.twice({name: found[name] for name in OF_SUBSETS})
        else:
            found = metrics.twice(found)
            found["published_data"] = DocValue(doc["published_data"], str(doc["id"]))
        # With --predict_only the harness knows no metric but its own.
        return {name: v for name, v in {**found, "bypass": 0.0}.items() if name in wanted}


@dataclass(frozen=True)
class Question:
    """A question and what is right: [] where nobody knows."""

    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What is logged of one question: by number of samples, and the greedy answer."""

    samples: dict[int, Logged]
    greedy: Logged


def question_of(instance: Instance) -> Question:
    """The question of a request."""
    return Question(instance.doc["question"], tuple(instance.doc["answers"]))


def judge_all(
    judge: Judge,
    reference_judge: Judge,
    questions: Sequence[Question],
    samples: Sequence[Sequence[str]],
    greedy: Sequence[str],
    options: Options,
) -> list[Outcome]:
    """Clusters, predictions, and whether they are right, of n questions.

    Args:
        judge: of meanings.
        reference_judge: of right and wrong.
        questions: [n].
        samples: [n][N] sampled answers.
        greedy: [n].
        options: of the task.
    """
    texts = [[clean(str(answer)) for answer in own] for own in samples]
    tables = judge.matrices([q.text for q in questions], texts)
    found = [
        {k: clustered(texts[i][:k], samples[i][:k], tables[i][:k, :k], options)
         for k in options.sizes}
        for i in range(len(questions))
    ]  # fmt: skip
    short = [clean(str(answer)) for answer in greedy]
    # One call for all predictions: the judge's model runs in few, full batches.
    columns = [*([own[k]["prediction"] for own in found] for k in options.sizes), short]
    asked = [(q, column[i]) for column in columns for i, q in enumerate(questions)]
    right = np.reshape(
        right_answers(
            reference_judge,
            [q.text for q, _ in asked],
            [prediction for _, prediction in asked],
            [q.answers for q, _ in asked],
        ),
        (len(columns), len(questions)),
    )
    for row, k in zip(right[:-1], options.sizes, strict=True):
        for own, value in zip(found, row, strict=True):
            own[k]["right"] = _yes_or_no(value)
    return [
        Outcome(own, Logged(answer=answer, right=_yes_or_no(value)))
        for own, answer, value in zip(found, short, right[-1], strict=True)
    ]


def clustered(
    texts: Sequence[str], samples: Sequence[str], table: NDArray[np.float64], options: Options
) -> Logged:
    """What is logged of k samples with the judge's scores [k, k] of their pairs."""
    ids = semantic_entropy.cluster(table, options.cluster)
    if options.confidence == "share":
        confidence = semantic_entropy.cluster_share(ids)
    else:
        confidence = semantic_entropy.entropy_confidence(ids)
    return Logged(
        answers=list(texts),
        clusters=ids.tolist(),
        mean_logprobs=[_known(getattr(sample, "mean_logprob", math.nan)) for sample in samples],
        n_tokens=[_known(getattr(sample, "n_tokens", math.nan)) for sample in samples],
        prediction=texts[semantic_entropy.representative(ids)],
        confidence=confidence,
    )


def _above_0(value: Any) -> bool:
    try:
        return float(value) > 0
    except (TypeError, ValueError):
        return False


def _known(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(value) else float(value)


def _yes_or_no(value: float) -> bool | None:
    return None if math.isnan(value) else bool(value)


# --- metrics -------------------------------------------------------------------------------------


def payloads(
    doc: Mapping[str, Any], samples: Mapping[str, Any], greedy: Mapping[str, Any]
) -> dict[str, Payload]:
    """Payloads of one document, without standard errors, under the same keys for every model."""
    key, ids = str(doc["id"]), samples["clusters"]
    right = _number(samples["right"])
    entropy = semantic_entropy.semantic_entropy(ids)
    rao = math.nan
    if None not in samples["mean_logprobs"]:
        rao = semantic_entropy.rao_semantic_entropy(ids, samples["mean_logprobs"])
    says_something = [has_content(answer) for answer in samples["answers"]]
    return {
        **confidence_metrics.payloads(key, samples["confidence"], right),
        "greedy_accuracy": DocValue(_number(greedy["right"]), key),
        "semantic_entropy": DocValue(entropy, key),
        "rao_semantic_entropy": DocValue(rao, key),
        "entropy_auroc": DocRecord((-entropy, right), key),
        "rao_entropy_auroc": DocRecord((-rao, right), key),
        "n_clusters": DocValue(semantic_entropy.n_clusters(ids), key),
        "n_tokens": DocValue(sum(map(_number, samples["n_tokens"])), key),
        "parse_rate": DocValue(float(np.mean(says_something)), key),
        "no_gold": DocValue(float(not any(map(has_content, doc["answers"]))), key),
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


_mean = functools.partial(confidence_metrics.of, metrics.document_mean)
_auroc = confidence_metrics.of(classification.confidence_auroc, True)

METRICS: dict[str, Metric] = {
    "accuracy": confidence_metrics.METRICS["accuracy"],
    "greedy_accuracy": _mean(True),
    **{name: m for name, m in confidence_metrics.METRICS.items() if name != "accuracy"},
    "semantic_entropy": _mean(None),
    "entropy_auroc": _auroc,
    "rao_semantic_entropy": _mean(None),
    "rao_entropy_auroc": _auroc,
    "n_clusters": _mean(None),
    "n_tokens": _mean(None),
    "parse_rate": _mean(True),
    "no_gold": _mean(None),
    "published_data": Metric(metrics.mean, None, None),
}
OF_SUBSETS = ("accuracy", "ece", "auroc", "brier", "semantic_entropy", "n_clusters")
