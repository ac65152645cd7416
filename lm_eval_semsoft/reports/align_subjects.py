"""What `align` works on: a model's doubt about each document, and what is known about people."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import calibration, soft_labels
from lm_eval_semsoft.core.bootstrap import stderr
from lm_eval_semsoft.engine import store

from . import doubt
from .generations import Generations, generations_of
from .readings import Readings, Source, check_task, distinct_names, nothing_in, readings_of

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_TIME = "response_time"  # how the names of times begin


@dataclass(frozen=True)
class TimeRule:
    """What is done to response times (fields whose name begins with `response_time`).

    Attributes:
        log: take natural logarithms; times of 0 or less are dropped.
        trim: drop times outside these, both included: in ms, or quantiles of the task's known
            times if both are at most 1.
    """

    log: bool = False
    trim: tuple[float, float] | None = None

    def apply(self, times: Floats) -> Floats:
        """The times, NaN where one is dropped."""
        known = times[~np.isnan(times)]
        kept = np.array(times)
        if self.trim is not None and known.size:
            low, high = self.trim
            if high <= 1:
                low, high = np.quantile(known, [low, high])
            kept[(times < low) | (times > high)] = np.nan
        if self.log:
            kept = np.log(np.where(kept > 0, kept, np.nan))
        return kept


@dataclass(frozen=True)
class Estimate:
    """A value and its bootstrap standard error."""

    value: float
    stderr: float = math.nan


@dataclass(frozen=True, eq=False)
class Subject:
    """One task of one directory: how unsure a model was, and what is known about people.

    Attributes:
        directory, name, model, task: of what; `name` tells directories apart.
        keys: [n] the documents' ids, all different.
        docs: [n] the documents.
        measures: name -> float [n].
        calibration: accuracy, ece and ece_sweep of the model (empty for free response) and, with
            the prefix `human_`, of the crowd.
        missing: documents of the run that have not been read yet.
    """

    directory: str
    name: str
    model: str
    task: str
    keys: tuple[str, ...]
    docs: tuple[dict[str, Any], ...]
    measures: Mapping[str, Floats]
    calibration: Mapping[str, Estimate] = field(default_factory=dict)
    missing: int = 0

    @cached_property
    def numbers(self) -> Mapping[str, Floats]:
        """Fields of the documents that are numbers, and different from NaN at least once."""
        names = dict.fromkeys(name for doc in self.docs for name in doc)
        columns = {name: column_of(self.docs, name) for name in names}
        return {name: x for name, x in columns.items() if x is not None and not np.isnan(x).all()}


def column_of(docs: Sequence[Mapping[str, Any]], name: str) -> Floats | None:
    """A field as numbers, NaN where a document has none; None if it is something else."""
    values = [doc.get(name) for doc in docs]
    if not all(v is None or (isinstance(v, (int, float)) and type(v) is not bool) for v in values):
        return None
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def no_such_field(name: str, known: Sequence[str], folder: str | Path | None = None) -> ValueError:
    """The error for a target that is no number in any document."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    where = "" if folder is None else f" in {folder}"
    return ValueError(
        f"No document{where} has a number in the field {name!r}. {hint}There are: "
        f"{', '.join(known) or 'none'}."
    )


def subjects_of(
    folder: str | Path, task: str | None = None, resamples: int = 1000, seed: int = 0
) -> list[Subject]:
    """Every task of a readouts directory, or one.

    Raises:
        FileNotFoundError, engine.store.ForeignReadouts: as `readings.load_all`.
        ValueError: nothing to read, or not this task.
    """
    source = Source.open(folder)
    stored = store.read_documents(source.folder)
    answers = [own for own in generations_of(source, stored) if own.n]
    options = readings_of(source, stored)
    if not answers and not options:
        raise nothing_in(folder)
    names = [*(own.task for own in options), *(own.task for own in answers)]
    check_task(folder, names, task)

    def wanted(own: Readings | Generations) -> bool:
        return task in (None, own.task)

    return [
        *(of_options(own, str(folder), resamples, seed) for own in options if wanted(own)),
        *(of_answers(own, str(folder)) for own in answers if wanted(own)),
    ]


def of_options(readings: Readings, directory: str, resamples: int, seed: int) -> Subject:
    return Subject(
        directory=directory, name=readings.name, model=readings.source.model, task=readings.task,
        keys=readings.keys, docs=readings.docs, measures=doubt.of_readings(readings),
        calibration=calibration_of(readings, resamples, seed), missing=readings.missing,
    )  # fmt: skip


def of_answers(generations: Generations, directory: str) -> Subject:
    return Subject(
        directory=directory, name=generations.name, model=generations.source.model,
        task=generations.task, keys=generations.keys, docs=generations.docs,
        measures=doubt.of_generations(generations), missing=generations.missing,
    )  # fmt: skip


def named(subjects: Sequence[Subject]) -> list[Subject]:
    """The same with names that tell directories apart."""
    names = distinct_names([(s.name, s.directory) for s in subjects])
    return [replace(s, name=name) for s, name in zip(subjects, names, strict=True)]


def target_table(
    subject: Subject, names: Sequence[str], rule: TimeRule
) -> tuple[Floats, list[int]]:
    """Targets [n, T] after the rule, and how many values of each it dropped."""
    columns, trimmed = [], []
    for name in names:
        raw = subject.numbers[name]
        own = rule.apply(raw) if name.startswith(_TIME) else raw
        columns.append(own)
        trimmed.append(int((np.isnan(own) & ~np.isnan(raw)).sum()))
    return np.stack(columns, axis=1), trimmed


def calibration_of(readings: Readings, resamples: int, seed: int) -> dict[str, Estimate]:
    """Accuracy and calibration errors of the model and of the crowd, side by side.

    The model's confidence is its largest option probability, renormalised over the options
    (constrained softmax). Empty if the documents do not say what is right.
    """
    if readings.target is None:
        return {}
    logs = readings.label_logprobs.astype(np.float64)
    p = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
    right = readings.target[np.arange(readings.n), p.argmax(axis=1)]
    found = _calibration("", p.max(axis=1), right, resamples, seed)
    shares, known = _shares(readings.docs, readings.target.shape[1])
    if known.any():
        people = soft_labels.crowd(shares[known], readings.target[known])
        found |= _calibration("human_", *people, resamples, seed)
    return found


def _calibration(
    prefix: str, confidence: Floats, right: Bools, resamples: int, seed: int
) -> dict[str, Estimate]:
    mean = float(right.mean())
    found = {"accuracy": Estimate(mean, math.sqrt(mean * (1 - mean) / max(1, len(right) - 1)))}
    values = {
        "ece": calibration.ece(confidence, right),
        "ece_sweep": calibration.ece_sweep(confidence, right).value,
    }
    for name, value in values.items():
        error = stderr(getattr(calibration, name), confidence, right, n=resamples, seed=seed)
        found[name] = Estimate(value, error)
    return {f"{prefix}{name}": own for name, own in found.items()}


def _shares(docs: Sequence[Mapping[str, Any]], size: int) -> tuple[Floats, Bools]:
    """Shares of people per option [n, L], and which documents have one for each of theirs."""
    shares, known = np.zeros((len(docs), size)), np.zeros(len(docs), dtype=np.bool_)
    for i, doc in enumerate(docs):
        own, options = doc.get("human_shares"), doc.get("options")
        if isinstance(own, list) and isinstance(options, list) and 0 < len(own) == len(options):
            known[i] = len(own) <= size and not any(x is None or math.isnan(x) for x in own)
            shares[i, : len(own)] = own if known[i] else 0
    return shares, known
