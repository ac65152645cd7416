"""What `tune` searches for and where: objectives, the grid of scorings, and which is simpler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.core.semantic_softmax import Scoring, parse_space, parse_tau

from .measures import BY_KEY
from .readings import Readings

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
TIE = 9  # decimals; values that agree in them are equal, the rest is the order of summation

# What a cell can be judged by.
METRICS = ("brier", "nll", "ece", "ece_sweep", "smooth_ece", "auroc", "accuracy", "macro_f1")


# --------------------------------------------------------------------------------------------
# objectives
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Objective:
    """What makes a cell the best one.

    Attributes:
        text: as it was given.
        metrics: of `METRICS`; one, unless cells are ranked.
        ranked: the value of a cell is its rank by each metric (1 is the best, equal values share
            their mean rank), averaged over the metrics. References are ranked along.
    """

    text: str
    metrics: tuple[str, ...]
    ranked: bool

    @property
    def higher(self) -> bool:
        """Is more better? A low rank is."""
        return not self.ranked and bool(BY_KEY[self.metrics[0]].higher)

    def values(self, table: Floats) -> Floats:
        """Values [cells] from metrics [cells, metrics]; a NaN has the worst rank."""
        if not self.ranked:
            return table[:, 0]
        signs = np.array([-1.0 if BY_KEY[m].higher else 1.0 for m in self.metrics])
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
        check_choice("objective", metric, METRICS)
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
        if (reached := reach(readings, k)) < k:
            raise ValueError(
                f"top_k={k}: these readouts hold the {reached} most probable tokens of every "
                f"document, so K is at most {reached}."
            )
    # dict.fromkeys: each value once, in the order given.
    spaces, taus = dict.fromkeys(space or SPACES), dict.fromkeys(map(canonical, tau or TAUS))
    reachable = dict.fromkeys(reach(readings, k) for k in top_k or TOP_KS)
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


def default_of(readings: Readings) -> Scoring:
    """The package's default, with no more tokens than the readouts hold."""
    return replace(DEFAULT, top_k=reach(readings, DEFAULT.top_k))


def reach(readings: Readings, top_k: int) -> int:
    """K, or what the readouts hold if that is less; any K will do if they hold all tokens."""
    stored = readings.topk_ids.shape[1]
    return top_k if top_k <= stored or stored >= readings.vocabulary else stored


def axes_of(scoring: Scoring) -> dict[str, Any]:
    """What differs between cells."""
    return {axis: getattr(scoring, axis) for axis in AXES}
