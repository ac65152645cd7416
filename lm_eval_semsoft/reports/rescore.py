"""The task's own table from readouts: the numbers of a fresh run, without the model.

    result = rescore(readings, scoring_of(readings, tau=0.3))

Nothing is computed in another way than in a run: the task's `process_results` gets the scores of
one document after the other, and the aggregations that its YAML names do the rest.
"""

from __future__ import annotations

import importlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from lm_eval_semsoft import plugin
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.core.semantic_softmax import Scoring, resolve_scoring
from lm_eval_semsoft.models.label_scores import KERNELS, LabelScore

from . import scores
from .measures import ONE_LABEL_SET
from .readings import Readings

logger = logging.getLogger(__name__)

LABEL_SET = "_label_set.yaml"  # how tasks are measured that have no YAML of ours
_NAMED = 3  # documents that a note names


@dataclass(frozen=True)
class Rescored:
    """A table, and what it is made from.

    Attributes:
        directory, model, task, n: on what; n is the number of documents.
        scoring, kernel: how.
        results: metric -> value, `<metric>_stderr` right after it, as in the harness's results.
        notes: what a reader must know, one sentence each.
    """

    directory: str
    model: str
    task: str
    n: int
    scoring: Scoring
    kernel: str
    results: Mapping[str, float]
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        own = {**vars(self), "scoring": {**vars(self.scoring), "kernel": self.kernel}}
        del own["kernel"]
        return own


def rescore(
    readings: Readings, scoring: Scoring | None = None, kernel: str | None = None
) -> Rescored:
    """Score all documents again and compute the task's table.

    Args:
        readings: a task's documents.
        scoring: the run's own by default (`scoring_of` changes single arguments).
        kernel: as in `--model_args`; the run's own by default.

    Raises:
        ValueError: the right labels are not known, or the scoring cannot be computed from what is
            stored.
    """
    scoring = readings.run_scoring if scoring is None else scoring
    kernel = run_kernel(readings) if kernel is None else kernel
    check_stored(readings, scoring, kernel)
    readings.gold()
    log_s = scores.log_scores(readings, scoring, kernel)
    measures = measures_of(readings.task)
    metrics, notes = _metrics(readings, measures)
    payloads = [
        measures.process_results(_document(readings, i), pairs)
        for i, pairs in enumerate(_results(readings, log_s))
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = {name: metrics[name]([p[name] for p in payloads]) for name in metrics}
    said = [str(w.message) for w in caught if issubclass(w.category, UndefinedMetricWarning)]
    return Rescored(
        directory=str(readings.source.folder),
        model=readings.source.model,
        task=readings.task,
        n=readings.n,
        scoring=scoring,
        kernel=kernel,
        results=table,
        notes=tuple(dict.fromkeys([*data_notes(readings), *notes, *said])),
    )


def _document(readings: Readings, i: int) -> dict[str, Any]:
    """The task's document, with what label-set tasks need where it is not one of ours."""
    doc = readings.docs[i]
    own = doc if isinstance(doc, dict) else {}
    labels = np.flatnonzero(readings.gold()[i]).tolist()
    return {"id": readings.keys[i], "published_data": math.nan, **own, "labels": labels}


def _results(readings: Readings, log_s: NDArray[np.float64]) -> Iterator[list[LabelScore]]:
    """What the model returns for each document, with the choices that it has."""
    own = readings.label_logprobs.astype(np.float64)
    there = np.ones(own.shape, dtype=np.bool_) if readings.label_set else ~np.isneginf(own)
    for row, exact, choices in zip(log_s, own, there, strict=True):
        pairs = zip(row[choices].tolist(), exact[choices].tolist(), strict=True)
        yield [LabelScore(score, False, constrained) for score, constrained in pairs]


def _metrics(
    readings: Readings, measures: Measures
) -> tuple[dict[str, Callable[[Sequence[Any]], float]], list[str]]:
    """The aggregations that these documents allow, and why others are left out."""
    metrics, notes = dict(measures.aggregations), []
    if readings.label_set is None:
        notes.append("No macro-F1 and AUROC: every document has choices of its own.")
        parts = tuple(p + m for p in ("", "constrained_") for m in ONE_LABEL_SET)
        for name in [m for m in metrics if m.removesuffix("_stderr") in parts]:
            del metrics[name]
    if not all(isinstance(doc, dict) and "published_data" in doc for doc in readings.docs):
        metrics.pop("published_data", None)
    return metrics, notes


# --------------------------------------------------------------------------------------------
# how
# --------------------------------------------------------------------------------------------


def scoring_of(readings: Readings, preset: str | None = None, **given: Any) -> Scoring:
    """The run's own scoring, or a preset, with single arguments replaced; None replaces nothing.

    Raises:
        ValueError: an unknown preset or value.
    """
    if preset is not None:
        return resolve_scoring(preset, **given)
    return replace(readings.run_scoring, **{k: v for k, v in given.items() if v is not None})


def run_kernel(readings: Readings) -> str:
    """The `kernel` argument of the run."""
    return str(readings.source.manifest["about"].get("scoring", {}).get("kernel", "auto"))


def check_stored(readings: Readings, scoring: Scoring, kernel: str) -> None:
    """Can these scores be computed from what is stored?

    Raises:
        ValueError: it says what is stored.
    """
    check_choice("kernel", kernel, KERNELS)
    where = readings.source.folder
    if kernel == "cosine" and readings.label_set is None and scoring.scoring == "semantic":
        raise ValueError(
            f"kernel='cosine': the documents of task {readings.task} in {where} do not share one "
            "label set, and readouts keep no spelling of their own ones; use 'auto' or 'identity'."
        )
    if not scores.wants_cosine(readings, scoring, kernel):
        return
    stored = readings.topk_ids.shape[1]
    if scoring.top_k > stored and stored < readings.vocabulary:
        raise ValueError(
            f"top_k={scoring.top_k} is more than is stored: {where} holds the {stored} most "
            f"probable tokens of every prompt; use at most {stored}, or run the evaluation with "
            f"top_k={scoring.top_k} on another directory."
        )


# --------------------------------------------------------------------------------------------
# what the task measures
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measures:
    """What a task's YAML says about its metrics.

    Attributes:
        process_results: (document, scores of its labels) -> payload of every metric.
        aggregations: metric -> function of all payloads, in the order of the YAML.
    """

    process_results: Callable[[Mapping[str, Any], Sequence[Any]], Mapping[str, Any]]
    aggregations: Mapping[str, Callable[[Sequence[Any]], float]]


@cache
def measures_of(task: str) -> Measures:
    """The measures of one of our tasks; those of label-set tasks for any other task."""
    folder = plugin.task_path()
    for path in sorted(folder.rglob("*.yaml")):
        config = _read_yaml(path)
        if config.get("task") == task and {"process_results", "metric_list"} <= config.keys():
            return _measures(config)
    return _measures(_read_yaml(folder / LABEL_SET))


def _measures(config: Mapping[str, Any]) -> Measures:
    metrics = config["metric_list"]
    return Measures(
        _function(config["process_results"]),
        {entry["metric"]: _function(entry["aggregation"]) for entry in metrics},
    )


class _Loader(yaml.SafeLoader):
    """YAML with the harness's `!function module.name`, which stays text here."""


_Loader.add_constructor("!function", lambda loader, node: node.value)


def _read_yaml(path: Path) -> dict[str, Any]:
    """A task's configuration, over those that it includes."""
    own = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    if not isinstance(own, dict):
        return {}
    given = own.get("include", [])
    merged: dict[str, Any] = {}
    for name in [given] if isinstance(given, str) else given:
        merged |= _read_yaml(path.parent / name)
    return merged | own


def _function(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


# --------------------------------------------------------------------------------------------
# notes
# --------------------------------------------------------------------------------------------


def data_notes(readings: Readings) -> Iterator[str]:
    """What must be said about the documents, whatever is done with them."""
    if any(isinstance(doc, dict) and doc.get("published_data") == 0 for doc in readings.docs):
        yield (
            f"{readings.name}: these are documents of the small sample in the package, not the "
            "published data; numbers mean nothing outside of tests."
        )
    if readings.missing:
        yield (
            f"{readings.name}: {readings.missing} of {readings.n + readings.missing} documents "
            "have no readout yet and are left out."
        )
    unknown = np.flatnonzero(np.isnan(readings.label_logprobs).any(axis=1))
    if unknown.size:
        names = ", ".join(repr(readings.keys[i]) for i in unknown[:_NAMED])
        rest = ", …" if unknown.size > _NAMED else ""
        yield (
            f"{readings.name}: {unknown.size} of {readings.n} documents have NaN log-probabilities "
            f"({names}{rest}), so what needs all documents is NaN."
        )
