"""Human alignment of whole runs: every measure of doubt with everything known about people.

    found = align(subjects_of("readouts/gemma"))

A subject is one task of one directory. Each gets a matrix of rank correlations, measures down,
targets (fields of the documents) across; pairs of subjects get the differences between matrices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import alignment
from lm_eval_semsoft.core.alignment import AlignmentMatrix, Differences, SignedRank
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning

from . import doubt
from .align_subjects import Subject, TimeRule, no_such_field, target_table

Floats = NDArray[np.float64]

# Group level, then individual level, then how hard a question is for people.
TARGETS = ("human_entropy", "response_time_correct", "response_time", "human_accuracy")
RESAMPLES = 1000
LEVEL = 0.95
ALPHA = 0.05  # a corrected p below this counts as a relation


# --------------------------------------------------------------------------------------------
# the result
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
        return [i for i, (a, b) in enumerate(self._names()) if a == b]

    def twins(self) -> list[tuple[str, str]]:
        """Every other measure, and the first one with its ranks."""
        return [(a, b) for a, b in self._names() if a != b]

    def _names(self) -> Iterator[tuple[str, str]]:
        return zip(self.measures, self.same_as, strict=True)

    def record(self) -> dict[str, Any]:
        s = self.subject
        own = {"directory": s.directory, "name": s.name, "model": s.model, "task": s.task}
        return {
            **own,
            "documents": len(s.keys),
            "missing": s.missing,
            "calibration": s.calibration,
            "trimmed": dict(zip(self.targets, self.trimmed, strict=True)),
            "same_ranks": dict(self.twins()),
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
        (*notes, *_notes(tables)),
    )  # fmt: skip


def rows_of(tables: Sequence[Aligned]) -> tuple[str, ...]:
    """Measures that any of the tables needs a row for."""
    needed = {t.measures[i] for t in tables for i in t.distinct}
    return tuple(dict.fromkeys(name for t in tables for name in t.measures if name in needed))


def signed(r: float) -> str:
    """Such as +.32 or −.05, and .00; – if it is none."""
    if r != r:
        return "–"
    text = f"{r:+.2f}".replace("0.", ".").replace("-", "−")
    return text[1:] if text[1:] == ".00" else text


def _targets(subjects: Sequence[Subject], wanted: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Which targets each subject has."""
    for name in wanted:
        if not any(name in s.numbers for s in subjects):
            raise no_such_field(name, sorted({own for s in subjects for own in s.numbers}))
    return {
        id(s): tuple(name for name in (wanted or TARGETS) if name in s.numbers) for s in subjects
    }


def _aligned(
    subject: Subject, names: tuple[str, ...], rule: TimeRule, resamples: int, seed: int
) -> Aligned:
    targets, trimmed = target_table(subject, names, rule)
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
    targets, _ = target_table(a, names, rule)
    measures = _distinct_in_either(base, instruct)
    base_x, instruct_x = (
        np.stack([s.measures[name][rows] for name in measures], axis=1)
        for s, rows in ((a, here), (b, there))
    )
    y = targets[here]
    found = alignment.spearman_differences(
        instruct_x, base_x, y, level=LEVEL, n=resamples, seed=seed
    )
    tests = tuple(_signed_rank(instruct_x, base_x, y[:, j]) for j in range(len(names)))
    return PairDifference(
        base=a.name, instruct=b.name, task=a.task, measures=measures, targets=names,
        differences=found, signed_rank=tests,
        p_holm=alignment.holm([test.p for test in tests]), n=len(rows),
    )  # fmt: skip


def _distinct_in_either(base: Aligned, instruct: Aligned) -> tuple[str, ...]:
    """Measures of both, without those that have the ranks of an earlier one in both."""
    first: dict[tuple[str, str], str] = {}
    there = dict(zip(instruct.measures, instruct.same_as, strict=True))
    for name, same in zip(base.measures, base.same_as, strict=True):
        if name in there:
            first.setdefault((same, there[name]), name)
    return tuple(first.values())


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
        if any(doc.get("published_data") == 0 for doc in s.docs):
            yield (
                f"{s.name}: the documents of {s.task} are the small sample in the package, not the "
                "published data; numbers mean nothing outside of tests."
            )
        if s.missing:
            yield f"{s.name}: {s.missing:,} documents of {s.task} have not been read yet."
        for target, dropped in zip(table.targets, table.trimmed, strict=True):
            if dropped:
                yield f"{s.name}, {s.task}: {dropped:,} values of {target} were trimmed."
        reasons: dict[str, dict[str, None]] = {}
        for i, j in zip(*np.nonzero(table.matrix.why != ""), strict=True):
            measure, target, why = table.measures[i], table.targets[j], table.matrix.why[i, j]
            known = {"the measure is constant": measure, "the target is constant": target}
            reasons.setdefault(why, {})[known.get(why, f"{measure} with {target}")] = None
        for reason, names in reasons.items():
            few = ", ".join([*names][:3]) + (
                f" and {len(names) - 3} more" if len(names) > 3 else ""
            )
            yield f"{s.name}, {s.task}: no r of {few}: {reason}."
