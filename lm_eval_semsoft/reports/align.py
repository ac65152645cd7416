"""Human alignment of whole runs: every measure of doubt with everything known about people.

    found = align(subjects_of("readouts/gemma"))

A subject is one task of one directory. Each gets a matrix of rank correlations, measures down,
targets (fields of the documents) across; pairs of subjects get the differences between matrices.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import alignment, calibration, soft_labels
from lm_eval_semsoft.core.alignment import AlignmentMatrix, Differences, SignedRank
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning, stderr
from lm_eval_semsoft.engine import store

from . import doubt

if TYPE_CHECKING:
    from .generations import Generations
    from .readings import Readings

Floats = NDArray[np.float64]

# Group level, then individual level, then how hard a question is for people.
TARGETS = ("human_entropy", "response_time_correct", "response_time", "human_accuracy")
RESAMPLES = 1000
LEVEL = 0.95
ALPHA = 0.05  # a corrected p below this counts as a relation
_TIME = "response_time"


# --------------------------------------------------------------------------------------------
# what is asked
# --------------------------------------------------------------------------------------------


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
        columns = {name: _column(self.docs, name) for name in names}
        return {name: x for name, x in columns.items() if x is not None and not np.isnan(x).all()}


def _column(docs: Sequence[Mapping[str, Any]], name: str) -> Floats | None:
    """A field as numbers, NaN where a document has none; None if it is something else."""
    values = [doc.get(name) for doc in docs]
    if not all(v is None or (isinstance(v, (int, float)) and type(v) is not bool) for v in values):
        return None
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def subjects_of(
    folder: str | Path, task: str | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> list[Subject]:
    """Every task of a readouts directory, or one.

    Raises:
        FileNotFoundError, engine.store.ForeignReadouts: as `readings.load_all`.
        ValueError: nothing to read, or not this task.
    """
    from . import generations, readings

    source = readings.Source.open(folder)
    answers = generations.load_generations(source.folder)
    options: list[Readings] = []
    if not answers or store.read_documents(source.folder):
        options = readings.load_all(source.folder)
    names = [own.task for own in (*options, *answers)]
    if task is not None and task not in names:
        raise ValueError(
            f"{folder} holds the tasks {', '.join(names)}: {task!r} is not among them."
        )

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
    source = generations.source
    return Subject(
        directory=directory, name=source.folder.resolve().name, model=source.model,
        task=generations.task, keys=generations.keys, docs=generations.docs,
        measures=doubt.of_generations(generations),
    )  # fmt: skip


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
    prefix: str, confidence: Floats, right: NDArray[np.bool_], resamples: int, seed: int
) -> dict[str, Estimate]:
    mean = float(right.mean())
    found = {"accuracy": Estimate(mean, math.sqrt(mean * (1 - mean) / max(1, len(right) - 1)))}
    for name, metric in (("ece", calibration.ece), ("ece_sweep", calibration.ece_sweep)):
        value = metric(confidence, right)
        error = stderr(metric, confidence, right, n=resamples, seed=seed)
        found[name] = Estimate(float(getattr(value, "value", value)), error)
    return {f"{prefix}{name}": own for name, own in found.items()}


def _shares(docs: Sequence[Mapping[str, Any]], size: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Shares of people per option [n, L], and which documents have one for each of theirs."""
    shares, known = np.zeros((len(docs), size)), np.zeros(len(docs), dtype=np.bool_)
    for i, doc in enumerate(docs):
        own, options = doc.get("human_shares"), doc.get("options")
        if isinstance(own, list) and isinstance(options, list) and 0 < len(own) == len(options):
            known[i] = len(own) <= size and not any(x is None or math.isnan(x) for x in own)
            shares[i, : len(own)] = own if known[i] else 0
    return shares, known


# --------------------------------------------------------------------------------------------
# what comes out
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Aligned:
    """A subject's matrix: M measures, T targets.

    Attributes:
        subject: of whom.
        measures: [M] names.
        same_as: [M] the first measure with the same ranks; the name itself if it is the first.
        targets: [T] fields of the documents.
        matrix: r, interval, n, p [M, T].
        p_holm: [M, T] p corrected for all cells of this matrix; measures with the same ranks are
            one test.
        trimmed: [T] times that the `TimeRule` dropped; `matrix.dropped` holds them too.
    """

    subject: Subject
    measures: tuple[str, ...]
    same_as: tuple[str, ...]
    targets: tuple[str, ...]
    matrix: AlignmentMatrix
    p_holm: Floats
    trimmed: tuple[int, ...]

    @property
    def distinct(self) -> list[int]:
        """Rows whose ranks no earlier row has."""
        return [i for i, (a, b) in enumerate(zip(self.measures, self.same_as)) if a == b]

    def record(self) -> dict[str, Any]:
        s = self.subject
        own = {"directory": s.directory, "name": s.name, "model": s.model, "task": s.task}
        return {
            **own,
            "documents": len(s.keys),
            "missing": s.missing,
            "calibration": s.calibration,
            "trimmed": dict(zip(self.targets, self.trimmed, strict=True)),
            "same_ranks": {a: b for a, b in zip(self.measures, self.same_as) if a != b},
            "cells": list(
                _cells(self.measures, self.targets, {**vars(self.matrix), "p_holm": self.p_holm})
            ),
        }


@dataclass(frozen=True, eq=False)
class PairDifference:
    """Instruct minus base (or second minus first), on the documents that both have.

    Attributes:
        base, instruct: names of the directories.
        task: of both.
        measures, targets: of the table.
        differences: [M, T], from the paired bootstrap.
        signed_rank: [T] Wilcoxon test over the distinct measures of r_instruct - r_base.
        p_holm: [T] its p-values, corrected for the number of targets.
        n: documents that both have.
    """

    base: str
    instruct: str
    task: str
    measures: tuple[str, ...]
    targets: tuple[str, ...]
    differences: Differences
    signed_rank: tuple[SignedRank, ...]
    p_holm: Floats
    n: int

    def record(self) -> dict[str, Any]:
        tests = {
            target: {**vars(test), "p_holm": p}
            for target, test, p in zip(self.targets, self.signed_rank, self.p_holm, strict=True)
        }
        return {
            "base": self.base,
            "instruct": self.instruct,
            "task": self.task,
            "documents": self.n,
            "wilcoxon": tests,
            "cells": list(_cells(self.measures, self.targets, vars(self.differences))),
        }


def _cells(
    measures: Sequence[str], targets: Sequence[str], arrays: Mapping[str, NDArray[Any]]
) -> Iterator[dict[str, Any]]:
    for i, measure in enumerate(measures):
        for j, target in enumerate(targets):
            values = {name: array[i, j] for name, array in arrays.items()}
            if not values["why"]:
                del values["why"]
            yield {"measure": measure, "target": target, **values}


@dataclass(frozen=True, eq=False)
class Alignments:
    """All that `align` found.

    Attributes:
        tables: one per subject that has targets.
        differences: one per pair and task.
        resamples, seed, level, rule: how it was computed.
        notes: what a reader must know, one sentence each.
    """

    tables: tuple[Aligned, ...]
    differences: tuple[PairDifference, ...]
    resamples: int
    seed: int
    level: float
    rule: TimeRule
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Has not a single cell a value?"""
        return all(np.isnan(table.matrix.r).all() for table in self.tables)

    def record(self) -> dict[str, Any]:
        return {
            "resamples": self.resamples,
            "seed": self.seed,
            "level": self.level,
            "log_times": self.rule.log,
            "trim_times": self.rule.trim,
            "tables": [table.record() for table in self.tables],
            "differences": [difference.record() for difference in self.differences],
            "notes": self.notes,
        }


def align(
    subjects: Sequence[Subject],
    pairs: Sequence[tuple[str, str]] = (),
    targets: Sequence[str] = (),
    rule: TimeRule | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Callable[[str], object] = lambda what: None,
) -> Alignments:
    """Rank correlation of every measure with every target, for every subject.

    Args:
        subjects: at least one, of `subjects_of`; names tell directories apart (see `named`).
        pairs: (base, instruct) names of directories whose differences are asked for.
        targets: numeric fields of the documents; by default those of `TARGETS` that there are.
        rule: what is done to response times.
        resamples: bootstrap resamples of the documents behind every interval.
        seed: of the resamples.
        progress: called with the name of what comes next.

    Raises:
        ValueError: a target that no document has, a pair that is not there or whose documents say
            different things about people.
    """
    rule = rule or TimeRule()
    chosen = _targets(subjects, targets)
    notes = [
        f"{s.name}: the documents of {s.task} say nothing about people: left out."
        for s in subjects
        if not chosen[id(s)]
    ]
    tables = []
    for subject in subjects:
        if chosen[id(subject)]:
            progress(f"{subject.name}, {subject.task}")
            tables.append(_aligned(subject, chosen[id(subject)], rule, resamples, seed))
    differences = []
    for base, instruct in pairs:
        for a, b in _matched(tables, base, instruct):
            progress(f"{instruct} − {base}, {a.subject.task}")
            differences.append(_difference(a, b, rule, resamples, seed))
    return Alignments(
        tuple(tables), tuple(differences), resamples, seed, LEVEL, rule,
        tuple([*notes, *_notes(tables)]),
    )  # fmt: skip


def named(subjects: Sequence[Subject]) -> list[Subject]:
    """The same with names that tell directories apart: the whole path where the last part doesn't."""
    paths: dict[str, set[str]] = {}
    for s in subjects:
        paths.setdefault(s.name, set()).add(s.directory)
    return [replace(s, name=s.directory) if len(paths[s.name]) > 1 else s for s in subjects]


def _targets(subjects: Sequence[Subject], wanted: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Which targets each subject has."""
    for name in wanted:
        if not any(name in s.numbers for s in subjects):
            known = sorted({own for s in subjects for own in s.numbers})
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"No document has a number in the field {name!r}. {hint}There are: "
                f"{', '.join(known) or 'none'}."
            )
    return {
        id(s): tuple(name for name in (wanted or TARGETS) if name in s.numbers) for s in subjects
    }


def _target_table(
    subject: Subject, names: Sequence[str], rule: TimeRule
) -> tuple[Floats, list[int]]:
    """Targets [n, T] after the rule, and how many times it dropped."""
    columns, trimmed = [], []
    for name in names:
        raw = subject.numbers[name]
        own = rule.apply(raw) if name.startswith(_TIME) else raw
        columns.append(own)
        trimmed.append(int((np.isnan(own) & ~np.isnan(raw)).sum()))
    return np.stack(columns, axis=1), trimmed


def _aligned(
    subject: Subject, names: tuple[str, ...], rule: TimeRule, resamples: int, seed: int
) -> Aligned:
    targets, trimmed = _target_table(subject, names, rule)
    first = doubt.without_twins(subject.measures)
    distinct = [name for name in first if first[name] == name]
    table = np.stack([subject.measures[name] for name in distinct], axis=1)
    matrix = alignment.spearman_matrix(table, targets, level=LEVEL, n=resamples, seed=seed)
    rows = [distinct.index(first[name]) for name in first]
    return Aligned(
        subject=subject,
        measures=tuple(first),
        same_as=tuple(first.values()),
        targets=names,
        matrix=AlignmentMatrix(**{name: own[rows] for name, own in vars(matrix).items()}),
        p_holm=alignment.holm(matrix.p)[rows],
        trimmed=tuple(trimmed),
    )


# --------------------------------------------------------------------------------------------
# pairs
# --------------------------------------------------------------------------------------------


def _matched(
    tables: Sequence[Aligned], base: str, instruct: str
) -> Iterator[tuple[Aligned, Aligned]]:
    """Tables of the same task in both directories."""
    sides = []
    for name in (base, instruct):
        own = {t.subject.task: t for t in tables if name in (t.subject.name, t.subject.directory)}
        if not own:
            known = dict.fromkeys(t.subject.name for t in tables)
            raise ValueError(
                f"There is no directory {name!r} to pair; there are {', '.join(known)}."
            )
        sides.append(own)
    shared = [task for task in sides[0] if task in sides[1]]
    if not shared:
        raise ValueError(f"{base} and {instruct} have no task in common to compare.")
    return ((sides[0][task], sides[1][task]) for task in shared)


def _difference(
    base: Aligned, instruct: Aligned, rule: TimeRule, resamples: int, seed: int
) -> PairDifference:
    a, b = base.subject, instruct.subject
    place = {key: i for i, key in enumerate(b.keys)}
    rows = [(i, place[key]) for i, key in enumerate(a.keys) if key in place]
    if not rows:
        raise ValueError(f"{a.name} and {b.name} have no document of {a.task} in common.")
    here, there = (list(side) for side in zip(*rows, strict=True))
    names = tuple(name for name in base.targets if name in instruct.targets)
    _check_same(a, b, names, here, there)
    targets, _ = _target_table(a, names, rule)
    # Twins of one model need not be twins of the other; the same two rows twice tell nothing.
    both = [
        m
        for m, (name, same) in enumerate(zip(base.measures, base.same_as, strict=True))
        if name in b.measures
        and not (name != same and instruct.same_as[instruct.measures.index(name)] == same)
    ]
    measures = tuple(base.measures[m] for m in both)
    sides = [
        np.stack([s.measures[name][rows] for name in measures], axis=1)
        for s, rows in ((b, there), (a, here))
    ]
    found = alignment.spearman_differences(
        *sides, targets[here], level=LEVEL, n=resamples, seed=seed
    )
    tests = tuple(_signed_rank(*sides, targets[here, j]) for j in range(len(names)))
    return PairDifference(
        base=a.name, instruct=b.name, task=a.task, measures=measures, targets=names,
        differences=found, signed_rank=tests,
        p_holm=alignment.holm([test.p for test in tests]), n=len(rows),
    )  # fmt: skip


def _check_same(
    a: Subject, b: Subject, names: Sequence[str], here: Sequence[int], there: Sequence[int]
) -> None:
    for name in names:
        one, two = a.numbers[name][here], b.numbers[name][there]
        odd = np.flatnonzero(~np.isclose(one, two, rtol=1e-9, atol=1e-12, equal_nan=True))
        if len(odd):
            i = odd[0]
            raise ValueError(
                f"Document {a.keys[here[i]]!r} of {a.task} has the {name} {one[i]:g} in {a.name} "
                f"but {two[i]:g} in {b.name}: a pair needs the same documents."
            )


def _signed_rank(instruct: Floats, base: Floats, target: Floats) -> SignedRank:
    """Over measures: one correlation per measure and model, on the shared documents."""
    column = target[:, None]
    sides = [_r_alone(side, column) for side in (instruct, base)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)  # n says why
        return alignment.wilcoxon(*sides)


def _r_alone(measures: Floats, target: Floats) -> Floats:
    return alignment.spearman_matrix(measures, target, n=2).r[:, 0]


def _notes(tables: Sequence[Aligned]) -> Iterator[str]:
    for table in tables:
        s = table.subject
        if s.missing:
            yield f"{s.name}: {s.missing:,} documents of {s.task} have not been read yet."
        for target, dropped in zip(table.targets, table.trimmed, strict=True):
            if dropped:
                yield f"{s.name}, {s.task}: {dropped:,} values of {target} were trimmed."
        reasons: dict[str, list[str]] = {}
        for i, j in zip(*np.nonzero(table.matrix.why != ""), strict=True):
            what = f"{table.measures[i]} with {table.targets[j]}"
            reasons.setdefault(table.matrix.why[i, j], []).append(what)
        for reason, cells in reasons.items():
            few = ", ".join(cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")
            yield f"{s.name}, {s.task}: no r of {few}, as {reason}."
