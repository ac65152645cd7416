"""The section of a run with free-text answers: metrics, reliability, risk and coverage, cases."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from lm_eval_semsoft.core import risk_coverage
from lm_eval_semsoft.core.bootstrap import Statistic, UndefinedMetricError

from .report_section import data_of
from .report_statistics import BINS, Draws, draw_all
from .report_text import cut, interval, short_model
from .sampled_data import (
    AnswerRow,
    ByN,
    Case,
    Cluster,
    ClusterCounts,
    Curve,
    Points,
    SampledSection,
)
from .sampled_measures import MEASURES, Answered, Floats, known_pairs
from .samples import SAMPLED, TOLD, Answer, Run, Samples

_MANY_VALUES = 21  # a confidence of more values than this is binned
_GRID = 100  # points of a risk–coverage curve
_LEVEL = 0.95
_LONGEST_QUESTION, _LONGEST_ANSWER = 600, 200  # characters
_GOLD, _CLUSTERS, _MEMBERS = 5, 8, 8  # shown of each question
_PLACES = ("config_source", "readouts")  # options that name files of one machine

Drawn = Mapping[tuple[str, str], Draws]


def build(run: Run, documents: int = 10) -> SampledSection:
    """Every number of a section.

    Args:
        run: one task of one run.
        documents: how many of the most confident wrong answers are shown (and at most as many of
            the right ones that the model doubted).
    """
    arrays = {name: Answered.of(answers) for name, answers in run.filters.items()}
    # The largest N; of told confidences the first, in which unreadable ones count.
    main = list(run.filters)[-1 if run.kind == SAMPLED else 0]
    own, answers = arrays[main], run.filters[main]
    name, orders = _orders(run, own)
    draws = draw_all(_binders(arrays, main, orders))
    n_samples = _n(answers)
    return SampledSection(
        name=run.file.resolve().parent.name,
        task=run.task,
        model=short_model(run.model),
        date=run.date,
        kind=run.kind,
        n=run.n,
        no_gold=_no_gold(arrays),
        n_samples=n_samples,
        judge=str(run.options.get("judge", "")),
        confidence_name=name,
        data=data_of(run.docs),
        filters=tuple(run.filters),
        main=main,
        metrics=_rows(arrays, draws),
        parse_rate=_parse_rate(run),
        points=_points(own, n_samples, name, draws[main, "ece"]),
        curves=tuple(_curves(orders, own, main, draws)),
        cluster_counts=_cluster_counts(own, n_samples) if run.kind == SAMPLED else None,
        by_n=_by_n(run, arrays, draws),
        n_wrong=int((own.right == 0).sum()),
        wrong=_cases(run, answers, own, 0, -own.confidence, own.entropy, documents),
        doubtful=_cases(run, answers, own, 1, own.confidence, -own.entropy, documents),
        notes=tuple(_notes(run, arrays)),
        provenance={
            "file": f"{run.file.resolve().parent.name}/{run.file.name}",
            "run_ended": run.date,
            **{
                k: v
                for k, v in run.options.items()
                if k not in _PLACES and isinstance(v, (str, int, float, bool))
            },
        },
    )


def _n(answers: Sequence[Answer]) -> int:
    samples = answers[0].samples
    return 0 if samples is None else len(samples.answers)


# --------------------------------------------------------------------------------------------
# metrics
# --------------------------------------------------------------------------------------------


def _orders(run: Run, own: Answered) -> tuple[str, dict[str, Floats]]:
    """What the confidence is called, and every confidence that orders the questions, it first."""
    if run.kind == TOLD:
        name = "P(True)" if run.task.endswith("_ptrue") else "told confidence"
        return name, {name: own.confidence}
    share, entropy = "cluster share", "1 − H / ln N"
    both = {share: own.share, entropy: own.entropy_confidence}
    name = entropy if run.options.get("confidence") == "entropy" else share
    orders = {name: own.confidence, **{k: v for k, v in both.items() if k != name}}
    # Curves are compared on the same questions, so this one is drawn if it is known of all.
    if not np.isnan(own.mean_logprob).any():
        orders["mean log-probability"] = own.mean_logprob
    return name, orders


def _binders(
    arrays: Mapping[str, Answered], main: str, orders: Mapping[str, Floats]
) -> Iterator[tuple[tuple[str, str], Callable[[], Statistic[Any]]]]:
    for name, answered in arrays.items():
        for measure in MEASURES:
            if measure.applies(answered):
                yield (name, measure.key), functools.partial(measure.bind, answered)
    for name, confidence in orders.items():
        right = arrays[main].right
        yield (main, f"curve {name}"), functools.partial(_risk, confidence, right)
        yield (main, f"area {name}"), functools.partial(_area, confidence, right)


def _risk(confidence: Floats, right: Floats) -> Statistic[Floats]:
    known = known_pairs(confidence, right)
    return risk_coverage.selective_risk(*known, _grid(len(known[0])))


def _area(confidence: Floats, right: Floats) -> Statistic[float]:
    statistic: Statistic[float] = vars(risk_coverage.aurc)["prepare"](
        *known_pairs(confidence, right)
    )
    return statistic


def _grid(n: int) -> Floats:
    size = min(n, _GRID)
    return np.arange(1, size + 1) / size


def _rows(arrays: Mapping[str, Answered], draws: Drawn) -> tuple[AnswerRow, ...]:
    rows = []
    for measure in MEASURES:
        own = [draws[name, measure.key] for name in arrays if (name, measure.key) in draws]
        if own:
            why = next((d.why for d in own if d.why), "")
            rows.append(AnswerRow(measure, tuple(d.estimate() for d in own), why))
    return tuple(rows)


def _parse_rate(run: Run) -> tuple[float, ...]:
    told = [run.table.get(f"parse_rate,{name}") for name in run.filters]
    known = [float(x) if isinstance(x, (int, float)) else math.nan for x in told]
    return () if all(map(math.isnan, known)) else tuple(known)


def _by_n(run: Run, arrays: Mapping[str, Answered], draws: Drawn) -> ByN | None:
    if run.kind == TOLD or len(arrays) < 2:
        return None
    return ByN(
        n=tuple(_n(answers) for answers in run.filters.values()),
        accuracy=tuple(draws[name, "accuracy"].estimate() for name in arrays),
        ece=tuple(draws[name, "ece"].estimate() for name in arrays),
        greedy=draws[list(arrays)[-1], "greedy_accuracy"].estimate(),
    )


# --------------------------------------------------------------------------------------------
# figures
# --------------------------------------------------------------------------------------------


def _points(own: Answered, n_samples: int, name: str, ece: Draws) -> Points | None:
    try:
        confidence, right = known_pairs(own.confidence, own.right)
    except UndefinedMetricError:
        return None
    confidence = np.round(confidence, 12)  # .3 is one value, however it was divided
    values, place = np.unique(confidence, return_inverse=True)
    exact = len(values) <= _MANY_VALUES
    if exact:
        count = np.bincount(place)
        width = np.full(len(values), _bar_width(values, n_samples))
        left = values - width / 2
    else:
        place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        bins, place = np.unique(place, return_inverse=True)
        count = np.bincount(place)
        values = np.bincount(place, confidence) / count
        width, left = np.full(len(bins), 1 / BINS), bins / BINS
    hits = np.bincount(place, right).astype(np.int64)
    ends = [
        scipy.stats.binomtest(int(k), int(n)).proportion_ci(_LEVEL, method="wilson")
        for k, n in zip(hits, count, strict=True)
    ]
    low, high = np.array([(e.low, e.high) for e in ends]).T
    note = f"ECE {interval(ece.estimate())}"
    return Points(values, count, hits, low, high, left, width, exact, note)


def _bar_width(values: Floats, n_samples: int) -> float:
    """Of bars that do not touch: the values are multiples of 1/N, or any."""
    gaps = np.diff(values)
    gap = 1 / n_samples if n_samples else gaps.min() if gaps.size else 0.1
    return float(np.clip(0.6 * gap, 0.008, 0.06))


def _curves(
    orders: Mapping[str, Floats], own: Answered, main: str, draws: Drawn
) -> Iterator[Curve]:
    for name, values in orders.items():
        drawn = draws[main, f"curve {name}"]
        if drawn.values.ndim < 2:  # nothing is known
            continue
        confidence, right = known_pairs(values, own.right)
        bands = drawn.estimates()
        yield Curve(
            name=name,
            coverage=_grid(len(right)),
            risk=drawn.values[0],
            low=np.array([band.low for band in bands]),
            high=np.array([band.high for band in bands]),
            steps=_steps(confidence, right),
            aurc=draws[main, f"area {name}"].estimate(),
        )


def _steps(confidence: Floats, right: Floats) -> Floats:
    """Coverage and risk where all questions of at least some confidence are kept: [S, 2]."""
    values = np.unique(confidence)[::-1]
    if len(values) > _MANY_VALUES:
        return np.zeros((0, 2))
    kept = confidence >= values[:, None]
    return np.stack([kept.mean(axis=1), 1 - kept @ right / kept.sum(axis=1)], axis=1)


def _cluster_counts(own: Answered, n_samples: int) -> ClusterCounts:
    def of(rows: Any) -> Any:
        return np.bincount(own.n_clusters[rows].astype(np.int64), minlength=n_samples + 1)[1:]

    return ClusterCounts(of(own.right == 1), of(own.right == 0), of(np.isnan(own.right)))


# --------------------------------------------------------------------------------------------
# questions
# --------------------------------------------------------------------------------------------


def _cases(
    run: Run,
    answers: Sequence[Answer],
    own: Answered,
    right: int,
    first: Floats,
    then: Floats,
    most: int,
) -> tuple[Case, ...]:
    """Questions that are answered right, or wrong, the lowest of `first` and `then` on top."""
    rows = np.flatnonzero((own.right == right) & ~np.isnan(own.confidence))
    order = rows[np.lexsort((rows, np.nan_to_num(then[rows]), np.round(first[rows], 12)))]
    return tuple(
        _case(run.keys[i], run.docs[i], answers[i], float(own.entropy[i]))
        for i in order[: max(0, most)]
    )


def _case(key: str, doc: Mapping[str, Any], answer: Answer, entropy: float) -> Case:
    listed = doc.get("answers")
    gold = [str(text) for text in listed] if isinstance(listed, (list, tuple)) else []
    samples = answer.samples
    clusters = () if samples is None else _clusters(samples)
    greedy = math.nan if samples is None else samples.greedy_right
    return Case(
        key=cut(key, _LONGEST_ANSWER),
        question=cut(str(doc.get("question", "")), _LONGEST_QUESTION),
        gold=tuple(cut(text, _LONGEST_ANSWER) for text in gold[:_GOLD]),
        more_gold=max(0, len(gold) - _GOLD),
        prediction=cut(answer.text, _LONGEST_ANSWER),
        confidence=answer.confidence,
        entropy=entropy,
        n_samples=0 if samples is None else len(samples.answers),
        clusters=clusters[:_CLUSTERS],
        more_clusters=max(0, len(clusters) - _CLUSTERS),
        greedy="" if samples is None else cut(samples.greedy, _LONGEST_ANSWER),
        greedy_right=None if math.isnan(greedy) else bool(greedy),
    )


def _clusters(samples: Samples) -> tuple[Cluster, ...]:
    """Largest first; of equal ones the earlier."""
    members: dict[int, dict[str, int]] = {}
    for text, number in zip(samples.answers, samples.clusters, strict=True):
        own = members.setdefault(number, {})
        own[text] = own.get(text, 0) + 1
    found = [_cluster(own) for own in members.values()]
    return tuple(sorted(found, key=lambda cluster: -cluster.count))


def _cluster(members: Mapping[str, int]) -> Cluster:
    shown = tuple((cut(t, _LONGEST_ANSWER), n) for t, n in list(members.items())[:_MEMBERS])
    count = sum(members.values())
    return Cluster(count, shown, count - sum(n for _, n in shown))


def _no_gold(arrays: Mapping[str, Answered]) -> int:
    """Questions of which no filter knows whether the answer is right; one may leave some out."""
    return int(np.isnan([own.right for own in arrays.values()]).all(axis=0).sum())


def _notes(run: Run, arrays: Mapping[str, Answered]) -> Iterator[str]:
    if unknown := _no_gold(arrays):
        yield (
            f"{unknown:,} of {run.n:,} questions have no gold answer. They are left out of "
            "accuracy and of whatever compares confidence with it."
        )
    for name, own in arrays.items():
        if silent := int(np.isnan(own.confidence).sum()):
            yield (
                f"Filter {name}: {silent:,} of {run.n:,} answers came without a confidence that "
                "could be read. They are left out of whatever needs one."
            )
    last = list(arrays.values())[-1]
    if run.kind == SAMPLED and (unknown := int(np.isnan(last.mean_logprob).sum())):
        yield (
            f"{unknown:,} of {run.n:,} questions have samples of unknown log-probability, so "
            "Rao entropy and log-probability leave them out."
        )
    if not run.table:
        yield (
            "No results file lies beside the samples, so the model has the name of the folder, "
            "and what the run was told is unknown."
        )
