"""Methods side by side on the same documents: is Semantic Softmax better, and how sure is that?

    comparison = compare([Pair(readings, dev)])

`compare_data` says what that holds, `development` which documents may serve to fit temperatures,
`compare_notes` what a reader must know.

ECE alone is won by a uniform guess, and much of what any new scoring gains a temperature gains as
well. So one table holds a guess, the standard (constrained) softmax, Semantic Softmax, and their
corrections (`methods`), with proper scores beside calibration errors. Every value has a bootstrap
interval, and every row is compared with one of them, the constrained softmax by default, on the
same resamples.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core.bootstrap import Statistic, UndefinedMetricError, UndefinedMetricWarning
from lm_eval_semsoft.core.errors import check_choice, listed
from lm_eval_semsoft.core.semantic_softmax import Scoring

from . import methods, rescore
from .compare_data import MEASURES, Comparison, Difference, Figure, Row, Table, draws_of
from .compare_notes import dev_notes, general_notes, names_of, task_notes, temperature_notes
from .development import identities, usable_dev
from .measures import Judged, Measure
from .methods import METHODS, Answers
from .readings import Readings
from .resampling import LEVEL, RESAMPLES, interval, paired, replicates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Progress = Callable[[int, str], object]
Values = Mapping[tuple[str, str], Floats]  # (method, key of a measure) -> [1 + R]

REFERENCE = "constrained"  # every row is compared with it, unless another one is asked for
ACROSS = ("constrained", "semantic")  # rows that are compared between directories


@dataclass(frozen=True, eq=False)
class Pair:
    """Documents to evaluate, and others of the same task and model for fitting temperatures.

    Attributes:
        readings: evaluated.
        dev: None: no temperatures.
        scoring: of the Semantic Softmax; the run's own by default.
        kernel: as in `--model_args`; the run's own by default.
    """

    readings: Readings
    dev: Readings | None = None
    scoring: Scoring | None = None
    kernel: str | None = None


def compare(
    pairs: Sequence[Pair],
    alpha: float = methods.ALPHA,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Progress = lambda steps, what: None,
    against: str = REFERENCE,
) -> Comparison:
    """One table of methods per directory, and what differs between directories.

    All rows of all directories with the same number of documents see the same resamples.

    Args:
        pairs: at least one.
        alpha: see `methods.surprise`.
        resamples: bootstrap resamples of the documents behind every interval.
        seed: of the resamples and of the uniform guess.
        progress: called with the resamples that were done and the name of the directory;
            `steps_of` says how many there will be.
        against: name of the row that all others are compared with.

    Raises:
        ValueError: right labels are not known, development documents are evaluated, or are of
            another model, task or label set, the scoring asks for more than is stored, or there
            is no row `against`.
    """
    check_choice("against", against, tuple(m.name for m in METHODS))
    if not pairs:
        raise ValueError("There is nothing to compare: give at least one readouts directory.")
    names = names_of([pair.readings for pair in pairs])
    prepared = []
    for pair, name in zip(pairs, names, strict=True):
        prepared.append(_prepare(pair, name, alpha, seed))
        _check_reference(prepared[-1], against)
    measured, tables = [], []
    for own in prepared:
        report = functools.partial(_report, progress, own.name)
        measured.append(_values(own.statistics, len(own.ids), resamples, seed, report))
        tables.append(own.table(measured[-1], against, resamples))
    differences = [
        difference
        for i in range(1, len(prepared))
        for difference in _differences(prepared, measured, i, resamples, seed)
    ]
    return Comparison(
        tables=tuple(tables),
        differences=tuple(differences),
        reference=against,
        resamples=resamples,
        seed=seed,
        level=LEVEL,
        alpha=alpha,
        notes=tuple(general_notes(tables, differences)),
    )


def steps_of(pairs: Sequence[Pair], resamples: int = RESAMPLES) -> int:
    """How many steps `compare` reports."""
    return len(pairs) * resamples


def _report(progress: Progress, name: str, steps: int) -> None:
    progress(steps, name)


def _check_reference(own: _Prepared, against: str) -> None:
    rows = [a.method.name for a in own.answers]
    if against not in rows:
        raise ValueError(
            f"against={against!r}: {own.name} has no such row, only {listed(rows)} (temperatures "
            "take development documents, votes a label set of words)."
        )


# --------------------------------------------------------------------------------------------
# one directory
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A directory whose methods have answered; documents in the order of their keys.

    Attributes:
        ids: [n] see `identities`.
        target: [n, L].
        answers: one per method.
        statistics: (method, key of `MEASURES`) -> metric bound to the documents.
    """

    pair: Pair
    name: str
    scoring: Scoring
    kernel: str
    ids: list[tuple[str, str]]
    target: Bools
    answers: list[Answers]
    statistics: dict[tuple[str, str], Statistic[Any]]
    dropped: int
    notes: list[str]

    def table(self, values: Values, against: str, resamples: int) -> Table:
        readings, dev = self.pair.readings, self.pair.dev
        nothing = np.full(1 + resamples, np.nan)

        def figure(method: str, measure: Measure) -> Figure:
            own, reference = (
                values.get((m, measure.key), nothing)[: 1 + draws_of(measure, resamples)]
                for m in (method, against)
            )
            return _figure(measure, own, None if method == against else reference, readings.n)

        rows = tuple(
            Row(
                a.method.name,
                a.temperature,
                {m.key: figure(a.method.name, m) for m in MEASURES},
            )
            for a in self.answers
        )
        return Table(
            directory=str(readings.source.folder),
            name=self.name,
            model=readings.source.model,
            task=readings.task,
            n=readings.n,
            labels=len(readings.labels),
            scoring=self.scoring,
            kernel=self.kernel,
            dev=None if dev is None else str(dev.source.folder),
            n_dev=0 if dev is None else dev.n - self.dropped,
            dropped=self.dropped,
            rows=rows,
            notes=tuple(self.notes),
        )


def _prepare(pair: Pair, name: str, alpha: float, seed: int) -> _Prepared:
    readings = pair.readings
    target = readings.gold()
    scoring = pair.scoring or replace(readings.run_scoring, scoring="semantic")
    kernel = pair.kernel or rescore.run_kernel(readings)
    rescore.check_stored(readings, scoring, kernel)
    dev, dropped = (None, 0) if pair.dev is None else usable_dev(readings, pair.dev)
    notes = [*rescore.data_notes(readings), *task_notes(readings, scoring, kernel)]
    if dev is not None and pair.dev is not None:
        notes += dev_notes(pair.dev, dev, dropped)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = methods.answer_all(readings, dev, scoring, kernel, alpha)
    notes += [str(w.message) for w in caught if issubclass(w.category, UndefinedMetricWarning)]
    notes += temperature_notes(answers, name)

    # The order of the run's own standard errors, and one that is the same in every directory.
    order = np.argsort(np.array(readings.keys), kind="stable")
    ids = identities(readings)
    sorted_answers = [replace(a, log_probs=a.log_probs[order]) for a in answers]
    shared = readings.label_set is not None
    return _Prepared(
        pair=pair,
        name=name,
        scoring=scoring,
        kernel=kernel,
        ids=[ids[i] for i in order],
        target=target[order],
        answers=sorted_answers,
        statistics={
            (a.method.name, key): own
            for a in sorted_answers
            for key, own in _statistics(a, target[order], shared, seed).items()
        },
        dropped=dropped,
        notes=list(dict.fromkeys(notes)),
    )


def _statistics(
    answers: Answers, target: Bools, shared: bool, seed: int
) -> dict[str, Statistic[Any]]:
    """Every metric bound to a method's answers; those that do not exist are left out."""
    log_probs = answers.log_probs
    if np.isnan(log_probs).any():
        return {}
    guess = _guess(log_probs, seed) if answers.method.base == "uniform" else None
    judged = Judged(log_probs, target, guess)
    out = {}
    for measure in MEASURES:
        if shared or not measure.one_label_set:
            try:
                out[measure.key] = measure.bind(judged)
            except UndefinedMetricError:
                continue
    return out


def _guess(log_probs: Floats, seed: int) -> Ints:
    """One of its choices for every document, drawn at random."""
    draws = np.random.default_rng(seed).random(log_probs.shape)
    guess: Ints = np.where(np.isneginf(log_probs), -1.0, draws).argmax(axis=1)
    return guess


def _values(
    statistics: Mapping[tuple[str, str], Statistic[Any]],
    documents: int,
    resamples: int,
    seed: int,
    progress: Callable[[int], object] = lambda steps: None,
) -> Values:
    """NaN on resamples beyond `draws_of`."""
    enough = {m.key: draws_of(m, resamples) for m in MEASURES}
    of_each = {name: enough[name[1]] for name in statistics}
    return replicates(statistics, documents, resamples, seed, of_each, progress)


def _figure(measure: Measure, own: Floats, reference: Floats | None, documents: int) -> Figure:
    """From the values on all documents and on every resample."""
    value, ends = float(own[0]), interval(own)
    if reference is None:
        return Figure(value, *ends)
    gap = paired(own, reference, measure.higher, documents)
    unknown = measure.higher is None or np.isnan(own[0]) or np.isnan(reference[0])
    return Figure(
        value, *ends, None if unknown else gap.probability, gap.difference, gap.low, gap.high
    )


# --------------------------------------------------------------------------------------------
# between directories
# --------------------------------------------------------------------------------------------


def _differences(
    prepared: Sequence[_Prepared], measured: Sequence[Values], i: int, resamples: int, seed: int
) -> Iterator[Difference]:
    """Directory i minus the first one, on the documents that both hold."""
    first, second = prepared[0], prepared[i]
    if first.pair.readings.task != second.pair.readings.task:
        return
    rows_a, rows_b = _shared_rows(first.ids, second.ids)
    if len(rows_a) < 2 or not (first.target[rows_a] == second.target[rows_b]).all():
        return
    nothing = np.full(1 + resamples, np.nan)
    for method in ACROSS:
        if any(method not in [a.method.name for a in own.answers] for own in (first, second)):
            continue
        a, b = (
            _of_rows(own, values, method, rows, resamples, seed)
            for own, values, rows in (
                (first, measured[0], rows_a), (second, measured[i], rows_b),
            )
        )  # fmt: skip
        figures = {}
        for m in MEASURES:
            end = 1 + draws_of(m, resamples)
            one, other = (own.get((method, m.key), nothing)[:end] for own in (a, b))
            figures[m.key] = paired(other, one, m.higher, len(rows_a))
        yield Difference(method, first.name, second.name, len(rows_a), figures)


def _shared_rows(
    a: Sequence[tuple[str, str]], b: Sequence[tuple[str, str]]
) -> tuple[list[int], list[int]]:
    """Rows of the documents that both hold, in the order of a."""
    if a == b:
        return list(range(len(a))), list(range(len(b)))
    place = {own: row for row, own in enumerate(b)}
    rows = [(row, place.pop(own)) for row, own in enumerate(a) if own in place]
    return [row for row, _ in rows], [row for _, row in rows]


def _of_rows(
    own: _Prepared, values: Values, method: str, rows: Sequence[int], resamples: int, seed: int
) -> Values:
    """Values of a method on some documents; nothing new if these are all."""
    if len(rows) == len(own.ids) and list(rows) == list(range(len(rows))):
        return values
    answers = next(a for a in own.answers if a.method.name == method)
    some = replace(answers, log_probs=answers.log_probs[rows])
    shared = own.pair.readings.label_set is not None
    statistics = _statistics(some, own.target[rows], shared, seed)
    named = {(method, key): bound for key, bound in statistics.items()}
    return _values(named, len(rows), resamples, seed)
