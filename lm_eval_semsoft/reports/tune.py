"""Which kernel is best on these documents? Every combination of a grid, from readouts alone.

    result = tune(readings, make_grid(readings, tau=["q0.95", "q0.99"]), parse_objective("brier"))

A cell of the grid is one `Scoring` (`tune_grid`; `tune_scores` says how all are scored at once,
`tune_data` what comes out). The standard (constrained) softmax and the package's default stand
beside the grid as references.

What is honest about it: the best of many cells is partly the luckiest, so its value is optimistic.
Two checks come with it: how many cells cannot be told from the best on these documents, and what
the cell that one half of the documents chooses is worth on the other half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import bootstrap
from lm_eval_semsoft.core.bootstrap import Draws, Paired, UndefinedMetricError, values_at
from lm_eval_semsoft.core.corrections import prior_correction
from lm_eval_semsoft.core.semantic_softmax import Scoring

from . import resampling, scores
from .measures import BY_KEY, Floats, Judged
from .readings import Readings, take
from .tune_data import Cell, Half, Tuned, record
from .tune_grid import (
    CONSTRAINED,
    METRICS,
    TIE,
    Objective,
    canonical,
    default_of,
    make_grid,
    model_args,
    parse_objective,
    simplicity,
)
from .tune_scores import many_log_scores

__all__ = [
    "Cell", "Half", "Objective", "Tuned", "canonical", "default_of", "make_grid",
    "many_log_scores", "model_args", "parse_objective", "record", "simplicity", "subset", "tune",
]  # fmt: skip

RESAMPLES = resampling.RESAMPLES  # behind the intervals of the best cell
CELL_RESAMPLES = 64  # behind the standard error of every other cell's distance from it


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
    everyone = Draws(draws.counts[:1])
    metrics: dict[Scoring, dict[str, float]] = {}
    table = np.full((len(rows), len(draws.counts), len(objective.metrics)), np.nan)

    def judge(scoring: Scoring, log_s: Floats) -> None:
        judged = Judged(prior_correction(log_s) if prior else log_s, target)
        of_all = {}
        for name in METRICS:
            values = _at(judged, name, draws if name in objective.metrics else everyone)
            of_all[name] = float(values[0])
            if name in objective.metrics:
                table[place[scoring], :, objective.metrics.index(name)] = values
        metrics[scoring] = of_all
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

    def judged(scoring: Scoring) -> dict[str, Floats]:
        log_s = scores.log_scores(readings, scoring)
        own = Judged(prior_correction(log_s) if prior else log_s, target)
        statistics = {m: BY_KEY[m].bind(own) for m in objective.metrics}
        return resampling.replicates(statistics, readings.n, RESAMPLES, seed)

    def over(other: Mapping[str, Floats]) -> dict[str, Paired]:
        return {
            m: resampling.paired(winner[m], other[m], BY_KEY[m].higher, readings.n)
            for m in objective.metrics
        }

    winner = judged(rows[best])
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
        intervals={m: resampling.interval(winner[m]) for m in objective.metrics},
        over_constrained=over(judged(CONSTRAINED)),
        over_default={} if rows[best] == default else over(judged(default)),
        halves=_halves(rows, order, place[default], values, losses),
    )


def subset(readings: Readings, limit: int, seed: int = 0) -> Readings:
    """`limit` documents at random, in their order; all of them if there are no more."""
    if limit >= readings.n:
        return readings
    chosen = np.sort(np.random.default_rng(seed).permutation(readings.n)[:limit])
    return take(readings, chosen.tolist())


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


def _draws(documents: int, seed: int) -> Draws:
    """All documents, the two halves, and the resamples, as counts."""
    first = np.zeros(documents, dtype=np.int64)
    first[np.random.default_rng(seed).permutation(documents)[: documents // 2]] = 1
    resampled = bootstrap.resamples(documents, CELL_RESAMPLES, seed)
    return Draws(np.array([np.ones_like(first), first, 1 - first, *resampled]))


def _at(judged: Judged, metric: str, draws: Draws) -> Floats:
    """A metric on every draw; NaN where it does not exist."""
    try:
        return values_at(BY_KEY[metric].bind(judged), draws)
    except UndefinedMetricError:
        return np.full(len(draws.counts), math.nan)


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
