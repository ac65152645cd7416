"""Probes: can a linear map read a quantity off a model's activations, and from which layer?

Notation: n documents, D layers, d numbers per layer; `hidden` [n, D, d] are activations, `target`
[n] is what they are asked about, say the entropy of people's answers. Every figure comes from
predictions of documents that the probe was not trained on (k folds).

**The probe** is ridge regression. Its penalty is the one of `PENALTIES` with the smallest
leave-one-out error *inside* the training documents (scikit-learn's ``RidgeCV``). So
is the layer behind the headline: each fold's training documents choose it, its own documents are
then predicted with it, and the headline has seen no maximum of noise. `max_over_layers` has: it
looks at all results and reports the best one, as studies of probes usually do.

**Fold by fold.** A training fold's mean is high where the mean of the documents left out is low, so
plain out-of-fold predictions correlate *negatively* with a target that is pure chance. Here
predictions and targets are both reduced by their mean over the fold before they are correlated, and
predictions are divided by their standard deviation there. Without the latter, each fold's penalty
and layer would decide how much it counts, and they are chosen so that chance counts below 0 (r of
-.06 to -.13 on average, simulated with 60 to 421 documents). With it, chance gives 0 on average.

**Intervals.** A bootstrap of documents would be too narrow even so: documents i and j help to
predict each other, so their contributions come in pairs (of one product y_i y_j, counted twice).
How wide they must be is measured where it is known that there is nothing to find: on shuffled
targets, which run through the whole procedure, choice of penalty and layer included. The percentile
intervals are stretched until 95 % of those of the shuffles contain 0 (1.4 to 2 times). The same
shuffles give the headline's p-value and each layer's control.

**Cost.** Ridge and the minimum-norm solution know the activations only up to a rotation, so a layer
is replaced by its principal scores [n, min(n, d)], and one decomposition per layer and fold serves
all penalties and all shuffles.

What cannot be computed is NaN with one `UndefinedMetricWarning`. Bad shapes raise ValueError.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import KFold

from .alignment import MIN_PAIRS, _percentiles_of, spearman_matrix
from .bootstrap import UndefinedMetricWarning, resamples
from .classification import Bools, Floats, Ints
from .ridge import PENALTIES, Ridge, principal_scores

MIN_PERMUTATIONS = 20  # with fewer, nobody knows how wide an interval must be

Fold = tuple[Ints, Ints]  # training documents, documents left out


@dataclass(frozen=True)
class Estimate:
    """A correlation of predictions with targets, -1..1, and the ends of its interval."""

    r: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class LayerProbe:
    """What one layer tells, looked at alone.

    Attributes:
        pearson, spearman: out of fold, fold by fold.
        ols_r: the published study's figure: mean over folds of Pearson's r of least squares
            (minimum norm where there are fewer documents than numbers).
        control_low, control_high: between them lie 95 % (`level`) of the Pearson correlations with
            shuffled targets.
        penalties: chosen in each fold, as multiples of the trace (`PENALTIES`).
        flaw: why everything is NaN; "" if nothing is.
    """

    pearson: Estimate = field(default_factory=Estimate)
    spearman: Estimate = field(default_factory=Estimate)
    ols_r: float = math.nan
    control_low: float = math.nan
    control_high: float = math.nan
    penalties: tuple[float, ...] = ()
    flaw: str = ""


@dataclass(frozen=True)
class Probe:
    """What `probe` returns.

    Attributes:
        pearson, spearman: the headline, with the layer chosen inside the training documents.
        stderr: of the headline's Pearson r, stretched as its interval.
        p: share of shuffles whose headline is at least as high; one-sided, as a probe that
            predicts the opposite has learnt nothing.
        layer: chosen in most folds (of equals the first), None if there is none.
        layer_of_fold: [folds] the layer that each fold's training documents chose.
        max_over_layers: the layer with the highest Pearson r, None if there is none: optimistic.
        ols_layer: the layer with the highest `ols_r`: the study's own, just as optimistic.
        layers: [D].
        stretch: by how much intervals are wider than a bootstrap's: the headline's, the layers'.
        n: documents used.
        dropped: left out for want of a target.
        dropped_activations: left out because all their activations are NaN or infinite.
        flaw: why there is no headline; "" if there is one.
    """

    pearson: Estimate
    spearman: Estimate
    stderr: float
    p: float
    layer: int | None
    layer_of_fold: tuple[int, ...]
    max_over_layers: int | None
    ols_layer: int | None
    layers: tuple[LayerProbe, ...]
    stretch: tuple[float, float]
    n: int
    dropped: int
    dropped_activations: int
    flaw: str = ""


def probe(
    hidden: ArrayLike,
    target: ArrayLike,
    folds: int = 10,
    seed: int = 42,
    permutations: int = 100,
    draws: int = 1000,
    level: float = 0.95,
    progress: Callable[[], None] | None = None,
) -> Probe:
    """Probe every layer for a target, and choose a layer honestly (see the top of this module).

    Args:
        hidden: activations [n, D, d], any float type; float64 is only ever made of one layer.
        target: [n], NaN where unknown.
        folds: number of folds, shuffled with `seed` (scikit-learn's ``KFold``).
        permutations: shuffles of the target, at least `MIN_PERMUTATIONS`.
        draws: bootstrap resamples of the documents, for the intervals.
        level: share of the resamples (and of the shuffles, for the control) inside an interval.
        progress: called after every layer.

    Returns:
        `Probe`. All correlations are NaN, with one warning, if there are fewer than `MIN_PAIRS`
        documents or two per fold, or the target is constant. A layer with NaN or infinite
        activations (float16 ends at 65,504), or equal ones, is NaN and is not chosen.

    Raises:
        ValueError: shapes that do not fit, folds < 2, permutations < `MIN_PERMUTATIONS`.
    """
    activations, wanted = _checked(hidden, target, folds, permutations)
    finite = np.isfinite(activations).all(axis=2)
    known, alive = np.isfinite(wanted), finite.any(axis=1)
    kept = np.flatnonzero(known & alive)
    counts = (len(kept), int((~known).sum()), int((known & ~alive).sum()))
    y = wanted[kept]
    flaws = [_layer_flaw(activations, layer, kept, finite) for layer in range(finite.shape[1])]
    if flaw := _flaw(y, folds, flaws):
        _warn(f"the probe is NaN: {flaw}")
        return _nothing(flaws, counts, flaw)
    for layer, own in enumerate(flaws):
        if own:
            _warn(f"the probe of layer {layer} is NaN: {own}")
    targets = _with_shuffles(y, permutations, seed)
    split = list(KFold(folds, shuffle=True, random_state=seed).split(y))
    nested = _Nested(targets, len(split))
    fits: dict[int, _Fit] = {}
    for layer in (i for i, own in enumerate(flaws) if not own):
        # Layer by layer: predictions of all shuffles in all layers would not fit into memory.
        fit, predicted, error = _fit_layer(activations[kept, layer], targets, split)
        nested.offer(layer, split, predicted, error)
        fits[layer] = fit
        if progress is not None:
            progress()
    return _report(nested, fits, flaws, split, targets, counts, draws, seed, level)


# --- one layer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """A layer's own results, T targets: the real one, then its shuffles."""

    predicted: Floats  # [n] of the real target, standardised in each fold
    r: Floats  # [T]
    naive: Floats  # [T] variance of r that a bootstrap of documents would find
    ols_r: float
    penalties: tuple[float, ...]


def _fit_layer(
    activations: NDArray[np.floating], targets: Floats, split: Sequence[Fold]
) -> tuple[_Fit, Floats, Floats]:
    """Ridge in every fold, for all targets at once.

    Args:
        activations: [n, d].
        targets: [n, T].

    Returns:
        The fit; predictions [n, T], standardised in each fold; leave-one-out errors [folds, T]
        with the penalties chosen.
    """
    scores = principal_scores(np.asarray(activations, dtype=np.float64))
    predicted, error = np.zeros_like(targets), np.zeros((len(split), targets.shape[1]))
    penalties, ols, spread = [], [], targets[:, 0].std()
    for i, (train, test) in enumerate(split):
        ridge = Ridge(scores[train], targets[train])
        error[i] = ridge.error
        predicted[test] = _standardised(ridge.predict(scores[test]), spread)
        penalties.append(float(PENALTIES[ridge.choice[0]]))
        ols.append(_correlations(ridge.predict_ols(scores[test])[:, :1], targets[test, :1])[0][0])
    r, naive = _correlations(predicted, _fold_centred(targets, split))
    known = [x for x in ols if x == x]  # a fold where all targets are equal has no correlation
    mean_ols = float(np.mean(known)) if known else math.nan
    return _Fit(predicted[:, 0].copy(), r, naive, mean_ols, tuple(penalties)), predicted, error


# --- the headline --------------------------------------------------------------------------------


class _Nested:
    """Predictions of the layer with the smallest leave-one-out error, fold by fold."""

    def __init__(self, targets: Floats, folds: int) -> None:
        self.predicted = np.zeros_like(targets)
        self.error = np.full((folds, targets.shape[1]), np.inf)
        self.layer = np.zeros(folds, dtype=np.int64)  # for the real target

    def offer(self, layer: int, split: Sequence[Fold], predicted: Floats, error: Floats) -> None:
        better = error < self.error
        for i, (_, test) in enumerate(split):
            self.predicted[test] = np.where(better[i], predicted[test], self.predicted[test])
        self.layer[better[:, 0]] = layer
        self.error = np.minimum(error, self.error)


def _report(
    nested: _Nested,
    fits: dict[int, _Fit],
    flaws: Sequence[str],
    split: Sequence[Fold],
    targets: Floats,
    counts: tuple[int, int, int],
    draws: int,
    seed: int,
    level: float,
) -> Probe:
    observed = _fold_centred(targets, split)
    r, naive = _correlations(nested.predicted, observed)
    stretch = _stretch(r[None], naive[None], level)
    own = fits.values()
    of_layers = _stretch(np.array([f.r for f in own]), np.array([f.naive for f in own]), level)

    predicted = np.stack([nested.predicted[:, 0], *(f.predicted for f in own)], axis=1)
    stretches = np.array([stretch, *[of_layers] * len(fits)])
    pearson, spearman = (
        estimate(predicted, observed[:, 0], stretches, draws, seed, level)
        for estimate in (_pearson, _spearman)
    )
    layers = [LayerProbe(flaw=flaw) for flaw in flaws]
    for i, (layer, fit) in enumerate(fits.items(), start=1):
        control = _between(fit.r[1:], level)
        layers[layer] = LayerProbe(pearson[i], spearman[i], fit.ols_r, *control, fit.penalties)
    return Probe(
        pearson=pearson[0],
        spearman=spearman[0],
        stderr=stretch * math.sqrt(naive[0]),
        p=_p_value(r),
        layer=Counter(sorted(nested.layer.tolist())).most_common(1)[0][0],
        layer_of_fold=tuple(nested.layer.tolist()),
        max_over_layers=_highest([layer.pearson.r for layer in layers]),
        ols_layer=_highest([layer.ols_r for layer in layers]),
        layers=tuple(layers),
        stretch=(stretch, of_layers),
        n=counts[0],
        dropped=counts[1],
        dropped_activations=counts[2],
    )


def _stretch(r: Floats, naive: Floats, level: float) -> float:
    """How much wider intervals must be for `level` of those of the shuffles to contain 0.

    Args:
        r, naive: [D, T], the real target first. As |r| / sqrt(naive) of the real target would be
            the (T+1)-th of equals under chance, the quantile rounds up.
    """
    size = np.sort((np.abs(r) / np.sqrt(naive))[:, 1:].ravel())
    size = size[np.isfinite(size)]
    if not size.size:
        return math.nan
    rank = min(size.size, math.ceil(level * (size.size + 1)))
    return max(1.0, float(size[rank - 1]) / NormalDist().inv_cdf((1 + level) / 2))


def _p_value(r: Floats) -> float:
    """Of r[0] among shuffles r[1:], itself counted: never 0."""
    if math.isnan(r[0]):
        return math.nan
    shuffled = r[1:][~np.isnan(r[1:])]
    return (1 + int((shuffled >= r[0]).sum())) / (1 + len(shuffled))


def _pearson(
    predicted: Floats, observed: Floats, stretch: Floats, draws: int, seed: int, level: float
) -> list[Estimate]:
    """One estimate per column of `predicted` [n, M]."""
    r = _correlations(predicted, observed[:, None])[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = _unit(predicted), _unit(observed[:, None])
    table = np.concatenate([a, a * a, a * b, b, b * b], axis=1).T
    drawn = np.array([_weighted_r(table @ c / len(a)) for c in resamples(len(a), draws, seed)])
    low, high = _percentiles_of(drawn, level)
    return _stretched(r, low, high, stretch)


def _weighted_r(means: Floats) -> Floats:
    """[M] from the means of a, a², ab (M each), b and b²; NaN if a resample has no spread."""
    (a, aa, ab), (b, bb) = means[:-2].reshape(3, -1), means[-2:]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((ab - a * b) / np.sqrt((aa - a * a) * (bb - b * b)))


def _spearman(
    predicted: Floats, observed: Floats, stretch: Floats, draws: int, seed: int, level: float
) -> list[Estimate]:
    found = spearman_matrix(predicted, observed[:, None], level, draws, seed)
    return _stretched(found.r[:, 0], found.low[:, 0], found.high[:, 0], stretch)


def _stretched(r: Floats, low: Floats, high: Floats, stretch: Floats) -> list[Estimate]:
    low = np.maximum(-1, r - stretch * (r - low))
    high = np.minimum(1, r + stretch * (high - r))
    return [Estimate(*map(float, own)) for own in zip(r, low, high, strict=True)]


# --- small pieces --------------------------------------------------------------------------------


def _correlations(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Pearson's r of each column [T], and its variance if documents were independent.

    The latter is the infinitesimal jackknife's (Efron 1982): the mean square of the influences
    a b - r (a² + b²)/2 of standardised a, b, over n. NaN where a column is constant.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = _unit(x), _unit(y)
        r = (a * b).mean(axis=0)
        influence = a * b - r * (a**2 + b**2) / 2
        return r, (influence**2).mean(axis=0) / len(x)


def _unit(x: Floats) -> Floats:
    """Columns with mean 0 and standard deviation 1; NaN, or infinite, if constant."""
    x = x - x.mean(axis=0)
    return np.asarray(x / x.std(axis=0))


def _centred(x: Floats) -> Floats:
    return np.asarray(x - x.mean(axis=0))


def _standardised(x: Floats, scale: float) -> Floats:
    """Columns about their mean ÷ their standard deviation; 0 where all that differs is rounding."""
    x = _centred(x)
    spread = x.std(axis=0)
    return np.where(spread > 1e-12 * scale, x / np.where(spread, spread, 1), 0.0)


def _fold_centred(x: Floats, split: Sequence[Fold]) -> Floats:
    out = np.empty_like(x)
    for _, test in split:
        out[test] = _centred(x[test])
    return out


def _with_shuffles(y: Floats, permutations: int, seed: int) -> Floats:
    """[n, 1 + permutations]: the target, then its shuffles."""
    rng = np.random.default_rng(seed)
    return np.stack([y, *(rng.permutation(y) for _ in range(permutations))], axis=1)


def _between(values: Floats, level: float) -> tuple[float, float]:
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _highest(values: Sequence[float]) -> int | None:
    known = [i for i, value in enumerate(values) if value == value]
    return max(known, key=lambda i: values[i]) if known else None


# --- what was given ------------------------------------------------------------------------------


def _checked(
    hidden: ArrayLike, target: ArrayLike, folds: int, permutations: int
) -> tuple[NDArray[np.floating], Floats]:
    activations, wanted = np.asarray(hidden), np.asarray(target, dtype=np.float64)
    if activations.ndim != 3 or not np.issubdtype(activations.dtype, np.floating):
        raise ValueError(
            f"hidden is {activations.dtype} of the shape {list(activations.shape)}; "
            "it must be floating-point numbers [documents, layers, d]"
        )
    if 0 in activations.shape[1:]:
        raise ValueError(f"hidden has the shape {list(activations.shape)}: there is nothing in it")
    if wanted.shape != activations.shape[:1]:
        raise ValueError(
            f"target has the shape {list(wanted.shape)} but hidden has {len(activations)} "
            "documents; target must be one number per document"
        )
    for name, value, least in (
        ("folds", folds, 2),
        ("permutations", permutations, MIN_PERMUTATIONS),
    ):
        if not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name}={value!r} is not allowed; it must be an integer >= {least}")
    return activations, wanted


def _layer_flaw(activations: NDArray[np.floating], layer: int, kept: Ints, finite: Bools) -> str:
    """Why a layer cannot be probed; "" if it can."""
    bad = int((~finite[kept, layer]).sum())
    if bad:
        return f"activations of {bad} of {len(kept)} documents are NaN or infinite"
    own = activations[kept, layer]
    return "all documents have the same activations" if (own == own[:1]).all() else ""


def _flaw(y: Floats, folds: int, layers: Sequence[str]) -> str:
    """Why nothing can be probed; "" if something can."""
    if len(y) < MIN_PAIRS:
        return f"there are {len(y)} documents with target and activations; it takes {MIN_PAIRS}"
    if len(y) < 2 * folds:
        return f"{len(y)} documents are too few for {folds} folds; it takes two per fold"
    if np.ptp(y) == 0:
        return "the target is constant"
    return f"of every layer, {layers[0]}" if all(layers) else ""


def _nothing(flaws: Sequence[str], counts: tuple[int, int, int], flaw: str) -> Probe:
    nan = math.nan
    layers = tuple(LayerProbe(flaw=own or flaw) for own in flaws)
    none = Estimate()
    return Probe(none, none, nan, nan, None, (), None, None, layers, (nan, nan), *counts, flaw)


def _warn(message: str) -> None:
    warnings.warn(f"{message}.", UndefinedMetricWarning, stacklevel=3)
