"""What a report holds: the dataclasses of a section. The metrics are all of `measures`.

No number is computed here: `report_statistics` and `report_section` do that, `report_page` shows
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lm_eval_semsoft import __version__

from .figures import Reliability, TauSurface
from .measures import Measure

if TYPE_CHECKING:
    from .sampled_data import SampledSection

CONSTRAINED, SEMANTIC = "constrained", "semantic"
TITLES = {CONSTRAINED: "Standard softmax", SEMANTIC: "Semantic Softmax"}


# --------------------------------------------------------------------------------------------
# metrics
# --------------------------------------------------------------------------------------------

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

    metric: Measure
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
    """A page: its sections, and the command that made it.

    Attributes:
        sections: of readouts.
        sampled: of runs whose answers are free text.
    """

    sections: tuple[Section, ...]
    command: str = "semsoft report"
    version: str = field(default=__version__)
    sampled: tuple[SampledSection, ...] = ()
