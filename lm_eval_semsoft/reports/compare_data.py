"""What a comparison holds: figures, rows, tables and differences between directories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lm_eval_semsoft.core.bootstrap import Paired
from lm_eval_semsoft.core.semantic_softmax import Scoring

from .measures import Measure, chosen

# These cost more than all others together, and a share of the resamples will do.
SLOW_SHARE = 0.4

MEASURES = chosen(
    "accuracy", "macro_f1", "auroc", "brier", "nll", "ece", "ece_sweep", "smooth_ece",
    "mean_confidence",
)  # fmt: skip


def draws_of(measure: Measure, resamples: int) -> int:
    """How many of the resamples a metric is computed on."""
    return max(2, int(SLOW_SHARE * resamples)) if measure.slow else resamples


@dataclass(frozen=True)
class Figure:
    """A value, its 95 % percentile bootstrap interval, and how it stands to the reference row.

    Attributes:
        value: NaN where the metric does not exist.
        low, high: NaN where there is no interval.
        beats: share of the resamples in which this row is better than the reference, ties counted
            one half; None where there is nothing to compare.
        difference: value minus the reference's.
        difference_low, difference_high: its interval, on the same resamples for both. All three
            are None in the reference row itself.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    beats: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None


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
        reference: the row that all others are compared with.
        resamples, seed, level: of all intervals; slow metrics have the first `SLOW_SHARE` of the
            resamples.
        alpha: of the surprise-weighted votes.
        notes: on all tables.
    """

    tables: tuple[Table, ...]
    differences: tuple[Difference, ...]
    reference: str
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
            "reference": self.reference,
            "better": {m.key: m.better or None for m in MEASURES},
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
