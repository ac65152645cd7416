"""Which kernel is best on these documents? Every combination of a grid, from readouts alone.

    result = tune(readings, make_grid(readings, tau=["q0.95", "q0.99"]), parse_objective("brier"))

A cell of the grid is one `Scoring`. The standard (constrained) softmax and the package's default
stand beside the grid as references.

How it is fast: cosines once per space and anchors; only tokens that are among the top K of some
document are looked at; of those only the ones that vote; the votes for all K come from one pass
over bands of ranks; the kernels of `rival_votes=on` and `off` share all rows but those of tokens
that spell a label. The scores are those of `scores.log_scores`.

What is honest about it: the best of many cells is partly the luckiest, so its value is optimistic.
Two checks come with it: how many cells cannot be told from the best on these documents, and what
the cell that one half of the documents chooses is worth on the other half.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.stats
from numpy.typing import NDArray

from lm_eval_semsoft.core import bootstrap, calibration, classification
from lm_eval_semsoft.core.bootstrap import Counts, Interval, Paired, UndefinedMetricError
from lm_eval_semsoft.core.corrections import prior_correction
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.core.semantic_softmax import (
    Scoring,
    build_kernel,
    normalise,
    parse_space,
    parse_tau,
    semantic_log_scores,
)

from . import scores
from .readings import Readings, take

Floats = NDArray[np.float64]
Tau = float | str

DEFAULT = Scoring()
CONSTRAINED = Scoring(scoring="constrained")

SPACES = ("raw", "centered", "pc:3", "whitened")
TAUS: tuple[Tau, ...] = (0.3, 0.5, 0.8, "q0.95", "q0.98", "q0.99", "q0.995", "q0.999")
TOP_KS = (50, 200, 1000)
ANCHORS = ("variants", "spelled")
RIVAL_VOTES = ("on", "off")

AXES = ("space", "tau", "top_k", "anchors", "rival_votes")  # what differs between cells
RESAMPLES = 1000  # behind the intervals of the best cell
CELL_RESAMPLES = 64  # behind the standard error of every other cell's distance from it
TIE = 9  # decimals; values that agree in them are equal, the rest is the order of summation


# --------------------------------------------------------------------------------------------
# objectives
# --------------------------------------------------------------------------------------------


class Measure(NamedTuple):
    """A metric of `core`: what it takes (`probs` or `confidence`), and is more better?"""

    fn: Callable[..., Any]
    takes: str
    higher: bool


MEASURES = {
    "brier": Measure(calibration.brier, "probs", False),
    "nll": Measure(calibration.nll, "probs", False),
    "ece": Measure(calibration.ece, "confidence", False),
    "ece_sweep": Measure(calibration.ece_sweep, "confidence", False),
    "smooth_ece": Measure(calibration.smooth_ece, "confidence", False),
    "auroc": Measure(classification.auroc, "probs", True),
    "accuracy": Measure(classification.accuracy, "probs", True),
    "macro_f1": Measure(classification.macro_f1, "probs", True),
}


@dataclass(frozen=True)
class Objective:
    """What makes a cell the best one.

    Attributes:
        text: as it was given.
        metrics: keys of `MEASURES`; one, unless cells are ranked.
        ranked: the value of a cell is its rank by each metric (1 is the best, equal values share
            their mean rank), averaged over the metrics. References are ranked along.
    """

    text: str
    metrics: tuple[str, ...]
    ranked: bool

    @property
    def higher(self) -> bool:
        """Is more better? A low rank is."""
        return not self.ranked and MEASURES[self.metrics[0]].higher

    def values(self, table: Floats) -> Floats:
        """Values [cells] from metrics [cells, metrics]; a NaN has the worst rank."""
        if not self.ranked:
            return table[:, 0]
        signs = np.array([-1.0 if MEASURES[m].higher else 1.0 for m in self.metrics])
        losses = np.where(np.isnan(table), np.inf, np.round(table * signs, TIE))
        ranks: Floats = scipy.stats.rankdata(losses, axis=0).mean(axis=1)
        return ranks

    def losses(self, values: Floats) -> Floats:
        """The less the better, with ties made equal and NaN last."""
        signed = -values if self.higher else values
        return np.where(np.isnan(signed), np.inf, np.round(signed, TIE))


def parse_objective(text: str) -> Objective:
    """`brier`, or `rank:brier,auroc` for the best mean rank over several metrics.

    Raises:
        ValueError: an unknown metric, or one that is named twice.
    """
    ranked = text.startswith("rank:")
    metrics = tuple(m.strip() for m in text.removeprefix("rank:").split(",")) if ranked else (text,)
    for metric in metrics:
        check_choice("objective", metric, tuple(MEASURES))
    if len(set(metrics)) < len(metrics):
        raise ValueError(f"objective={text!r} names a metric twice: name each once.")
    return Objective(text, metrics, ranked)


# --------------------------------------------------------------------------------------------
# the grid
# --------------------------------------------------------------------------------------------


def make_grid(
    readings: Readings,
    space: Sequence[str] | None = None,
    tau: Sequence[Tau] | None = None,
    top_k: Sequence[int] | None = None,
    anchors: Sequence[str] | None = None,
    rival_votes: Sequence[str] | None = None,
) -> list[Scoring]:
    """All combinations of the values that are given, and of the default ones elsewhere.

    Values that mean the same are taken once. By default no K exceeds what the readouts hold.

    Raises:
        ValueError: an unknown value, or a K of which the readouts do not hold the tokens.
    """
    for k in top_k or ():
        if (reached := _reach(readings, k)) < k:
            raise ValueError(
                f"top_k={k}: these readouts hold the {reached} most probable tokens of every "
                f"document, so K is at most {reached}."
            )
    # dict.fromkeys: each value once, in the order given.
    spaces, taus = dict.fromkeys(space or SPACES), dict.fromkeys(map(canonical, tau or TAUS))
    reachable = dict.fromkeys(_reach(readings, k) for k in top_k or TOP_KS)
    which, switches = dict.fromkeys(anchors or ANCHORS), dict.fromkeys(rival_votes or RIVAL_VOTES)
    combinations = itertools.product(spaces, taus, reachable, which, switches)
    return [
        Scoring(space=phi, tau=t, top_k=k, anchors=own, rival_votes=switch)
        for phi, t, k, own, switch in combinations
    ]


def canonical(tau: Tau) -> Tau:
    """One spelling per threshold: .5 for "0.50", "q0.95" for "q.950".

    Raises:
        ValueError: as `core.semantic_softmax.parse_tau`.
    """
    value, quantile = parse_tau(tau)
    return f"q{value}" if quantile else value


def simplicity(scoring: Scoring) -> tuple[int, tuple[int, int], int]:
    """The smaller, the simpler; decides between cells of equal value.

    Fewest arguments that differ from the package's default, then fewest directions removed
    (raw, centered, pc:1, …, whitened), then smallest K.
    """
    kind, directions = parse_space(scoring.space)
    order = ("raw", "centered", "pc", "whitened")
    changed = sum(getattr(scoring, axis) != getattr(DEFAULT, axis) for axis in AXES)
    return changed, (order.index(kind), directions), scoring.top_k


def model_args(scoring: Scoring) -> str:
    """What to add to `--model_args`: the arguments that differ from the default, "" if none do."""
    if scoring.scoring == "constrained":
        return "scoring=constrained"
    return ",".join(
        f"{axis}={getattr(scoring, axis)}"
        for axis in AXES
        if getattr(scoring, axis) != getattr(DEFAULT, axis)
    )


# --------------------------------------------------------------------------------------------
# scores of many scorings
# --------------------------------------------------------------------------------------------


def many_log_scores(
    readings: Readings, scorings: Sequence[Scoring]
) -> Iterator[tuple[Scoring, Floats]]:
    """log S [n, L] of every scoring, each once, in the order that is quickest.

    The values are those of `scores.log_scores` but for the order of summation.

    Args:
        scorings: with the exact own vote; K at most what the readouts hold.
    """
    assert readings.label_set is not None
    cells = sorted(set(scorings), key=lambda s: (s.anchors, s.space, str(s.tau)))
    voices = _Voices(readings, sorted({s.top_k for s in cells}))
    for which, of_anchors in itertools.groupby(cells, lambda s: s.anchors):
        own = list(of_anchors)
        switches = sorted({s.rival_votes for s in own})
        silencer = _Silencer(readings, voices.tokens, which, switches)
        for space, of_space in itertools.groupby(own, lambda s: s.space):
            group = list(of_space)
            cosines = readings.source.cosines(readings.label_set, space, which)
            limits = thresholds(cosines, list(dict.fromkeys(s.tau for s in group)))
            heard = cosines[voices.tokens]
            for tau, of_tau in itertools.groupby(group, lambda s: s.tau):
                weights = np.maximum(heard - limits[tau], 0.0, dtype=np.float32)
                votes = silencer.votes(voices, weights / (1 - limits[tau]))
                for scoring in of_tau:
                    given = votes[scoring.rival_votes, scoring.top_k]
                    yield scoring, semantic_log_scores(readings.label_logprobs, given, scoring)


def thresholds(cosines: NDArray[np.float32], taus: Sequence[Tau]) -> dict[Tau, NDArray[np.float32]]:
    """tau_l of every tau, [L] each, as `build_kernel` sets it, from cosines [V, L] sorted once."""
    ranked = np.sort(cosines.T, axis=1)  # a quantile of sorted values takes no search
    out = {}
    for tau in taus:
        value, quantile = parse_tau(tau)
        own = np.quantile(ranked, value, axis=1) if quantile else np.full(len(ranked), value)
        out[tau] = np.minimum(own, 1.0 - 1e-6).astype(np.float32)
    return out


class _Voices:
    """What the documents' top-K tokens say, in bands of ranks.

    Attributes:
        tokens: [S] ids of all tokens that are among the top K of some document.
    """

    def __init__(self, readings: Readings, top_ks: Sequence[int]) -> None:
        ids = readings.topk_ids[:, : top_ks[-1]]
        p = np.exp(readings.topk_logprobs[:, : top_ks[-1]])
        self.tokens = np.flatnonzero(np.bincount(ids.ravel()))
        place = np.zeros(self.tokens[-1] + 1, dtype=np.int32)
        place[self.tokens] = np.arange(len(self.tokens))
        self._bands: list[tuple[int, scipy.sparse.csc_array]] = []
        for start, end in itertools.pairwise((0, *top_ks)):
            band = scores.token_matrix(place[ids[:, start:end]], p[:, start:end], len(self.tokens))
            self._bands.append((end, band.tocsc()))

    def votes(self, weights: NDArray[np.float32], rows: NDArray[np.intp]) -> dict[int, Floats]:
        """K -> sum over the top K of p(v|x) w(v, l), [n, L], for w [S, L] in some of its rows."""
        some = weights[rows]
        loud = some @ np.ones(some.shape[1], dtype=np.float32) > 0
        voters, own = rows[loud], some[loud].astype(np.float64)
        out, total = {}, np.zeros((self._bands[0][1].shape[0], weights.shape[1]))
        for top_k, band in self._bands:
            total = total + band[:, voters] @ own
            out[top_k] = total
        return out


class _Silencer:
    """Who may vote for whom, however near; the answer is the same for nearly all tokens."""

    def __init__(
        self,
        readings: Readings,
        tokens: NDArray[np.intp],
        anchors: str,
        switches: Sequence[str],
    ) -> None:
        assert readings.label_set is not None
        everywhere = np.ones((readings.vocabulary, len(readings.labels)), dtype=np.float32)
        self._allowed: dict[str, NDArray[np.float32]] = {}
        for switch in switches:
            # The kernel of tokens that are all equally near to everything: 1 or silenced.
            scoring = Scoring(tau=0.0, anchors=anchors, rival_votes=switch)
            kernel = build_kernel(everywhere, readings.label_set, scoring)
            self._allowed[switch] = kernel.weights[tokens]
        first = self._allowed[switches[0]]
        differs = [(mask != first).any(axis=1) for mask in self._allowed.values()]
        self._split = np.logical_or.reduce(differs)

    def votes(self, voices: _Voices, weights: NDArray[np.float32]) -> dict[tuple[str, int], Floats]:
        """(rival votes, K) -> votes [n, L], from weights before anybody is silenced."""
        some, all_others = np.flatnonzero(self._split), np.flatnonzero(~self._split)
        shared: dict[int, Floats] = {}
        out = {}
        for switch, allowed in self._allowed.items():
            audible = weights * allowed
            shared = shared or voices.votes(audible, all_others)
            for top_k, votes in voices.votes(audible, some).items():
                out[switch, top_k] = shared[top_k] + votes
        return out


# --------------------------------------------------------------------------------------------
# the result
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A scoring and what it is worth.

    Attributes:
        scoring: the cell.
        value: of the objective.
        metrics: all of `MEASURES`; NaN where one does not exist.
        behind: value minus the best cell's.
        stderr: bootstrap standard error of that difference, on the same resamples.
        alike: can it not be told from the best cell? |behind| is at most 1.96 stderr.
    """

    scoring: Scoring
    value: float
    metrics: Mapping[str, float]
    behind: float = 0.0
    stderr: float = 0.0
    alike: bool = True


@dataclass(frozen=True)
class Half:
    """A choice on one half of the documents, judged by the other half.

    Attributes:
        chosen: the best cell of the grid on the one half.
        there: its value on that half.
        here: its value on the other half, which had no say.
        constrained, default: values of the references on that other half.
    """

    chosen: Scoring
    there: float
    here: float
    constrained: float
    default: float


@dataclass(frozen=True)
class Tuned:
    """What a grid says.

    Attributes:
        objective: what was looked for.
        prior: were the scores prior-corrected?
        directory, model, task, n: on what; n is the number of documents.
        cells: of the grid, best first.
        constrained, default: the references.
        uniform: what a guess that says 1/L always gets, by the metrics where that is a number;
            ECE is won by it, and a proper score that is no better says that little is known.
        intervals: metric of the objective -> 95 % bootstrap interval of the best cell.
        over_constrained: metric -> best cell minus constrained softmax.
        over_default: the same against the package's default; empty if that is the best cell.
        halves: each half chooses once; None where a half is too small for the objective.
    """

    objective: Objective
    prior: bool
    directory: str
    model: str
    task: str
    n: int
    cells: tuple[Cell, ...]
    constrained: Cell
    default: Cell
    uniform: Mapping[str, float]
    intervals: Mapping[str, Interval]
    over_constrained: Mapping[str, Paired]
    over_default: Mapping[str, Paired]
    halves: tuple[Half, Half] | None

    @property
    def best(self) -> Cell:
        return self.cells[0]

    @property
    def alike(self) -> int:
        """How many other cells of the grid cannot be told from the best."""
        return sum(cell.alike for cell in self.cells[1:])

    @property
    def beats_constrained(self) -> bool:
        """Is the best cell better than the standard softmax at all?"""
        best, reference = self.objective.losses(np.array([self.best.value, self.constrained.value]))
        return bool(best < reference)

    @property
    def recommended(self) -> Scoring:
        """The best cell, or the standard softmax where that is as good."""
        return self.best.scoring if self.beats_constrained else CONSTRAINED


def tune(
    readings: Readings,
    grid: Sequence[Scoring],
    objective: Objective,
    prior: bool = False,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, cells: None,
) -> Tuned:
    """Score all documents with every cell and find the best one.

    Cells of equal value (to 9 decimals) are ordered by `simplicity`.

    Args:
        readings: development documents with targets: numbers chosen here must not be reported on
            the documents that chose them.
        grid: from `make_grid`.
        prior: correct every cell's label prior on these documents first (it uses no targets).
        seed: of resamples and halves.
        progress: told how many cells of how many are done.

    Raises:
        ValueError: nobody votes in this task, targets are missing, there are fewer than two
            documents, or the objective does not exist on them.
    """
    target = _check(readings)
    default = default_of(readings)
    rows = list(dict.fromkeys([CONSTRAINED, default, *grid]))
    place = {scoring: i for i, scoring in enumerate(rows)}
    draws = _draws(readings.n, seed)
    metrics: dict[Scoring, dict[str, float]] = {}
    table = np.full((len(rows), len(draws), len(objective.metrics)), np.nan)

    def judge(scoring: Scoring, log_s: Floats) -> None:
        measured = _Measured(prior_correction(log_s) if prior else log_s, target)
        metrics[scoring] = {name: measured.at(name, draws[:1])[0] for name in MEASURES}
        for i, name in enumerate(objective.metrics):
            table[place[scoring], :, i] = measured.at(name, draws)
        progress(len(metrics), len(rows))

    judge(CONSTRAINED, readings.label_logprobs.astype(np.float64))
    _check_objective(objective, metrics[CONSTRAINED], readings)
    for scoring, log_s in many_log_scores(readings, rows[1:]):
        judge(scoring, log_s)

    values = np.stack([objective.values(draw) for draw in table.swapaxes(0, 1)], axis=1)
    losses = np.stack([objective.losses(draw) for draw in values.T], axis=1)
    order = sorted({place[s] for s in grid}, key=lambda i: (losses[i, 0], simplicity(rows[i]), i))
    best = order[0]
    if np.isinf(losses[best, 0]):
        raise ValueError(f"{objective.text} is not a finite number for any cell of the grid.")
    cells = {i: _cell(rows[i], metrics[rows[i]], values[i], values[best]) for i in range(len(rows))}

    def arrays(scoring: Scoring) -> _Measured:
        log_s = scores.log_scores(readings, scoring)
        return _Measured(prior_correction(log_s) if prior else log_s, target)

    winner = arrays(rows[best])
    return Tuned(
        objective=objective,
        prior=prior,
        directory=str(readings.source.folder),
        model=readings.source.model,
        task=readings.task,
        n=readings.n,
        cells=tuple(cells[i] for i in order),
        constrained=cells[0],
        default=cells[place[default]],
        uniform=_uniform(len(readings.labels)),
        intervals={m: winner.interval(m, seed) for m in objective.metrics},
        over_constrained=winner.over(arrays(CONSTRAINED), objective.metrics, seed),
        over_default={}
        if rows[best] == default
        else winner.over(arrays(default), objective.metrics, seed),
        halves=_halves(rows, order, place[default], values, losses),
    )


def subset(readings: Readings, limit: int, seed: int = 0) -> Readings:
    """`limit` documents at random, in their order; all of them if there are no more."""
    if limit >= readings.n:
        return readings
    chosen = np.sort(np.random.default_rng(seed).permutation(readings.n)[:limit])
    return take(readings, chosen.tolist())


def default_of(readings: Readings) -> Scoring:
    """The package's default, with no more tokens than the readouts hold."""
    return replace(DEFAULT, top_k=_reach(readings, DEFAULT.top_k))


def _reach(readings: Readings, top_k: int) -> int:
    """K, or what the readouts hold if that is less; any K will do if they hold all tokens."""
    stored = readings.topk_ids.shape[1]
    return top_k if top_k <= stored or stored >= readings.vocabulary else stored


def _check(readings: Readings) -> NDArray[np.bool_]:
    """The targets, if there is something to tune."""
    if readings.label_set is None or readings.why_identity is not None:
        why = readings.why_identity or "its documents do not share one label set"
        raise ValueError(
            f"Neighbours do not vote in task {readings.task} ({why}): there is no kernel to tune."
        )
    target = readings.gold()
    if readings.n < 2:
        raise ValueError(
            f"There is one document of task {readings.task} in {readings.source.folder}: it takes "
            "at least two, and some hundreds to tell cells apart."
        )
    return target


def _check_objective(objective: Objective, found: Mapping[str, float], readings: Readings) -> None:
    for name in objective.metrics:
        if not math.isfinite(found[name]):
            raise ValueError(
                f"objective={objective.text!r}: {name} does not exist on these {readings.n} "
                "documents (are all of one label?)."
            )


def _draws(documents: int, seed: int) -> list[Counts]:
    """All documents, the two halves, and the resamples, as counts."""
    first = np.zeros(documents, dtype=np.int64)
    first[np.random.default_rng(seed).permutation(documents)[: documents // 2]] = 1
    resampled = bootstrap.resamples(documents, CELL_RESAMPLES, seed)
    return [np.ones_like(first), first, 1 - first, *resampled]


class _Measured:
    """The metrics of one cell: everything that does not depend on the resample is done once."""

    def __init__(self, log_s: Floats, target: NDArray[np.bool_]) -> None:
        probs = normalise(log_s)
        labels = classification.resolve_target(probs, target)
        right = probs.argmax(axis=1) == labels
        self._arrays = {"probs": (probs, labels), "confidence": (probs.max(axis=1), right)}

    def arrays(self, metric: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """What the metric takes."""
        return self._arrays[MEASURES[metric].takes]

    def at(self, metric: str, draws: Sequence[Counts]) -> list[float]:
        """The metric on every draw; NaN where it does not exist."""
        try:
            statistic = vars(MEASURES[metric].fn)["prepare"](*self.arrays(metric))
        except UndefinedMetricError:
            return [math.nan] * len(draws)
        return [bootstrap.number_at(statistic, counts) for counts in draws]

    def interval(self, metric: str, seed: int) -> Interval:
        fn = MEASURES[metric].fn
        return bootstrap.interval(fn, *self.arrays(metric), n=RESAMPLES, seed=seed)

    def over(self, other: _Measured, metrics: Sequence[str], seed: int) -> dict[str, Paired]:
        """This cell compared with another one."""
        return {
            name: bootstrap.paired(
                MEASURES[name].fn,
                self.arrays(name),
                other.arrays(name),
                n=RESAMPLES,
                seed=seed,
                higher_is_better=MEASURES[name].higher,
            )
            for name in metrics
        }


def _cell(scoring: Scoring, metrics: Mapping[str, float], values: Floats, best: Floats) -> Cell:
    """A cell from its values and those of the best one on all draws."""
    with np.errstate(invalid="ignore"):  # infinite - infinite
        behind = values - best
    resampled = behind[3:][np.isfinite(behind[3:])]
    stderr = float(resampled.std(ddof=1)) if resampled.size > 1 else math.nan
    alike = abs(behind[0]) <= max(1.96 * stderr, 0.5 * 10.0**-TIE)
    return Cell(scoring, float(values[0]), metrics, float(behind[0]), stderr, bool(alike))


def _uniform(labels: int) -> dict[str, float]:
    return {"brier": 1 - 1 / labels, "nll": math.log(labels), "auroc": 0.5}


def _halves(
    rows: Sequence[Scoring], grid: Sequence[int], default: int, values: Floats, losses: Floats
) -> tuple[Half, Half] | None:
    """Choose on draw 1 and judge on draw 2, and the other way round."""

    def half(choose: int, judge: int) -> Half:
        chosen = min(grid, key=lambda i: (losses[i, choose], simplicity(rows[i])))
        there, here = values[chosen, [choose, judge]]
        constrained, other = values[[0, default], judge]
        return Half(rows[chosen], *map(float, (there, here, constrained, other)))

    both = half(1, 2), half(2, 1)
    numbers = [x for h in both for x in (h.there, h.here, h.constrained, h.default)]
    return both if np.isfinite(numbers).all() else None


# --------------------------------------------------------------------------------------------
# as JSON
# --------------------------------------------------------------------------------------------


def record(tuned: Tuned) -> dict[str, Any]:
    """The content of `tune.json`: `cells` holds the grid, best first."""
    best = tuned.best
    return {
        "objective": tuned.objective.text,
        "better": "higher" if tuned.objective.higher else "lower",
        "prior": tuned.prior,
        "directory": tuned.directory,
        "model": tuned.model,
        "task": tuned.task,
        "n": tuned.n,
        "best": {
            **_cell_record(best),
            "intervals": {name: tuple(own) for name, own in tuned.intervals.items()},
            "over_constrained": {name: vars(own) for name, own in tuned.over_constrained.items()},
            "over_default": {name: vars(own) for name, own in tuned.over_default.items()},
        },
        "beats_constrained": tuned.beats_constrained,
        "model_args": model_args(tuned.recommended),
        "alike": tuned.alike,
        "halves": None
        if tuned.halves is None
        else [{**vars(h), "chosen": _axes(h.chosen)} for h in tuned.halves],
        "constrained": {"value": tuned.constrained.value, **tuned.constrained.metrics},
        "default": _cell_record(tuned.default),
        "uniform": dict(tuned.uniform),
        "cells": [_cell_record(cell) for cell in tuned.cells],
    }


def _axes(scoring: Scoring) -> dict[str, Any]:
    return {axis: getattr(scoring, axis) for axis in AXES}


def _cell_record(cell: Cell) -> dict[str, Any]:
    own = {"value": cell.value, **cell.metrics}
    distance = {"behind": cell.behind, "stderr": cell.stderr, "alike": cell.alike}
    return {**_axes(cell.scoring), **own, **distance}
