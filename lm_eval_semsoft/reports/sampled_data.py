"""What a report holds of a run with free-text answers: the dataclasses of its section.

No number is computed here: `sampled_section` does that, `sampled_figures` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .report_data import Data, Estimate
from .sampled_measures import AnswerMeasure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AnswerRow:
    """A metric under every filter.

    Attributes:
        metric: which.
        values: [filters].
        why: why a value is missing.
    """

    metric: AnswerMeasure
    values: tuple[Estimate, ...]
    why: str = ""


@dataclass(frozen=True)
class Points:
    """Reliability of a confidence: how often answers of one confidence are right.

    Attributes:
        confidence: [B] the values, ascending; or the mean confidence of bins of equal width.
        count, right: [B] questions, and those among them that are answered right.
        low, high: [B] ends of Wilson's 95 % interval of the accuracy.
        left, width: [B] where each bar of the histogram begins, and how wide it is.
        exact: True where each point is one value, False for bins.
        note: the ECE, for inside the panel.
    """

    confidence: Floats
    count: Ints
    right: Ints
    low: Floats
    high: Floats
    left: Floats
    width: Floats
    exact: bool
    note: str = ""

    @property
    def accuracy(self) -> Floats:
        return np.asarray(self.right / self.count)

    @property
    def mean_confidence(self) -> float:
        return float(np.average(self.confidence, weights=self.count))

    @property
    def mean_accuracy(self) -> float:
        return float(self.right.sum() / self.count.sum())


@dataclass(frozen=True)
class Curve:
    """A risk–coverage curve.

    Attributes:
        name: of the confidence that orders the questions.
        coverage, risk: [G] share of questions kept, and share of them answered wrong.
        low, high: [G] 95 % bootstrap band of the risk.
        steps: [S, 2] coverage and risk at the values that confidence takes, empty if they are
            many: between them questions of equal confidence enter in random order.
        aurc: area under it.
    """

    name: str
    coverage: Floats
    risk: Floats
    low: Floats
    high: Floats
    steps: Floats
    aurc: Estimate


@dataclass(frozen=True)
class ClusterCounts:
    """How many questions have 1, 2, … N clusters: [N] each."""

    right: Ints
    wrong: Ints
    unknown: Ints


@dataclass(frozen=True)
class ByN:
    """Metrics against the number of samples: [filters] each."""

    n: tuple[int, ...]
    accuracy: tuple[Estimate, ...]
    ece: tuple[Estimate, ...]
    greedy: Estimate


@dataclass(frozen=True)
class Cluster:
    """Samples of one meaning.

    Attributes:
        count: how many.
        members: different texts and how often each came; the first stands for the others.
        more: samples whose texts are not shown.
    """

    count: int
    members: tuple[tuple[str, int], ...]
    more: int


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        key: the document's id.
        question: its text, cut.
        gold: its first gold answers; `more_gold` others are not shown.
        prediction: what was answered.
        confidence: in it.
        entropy: semantic entropy, nats; NaN without samples.
        n_samples: 0 without.
        clusters: largest first; `more_clusters` others are not shown.
        greedy, greedy_right: the greedy answer; right is None where nobody knows.
    """

    key: str
    question: str
    gold: tuple[str, ...]
    more_gold: int
    prediction: str
    confidence: float
    entropy: float
    n_samples: int
    clusters: tuple[Cluster, ...]
    more_clusters: int
    greedy: str
    greedy_right: bool | None


@dataclass(frozen=True)
class SampledSection:
    """One task of one run whose answers are free text.

    Attributes:
        name: the folder of the samples.
        task, model, date: what was run, and when it ended.
        kind: `sampled` (several answers a question) or `told` (one, with a confidence).
        n, no_gold: questions, and those of which nobody knows the answer.
        n_samples: N, the most of all filters; 0 without samples.
        judge: of equal meaning, "" if the run does not tell.
        confidence_name: what the confidence is.
        data: where the questions come from.
        filters: their names, in the order of the table's columns; `main` is the one that the
            figures and the questions are of.
        metrics: rows of the table.
        parse_rate: [filters] share of answers that could be read, as the run's own table has it;
            empty if it has none.
        points: reliability; None where no question has a confidence and a gold answer.
        curves: risk–coverage curves, that of the confidence first; empty as `points`.
        cluster_counts, by_n: None without samples (the second with one filter too).
        wrong: the wrong answers of highest confidence; `n_wrong` is how many there are in all.
        doubtful: the right answers of lowest confidence.
        notes: what a reader must know.
        provenance: what the run was told, and its file.
    """

    name: str
    task: str
    model: str
    date: str
    kind: str
    n: int
    no_gold: int
    n_samples: int
    judge: str
    confidence_name: str
    data: Data
    filters: tuple[str, ...]
    main: str
    metrics: tuple[AnswerRow, ...]
    parse_rate: tuple[float, ...]
    points: Points | None
    curves: tuple[Curve, ...]
    cluster_counts: ClusterCounts | None
    by_n: ByN | None
    n_wrong: int
    wrong: tuple[Case, ...]
    doubtful: tuple[Case, ...]
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.model} on {self.task}"

    def value(self, key: str) -> Estimate | None:
        """A metric under the main filter."""
        i = self.filters.index(self.main)
        return next((row.values[i] for row in self.metrics if row.metric.key == key), None)
