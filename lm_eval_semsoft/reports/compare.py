"""Methods side by side on the same documents: is Semantic Softmax better, and how sure is that?

    comparison = compare([Pair(readings, dev)])

ECE alone is won by a uniform guess, and much of what any new scoring gains a temperature gains as
well. So one table holds a guess, the standard (constrained) softmax, Semantic Softmax, and their
corrections (`methods`), with proper scores beside calibration errors. Every value has a bootstrap
interval, and every row is compared with the constrained softmax on the same resamples.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.core.bootstrap import (
    MIN_DEFINED_SHARE,
    Counts,
    Paired,
    Statistic,
    UndefinedMetricError,
    UndefinedMetricWarning,
    mean_of,
)
from lm_eval_semsoft.core.corrections import HOTTEST
from lm_eval_semsoft.core.semantic_softmax import Scoring

from . import methods, rescore, scores
from .methods import Answers
from .readings import Readings, take

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Progress = Callable[[int, str], object]

RESAMPLES = 1000
LEVEL = 0.95
REFERENCE = "constrained"  # every row is compared with it
ACROSS = ("constrained", "semantic")  # rows that are compared between directories

# These two cost more than all others together, and a share of the resamples will do.
SLOW = ("ece_sweep", "smooth_ece")
SLOW_SHARE = 0.4

# Differences of less are rounding: two sums of the same numbers in another order.
_ROUNDING = 12  # decimals
_STEP = 50  # resamples between two reports of progress


class Measure(NamedTuple):
    """A column: its key, its name, and whether more is better (None: neither)."""

    key: str
    name: str
    higher: bool | None


MEASURES: tuple[Measure, ...] = (
    Measure("accuracy", "accuracy", True),
    Measure("macro_f1", "macro-F1", True),
    Measure("auroc", "AUROC", True),
    Measure("brier", "Brier", False),
    Measure("nll", "NLL", False),
    Measure("ece", "ECE", False),
    Measure("ece_sweep", "ECE-sweep", False),
    Measure("smooth_ece", "smooth ECE", False),
    Measure("mean_confidence", "confidence", None),
)


# --------------------------------------------------------------------------------------------
# the result
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A value, its 95 % percentile bootstrap interval, and how it stands to the constrained row.

    Attributes:
        value: NaN where the metric does not exist.
        low, high: NaN where there is no interval.
        beats: share of the resamples in which this row is better than the constrained softmax,
            ties counted one half; None where there is nothing to compare.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    beats: float | None = None


@dataclass(frozen=True)
class Row:
    """A method.

    Attributes:
        method: its name, such as `semantic+prior`.
        temperature: the T that was fitted, None if the method has none.
        figures: key of `MEASURES` -> figure.
    """

    method: str
    temperature: float | None
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Table:
    """The methods on one directory.

    Attributes:
        directory, name, model, task: of what; `name` tells directories apart.
        n: documents.
        labels: how many there are to choose from.
        scoring, kernel: of the Semantic Softmax.
        dev: directory of the development documents, None if there are none.
        n_dev: development documents that T was fitted on.
        dropped: development documents that were left out, as their text is evaluated.
        rows: one per method, in the order of `methods.METHODS`.
        notes: what a reader must know, one sentence each.
    """

    directory: str
    name: str
    model: str
    task: str
    n: int
    labels: int
    scoring: Scoring
    kernel: str
    dev: str | None
    n_dev: int
    dropped: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """One method on two directories: the second minus the first, on the documents they share.

    Attributes:
        method: `constrained` or `semantic`.
        first, second: names of the directories.
        n: shared documents.
        figures: key of `MEASURES` -> `Paired`; its probability says how often the second is better
            (NaN for mean confidence).
    """

    method: str
    first: str
    second: str
    n: int
    figures: Mapping[str, Paired]


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns.

    Attributes:
        tables: one per directory.
        differences: every directory with the first one, if they share documents.
        resamples, seed, level: of all intervals; `SLOW` metrics have the first `SLOW_SHARE` of the
            resamples.
        alpha: of the surprise-weighted votes.
        notes: on all tables.
    """

    tables: tuple[Table, ...]
    differences: tuple[Difference, ...]
    resamples: int
    seed: int
    level: float
    alpha: float
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "level": self.level,
            "resamples": {m.key: draws_of(m, self.resamples) for m in MEASURES},
            "seed": self.seed,
            "alpha": self.alpha,
            "reference": REFERENCE,
            "better": {
                m.key: None if m.higher is None else "higher" if m.higher else "lower"
                for m in MEASURES
            },
            "tables": [_table_record(table) for table in self.tables],
            "differences": [
                {**vars(d), "figures": {k: vars(f) for k, f in d.figures.items()}}
                for d in self.differences
            ],
            "notes": list(self.notes),
        }


def _table_record(table: Table) -> dict[str, Any]:
    rows = [
        {
            "method": row.method,
            "temperature": row.temperature,
            "figures": {key: vars(figure) for key, figure in row.figures.items()},
        }
        for row in table.rows
    ]
    scoring = {**vars(table.scoring), "kernel": table.kernel}
    own = {**vars(table), "scoring": scoring, "rows": rows}
    del own["kernel"]
    return own


# --------------------------------------------------------------------------------------------
# the comparison
# --------------------------------------------------------------------------------------------


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

    Raises:
        ValueError: right labels are not known, development documents are evaluated, or are of
            another model, task or label set, or the scoring asks for more than is stored.
    """
    if not pairs:
        raise ValueError("There is nothing to compare: give at least one readouts directory.")
    names = _names([pair.readings for pair in pairs])
    prepared = [_prepare(pair, name, alpha, seed) for pair, name in zip(pairs, names, strict=True)]
    measured, tables = [], []
    for own in prepared:
        drawn = _replicates(own.statistics, len(own.ids), resamples, seed, progress, own.name)
        measured.append(drawn)
        tables.append(own.table(drawn))
    differences = [
        difference
        for i in range(1, len(prepared))
        for difference in _differences(prepared, measured, i, resamples, seed)
    ]
    return Comparison(
        tables=tuple(tables),
        differences=tuple(differences),
        resamples=resamples,
        seed=seed,
        level=LEVEL,
        alpha=alpha,
        notes=tuple(_notes(tables, differences)),
    )


def draws_of(measure: Measure, resamples: int) -> int:
    """How many of the resamples a metric is computed on."""
    return max(2, int(SLOW_SHARE * resamples)) if measure.key in SLOW else resamples


def steps_of(pairs: Sequence[Pair], resamples: int = RESAMPLES) -> int:
    """How many steps `compare` reports."""
    return len(pairs) * resamples


def match_dev(readings: Sequence[Readings], dev: Sequence[Readings]) -> list[Readings | None]:
    """Which development documents belong to which directory.

    In their order if there are as many and the models agree, else by model.

    Raises:
        ValueError: development documents of a model that is not compared, or of one that is
            compared more than once without as many `dev` as `readings`.
    """
    models = [r.source.manifest["fingerprint"] for r in readings]
    dev_models = [d.source.manifest["fingerprint"] for d in dev]
    if models == dev_models:
        return list(dev)
    out: list[Readings | None] = [None] * len(readings)
    for own, model in zip(dev, dev_models, strict=True):
        places = [i for i, other in enumerate(models) if other == model]
        if not places:
            raise ValueError(
                f"{own.source.folder} holds readouts of another model, precision or K "
                f"({own.source.model}) than {_listed([str(r.source.folder) for r in readings])}: a "
                "temperature must be fitted on the same model."
            )
        if len(places) > 1 or out[places[0]] is not None:
            raise ValueError(
                f"{own.source.folder} could belong to several directories, or several to one: give "
                "one --dev per directory, in the order of the directories."
            )
        out[places[0]] = own
    return out


# --------------------------------------------------------------------------------------------
# development documents
# --------------------------------------------------------------------------------------------

# Fields of a document that are not what the model reads.
_NOT_TEXT = {"id", "source", "label", "labels", "answer", "answerKey", "target", "gold"}


def usable_dev(readings: Readings, dev: Readings) -> tuple[Readings, int]:
    """The development documents whose text is not evaluated, and how many were left out.

    Raises:
        ValueError: another model, task or label set; a document that is evaluated; none is left.
    """
    here, there = readings.source.folder, dev.source.folder
    if dev.source.manifest["fingerprint"] != readings.source.manifest["fingerprint"]:
        raise ValueError(
            f"{there} holds readouts of another model, precision or K ({dev.source.model}) than "
            f"{here} ({readings.source.model}): a temperature must be fitted on the same model."
        )
    if dev.task != readings.task:
        raise ValueError(
            f"{there} holds task {dev.task}, {here} holds {readings.task}: a temperature must be "
            "fitted on the same task."
        )
    if (dev.labels, dev.label_set) != (readings.labels, readings.label_set):
        raise ValueError(
            f"The documents in {there} do not have the labels of those in {here}: a temperature "
            "must be fitted on the same label set."
        )
    ids, texts = identities(readings), texts_of(readings)
    evaluated = set(ids)
    both = [key for key, text in identities(dev) if (key, text) in evaluated]
    if both:
        raise ValueError(
            f"{len(both)} of the {dev.n} development documents in {there} are evaluated in {here} "
            f"(such as {both[0]!r}): a temperature that was fitted on evaluated documents proves "
            "nothing; use another split."
        )
    known = {*texts, *readings.prompts}
    fresh = [
        i
        for i, (text, prompt) in enumerate(zip(texts_of(dev), _prompts(dev), strict=True))
        if text not in known and prompt not in known
    ]
    if not fresh:
        raise ValueError(
            f"The text of every development document in {there} is evaluated in {here}."
        )
    # The same model has the same output embeddings: there is no need to read them twice.
    return replace(take(dev, fresh), source=readings.source), dev.n - len(fresh)


def texts_of(readings: Readings) -> list[str]:
    """What each document's fields say, without its key, its labels and where it is from."""
    prompts = _prompts(readings)
    return [_text(doc) or prompt for doc, prompt in zip(readings.docs, prompts, strict=True)]


def identities(readings: Readings) -> list[tuple[str, str]]:
    """Key and text of each document: together they say which one it is."""
    return list(zip(readings.keys, texts_of(readings), strict=True))


def _text(doc: object) -> str:
    """All text in a document as one string, "" if there is none."""
    if not isinstance(doc, dict):
        return json.dumps(doc)
    own = {k: _stripped(v) for k, v in doc.items() if k not in _NOT_TEXT and _has_text(v)}
    return json.dumps(own, sort_keys=True) if own else ""


def _has_text(value: object) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def _stripped(value: object) -> object:
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def _prompts(readings: Readings) -> Sequence[str]:
    return readings.prompts or [""] * readings.n


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
        statistics: one mapping per method, key of `MEASURES` -> metric bound to the documents.
    """

    pair: Pair
    name: str
    scoring: Scoring
    kernel: str
    ids: list[tuple[str, str]]
    target: Bools
    answers: list[Answers]
    statistics: list[dict[str, Statistic[Any]]]
    dropped: int
    notes: list[str]

    def table(self, drawn: Floats) -> Table:
        readings, dev = self.pair.readings, self.pair.dev
        reference = [a.method.name for a in self.answers].index(REFERENCE)
        rows = tuple(
            Row(
                a.method.name,
                a.temperature,
                {
                    m.key: _figure(m, drawn[i, j], None if i == reference else drawn[reference, j])
                    for j, m in enumerate(MEASURES)
                },
            )
            for i, a in enumerate(self.answers)
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
    notes = [*rescore.data_notes(readings), *_task_notes(readings, scoring, kernel)]
    if dev is not None and pair.dev is not None:
        notes += _dev_notes(pair.dev, dev, dropped)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = methods.answer_all(readings, dev, scoring, kernel, alpha)
    notes += [str(w.message) for w in caught if issubclass(w.category, UndefinedMetricWarning)]
    notes += _temperature_notes(answers, name)

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
        statistics=[_statistics(a, target[order], shared, seed) for a in sorted_answers],
        dropped=dropped,
        notes=list(dict.fromkeys(notes)),
    )


def _task_notes(readings: Readings, scoring: Scoring, kernel: str) -> Iterator[str]:
    if not scores.wants_cosine(readings, scoring, kernel):
        why = readings.why_identity or "kernel=identity"
        if scoring.scoring == "constrained":
            why = "scoring=constrained"
        yield f"{readings.name}: neighbours do not vote ({why}), so there is no semantic row."
    if readings.label_set is None:
        yield (
            f"{readings.name}: every document has choices of its own, so there is no prior of a "
            "label, no macro-F1 and no AUROC."
        )
    several = int((readings.gold().sum(axis=1) > 1).sum())
    if several:
        yield (
            f"{readings.name}: {several} of {readings.n} documents have several right labels, any "
            "of which counts."
        )
    if readings.n == 1:
        yield f"{readings.name}: one document cannot show how results vary; there is no interval."


def _dev_notes(given: Readings, dev: Readings, dropped: int) -> Iterator[str]:
    yield from rescore.data_notes(given)
    if dropped:
        yield (
            f"{given.name}: {dropped} of {given.n} development documents were left out, as their "
            "text is among the evaluated ones."
        )


def _temperature_notes(answers: Sequence[Answers], name: str) -> Iterator[str]:
    flat = [a.method.name for a in answers if a.temperature == HOTTEST]
    if flat:
        yield (
            f"{name}: for {_listed(flat)} a flatter distribution was always better on the "
            f"development documents (T stops at {HOTTEST:g}): as probabilities these scores are "
            "worth no more than a uniform guess."
        )


def _statistics(
    answers: Answers, target: Bools, shared: bool, seed: int
) -> dict[str, Statistic[Any]]:
    """Every metric bound to a method's answers; those that do not exist are left out."""
    log_probs = answers.log_probs
    probs = np.exp(log_probs)
    decided = probs
    if answers.method.base == "uniform":
        decided = _one_hot(_guess(log_probs, seed), probs.shape[1])
    labels = classification.resolve_target(decided, target)
    right = (decided.argmax(axis=1) == labels) & ~np.isnan(probs).any(axis=1)
    confidence = probs.max(axis=1)
    found: dict[str, Callable[[], Statistic[Any]]] = {
        "accuracy": lambda: _bind(classification.accuracy, decided, labels),
        "macro_f1": lambda: _bind(classification.macro_f1, decided, labels),
        "auroc": lambda: _bind(classification.auroc, probs, labels),
        "brier": lambda: _bind(calibration.brier, probs, labels),
        "nll": lambda: _nll(log_probs, labels),
        "ece": lambda: _bind(calibration.ece, confidence, right),
        "ece_sweep": lambda: _bind(calibration.ece_sweep, confidence, right),
        "smooth_ece": lambda: _bind(calibration.smooth_ece, confidence, right),
        "mean_confidence": lambda: _bind(calibration.mean_confidence, confidence),
    }
    if np.isnan(probs).any():
        return {}
    out = {}
    for key, bind in found.items():
        if shared or key not in rescore.ONE_LABEL_SET:
            try:
                out[key] = bind()
            except UndefinedMetricError:
                continue
    return out


def _bind(metric: Callable[..., Any], *arrays: NDArray[Any]) -> Statistic[Any]:
    statistic: Statistic[Any] = vars(metric)["prepare"](*arrays)
    return statistic


def _nll(log_probs: Floats, labels: Ints) -> Statistic[float]:
    """From log-probabilities, as in the task's table: a probability may underflow, they do not."""
    loss = -log_probs[np.arange(len(labels)), labels]
    impossible = np.isposinf(loss)
    finite = mean_of(np.where(impossible, 0.0, loss))
    return Statistic(
        finite.n, lambda counts: math.inf if counts[impossible].any() else finite.at(counts)
    )


def _guess(log_probs: Floats, seed: int) -> Ints:
    """One of its choices for every document, drawn at random."""
    draws = np.random.default_rng(seed).random(log_probs.shape)
    guess: Ints = np.where(np.isneginf(log_probs), -1.0, draws).argmax(axis=1)
    return guess


def _one_hot(labels: Ints, size: int) -> Floats:
    return (labels[:, None] == np.arange(size)).astype(np.float64)


# --------------------------------------------------------------------------------------------
# resampling
# --------------------------------------------------------------------------------------------


def _replicates(
    statistics: Sequence[Mapping[str, Statistic[Any]]],
    documents: int,
    resamples: int,
    seed: int,
    progress: Progress = lambda steps, what: None,
    name: str = "",
) -> Floats:
    """[methods, measures, 1 + resamples]: on all documents, then on every resample.

    NaN where there is no value, and on resamples beyond `draws_of`.
    """
    out = np.full((len(statistics), len(MEASURES), 1 + resamples), np.nan)
    # One document cannot show how results vary.
    draws = iter(()) if documents < 2 else bootstrap.resamples(documents, resamples, seed)
    everything: Counts = np.ones(documents, dtype=np.int64)
    enough = [draws_of(measure, resamples) for measure in MEASURES]
    for b, counts in enumerate(itertools.chain([everything], draws)):
        for i, own in enumerate(statistics):
            for j, measure in enumerate(MEASURES):
                if b <= enough[j] and measure.key in own:
                    out[i, j, b] = bootstrap.number_at(own[measure.key], counts)
        if b % _STEP == 0 and b:
            progress(_STEP, name)
    progress(resamples % _STEP, name)
    return out


def _figure(measure: Measure, own: Floats, reference: Floats | None) -> Figure:
    """From the values on all documents and on every resample."""
    end = 1 + draws_of(measure, len(own) - 1)
    value, drawn = float(own[0]), own[1:end]
    if math.isnan(value):
        return Figure(value)
    low, high = _interval(drawn)
    if reference is None or measure.higher is None or math.isnan(reference[0]):
        return Figure(value, low, high)
    return Figure(value, low, high, _probability(measure, drawn, reference[1:end]))


def _interval(drawn: Floats) -> tuple[float, float]:
    """The percentile interval; NaN if too few of the values are numbers."""
    if not _usable(drawn):
        return math.nan, math.nan
    low, high = np.quantile(drawn[~np.isnan(drawn)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _probability(measure: Measure, a: Floats, b: Floats) -> float:
    with np.errstate(invalid="ignore"):  # infinite - infinite
        gains = np.round(a - b if measure.higher else b - a, _ROUNDING)
    if not _usable(gains):
        return math.nan
    gains = gains[~np.isnan(gains)]
    return float(np.mean((gains > 0) + (gains == 0) / 2))


def _usable(drawn: Floats) -> bool:
    """Do these replicates say how results vary? The rules of `core.bootstrap`."""
    defined = len(drawn) - int(np.isnan(drawn).sum())
    return not np.isinf(drawn).any() and defined >= max(2, MIN_DEFINED_SHARE * len(drawn))


# --------------------------------------------------------------------------------------------
# between directories
# --------------------------------------------------------------------------------------------


def _differences(
    prepared: Sequence[_Prepared], measured: Sequence[Floats], i: int, resamples: int, seed: int
) -> Iterator[Difference]:
    """Directory i minus the first one, on the documents that both hold."""
    first, second = prepared[0], prepared[i]
    if first.pair.readings.task != second.pair.readings.task:
        return
    rows_a, rows_b = _shared_rows(first.ids, second.ids)
    if len(rows_a) < 2 or not (first.target[rows_a] == second.target[rows_b]).all():
        return
    for method in ACROSS:
        places = [_place(own, method) for own in (first, second)]
        if None in places:
            continue
        drawn = [
            _of_rows(own, all_drawn, place, rows, resamples, seed)
            for own, all_drawn, place, rows in zip(
                (first, second), (measured[0], measured[i]), places, (rows_a, rows_b), strict=True
            )
        ]
        figures = {
            m.key: _paired(m, drawn[1][j], drawn[0][j], len(rows_a)) for j, m in enumerate(MEASURES)
        }
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


def _place(own: _Prepared, method: str) -> Any:
    names = [a.method.name for a in own.answers]
    return names.index(method) if method in names else None


def _of_rows(
    own: _Prepared, drawn: Floats, place: int, rows: Sequence[int], resamples: int, seed: int
) -> Floats:
    """[measures, 1 + resamples] of a method on some documents; nothing new if these are all."""
    if len(rows) == len(own.ids) and list(rows) == list(range(len(rows))):
        return drawn[place]
    answers = own.answers[place]
    some = replace(answers, log_probs=answers.log_probs[rows])
    shared = own.pair.readings.label_set is not None
    statistics = _statistics(some, own.target[rows], shared, seed)
    return _replicates([statistics], len(rows), resamples, seed)[0]


def _paired(measure: Measure, a: Floats, b: Floats, n: int) -> Paired:
    """a minus b."""
    difference = float(a[0] - b[0])
    if math.isnan(difference):
        return Paired(math.nan, math.nan, math.nan, math.nan, n)
    drawn = slice(1, 1 + draws_of(measure, len(a) - 1))
    low, high = _interval(a[drawn] - b[drawn])
    sure = math.nan if measure.higher is None else _probability(measure, a[drawn], b[drawn])
    return Paired(difference, low, high, sure, n)


# --------------------------------------------------------------------------------------------
# words
# --------------------------------------------------------------------------------------------


def _names(readings: Sequence[Readings]) -> list[str]:
    """The directories' own names, their paths where those are not enough, numbers if need be."""
    names = [r.name for r in readings]
    if len(set(names)) < len(names):
        names = [str(r.source.folder) for r in readings]
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names, start=1)]
    return names


def _notes(tables: Sequence[Table], differences: Sequence[Difference]) -> Iterator[str]:
    yield (
        "uniform: every choice equally probable; for accuracy, macro-F1 and the calibration errors "
        "one label is drawn at random for each document."
    )
    used = {row.method for table in tables for row in table.rows}
    if any("+prior" in name for name in used):
        yield (
            "+prior: divided by the mean probability of each label over these very documents; it "
            "uses no labels (transductive)."
        )
    if any(name.startswith("surprise") for name in used):
        yield (
            "surprise: a token votes the louder, the less probable it is on average over these "
            "very documents; it uses no labels (transductive). Its neighbourhoods are those of "
            f"space {methods.SURPRISE.space}, tau {methods.SURPRISE.tau}."
        )
    if any("+temperature" in name for name in used):
        yield "+temperature: T fitted on labelled development documents, none of them evaluated."
    if without := [table.name for table in tables if table.dev is None]:
        yield f"No temperature for {_listed(without)}: it takes development documents (--dev)."
    if any(d.n < max(table.n for table in tables) for d in differences):
        yield "Directories are compared on the documents that both hold."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
