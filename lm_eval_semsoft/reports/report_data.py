"""What a report holds: the metrics it knows, and the dataclasses of a section.

No number is computed here: `report_statistics` and `report_section` do that, `report_page` shows
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm_eval_semsoft import __version__

from .figures import Reliability, TauSurface

CONSTRAINED, SEMANTIC = "constrained", "semantic"
TITLES = {CONSTRAINED: "Standard softmax", SEMANTIC: "Semantic Softmax"}


# --------------------------------------------------------------------------------------------
# metrics
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A row of the metrics table.

    Attributes:
        key: as in the harness's results.
        name: as people write it.
        group: heading of the rows around it.
        better: `higher`, `lower`, or "" where neither is.
        meaning: one sentence for newcomers.
    """

    key: str
    name: str
    group: str
    better: str
    meaning: str


_RIGHT = "Is the answer right?"
_HONEST = "Are the probabilities honest?"
_CALIBRATED = "Is confidence as high as accuracy?"
_SORTED = "Does confidence tell right from wrong?"
_DESCRIBED = "For orientation"

METRICS = (
    Metric(
        "accuracy", "accuracy", _RIGHT, "higher",
        "share of documents with the right label on top",
    ),
    Metric(
        "macro_f1", "macro-F1", _RIGHT, "higher",
        "F1 of each label, averaged over labels: rare ones count as much as frequent ones",
    ),
    Metric(
        "auroc", "AUROC", _RIGHT, "higher",
        "is a label ranked higher where it is right than where it is not? 0.5 is chance",
    ),
    Metric(
        "brier", "Brier", _HONEST, "lower",
        "squared error of the whole distribution, 0 to 2; a proper score: only honest "
        "probabilities win it",
    ),
    Metric(
        "nll", "NLL", _HONEST, "lower",
        "surprise about the right label, in nats; proper as well, and hard on false certainty",
    ),
    Metric(
        "ece", "ECE", _CALIBRATED, "lower",
        "mean gap between confidence and accuracy over 15 bins of equal width",
    ),
    Metric(
        "ece_mass", "ECE, equal mass", _CALIBRATED, "lower",
        "the same over 15 bins with equally many documents",
    ),
    Metric(
        "ece_sweep", "ECE sweep", _CALIBRATED, "lower",
        "with as many equal-mass bins as keep accuracy rising (root mean square)",
    ),
    Metric(
        "smooth_ece", "smooth ECE", _CALIBRATED, "lower",
        "the gap without bins, smoothed",
    ),
    Metric(
        "confidence_auroc", "confidence AUROC", _SORTED, "higher",
        "is confidence higher on right answers than on wrong ones? 0.5 is chance",
    ),
    Metric(
        "auarc", "AUARC", _SORTED, "higher",
        "accuracy on the most confident documents, averaged over how many are kept",
    ),
    Metric(
        "mean_confidence", "mean confidence", _DESCRIBED, "",
        "mean probability of the predicted label; above accuracy means overconfident",
    ),
    Metric(
        "silent_vote", "silent vote", _DESCRIBED, "",
        "mean share of the winning score that came from neighbours of the label",
    ),
)  # fmt: skip

# One of each family, for sentences and for the table of several runs.
HEADLINE = ("accuracy", "macro_f1", "auroc", "brier", "nll", "ece", "mean_confidence")


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % bootstrap interval; NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class MetricRow:
    """A metric under both scorings.

    Attributes:
        metric: which.
        constrained, semantic: None where the metric does not apply to that scoring.
        difference: semantic minus constrained, on the same resamples.
        uniform: what a uniform guess is expected to get, NaN if that says nothing.
        verdict: `better`, `worse` or `unclear` with Semantic Softmax; "" where there is no better.
        why: why a value is missing.
    """

    metric: Metric
    constrained: Estimate | None
    semantic: Estimate | None
    difference: Estimate | None
    uniform: float
    verdict: str = ""
    why: str = ""


# --------------------------------------------------------------------------------------------
# what a section holds
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelScores:
    """One label under one scoring; F1 and AUROC are NaN without targets."""

    f1: Estimate
    auroc: Estimate
    mean_probability: float
    predicted: int


@dataclass(frozen=True)
class Voter:
    """A token that voted for a label.

    Attributes:
        word: its text.
        probability: p(v|x); in a label's row its mean over documents.
        weight: w(v,l).
        vote: their product.
    """

    word: str
    probability: float
    weight: float
    vote: float


@dataclass(frozen=True)
class Neighbourhood:
    """Who votes for a label.

    Attributes:
        size: tokens of the vocabulary that may.
        heard: those that were among the top K of some document.
        voters: the loudest.
        silent_share: mean share of the label's score that is not its own probability.
    """

    size: int
    heard: int
    voters: tuple[Voter, ...]
    silent_share: float


@dataclass(frozen=True)
class LabelRow:
    label: str
    support: int | None
    constrained: LabelScores
    semantic: LabelScores | None
    neighbourhood: Neighbourhood | None


@dataclass(frozen=True)
class Answer:
    """What a scoring says of a document: its most probable labels, and is the first right?"""

    labels: tuple[tuple[str, float], ...]
    right: bool | None


@dataclass(frozen=True)
class Change:
    """A document whose distribution Semantic Softmax changed a lot.

    Attributes:
        key: the document's id.
        text: what the model read, cut.
        truth: right labels; empty if the documents do not tell.
        moved: total variation distance between the two distributions, 0..1.
        voters: label -> the loudest neighbours, for the label that won, then for the one that lost.
        silent: label -> share of its score that its neighbours cast.
    """

    key: str
    text: str
    truth: tuple[str, ...]
    moved: float
    constrained: Answer
    semantic: Answer
    voters: Mapping[str, tuple[Voter, ...]]
    silent: Mapping[str, float]


@dataclass(frozen=True)
class Data:
    """Where documents come from: how many are published, ours, or do not tell; their sources."""

    published: int
    ours: int
    unknown: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """One task of one directory.

    Attributes:
        name, task, model: what was run.
        n: documents.
        missing: documents of the run that have no readout yet.
        labels: number of labels.
        data: where the documents come from.
        scoring: the kernel's parameters, {} without a semantic part.
        no_semantic: why there is no semantic part, "" if there is one.
        notes: other things that a reader must know.
        metrics: rows of the table.
        diagrams: reliability of each scoring.
        label_rows: most frequent label first.
        flips: right under both, only under one, under none; {} without targets.
        changed_predictions: documents with another label on top; None without a semantic part.
        changes: the documents that changed most.
        surface: objective over kernel settings, if it was tuned.
        provenance: what the readouts depend on.
    """

    name: str
    task: str
    model: str
    n: int
    missing: int
    labels: int
    data: Data
    scoring: Mapping[str, Any]
    no_semantic: str
    notes: tuple[str, ...]
    metrics: tuple[MetricRow, ...]
    diagrams: tuple[Reliability, ...]
    label_rows: tuple[LabelRow, ...]
    flips: Mapping[str, int]
    changed_predictions: int | None
    changes: tuple[Change, ...]
    surface: TauSurface | None
    provenance: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.model} on {self.task}"

    def row(self, key: str) -> MetricRow | None:
        return next((row for row in self.metrics if row.metric.key == key), None)


@dataclass(frozen=True)
class Report:
    """A page: its sections, and the command that made it."""

    sections: tuple[Section, ...]
    command: str = "semsoft report"
    version: str = field(default=__version__)
