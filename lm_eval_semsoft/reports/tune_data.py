"""What a grid says: cells, choices on halves, and the record in `tune.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm_eval_semsoft.core.bootstrap import Interval, Paired
from lm_eval_semsoft.core.semantic_softmax import Scoring

from .tune_grid import CONSTRAINED, Objective, axes_of, model_args


@dataclass(frozen=True)
class Cell:
    """A scoring and what it is worth.

    Attributes:
        scoring: the cell.
        value: of the objective.
        metrics: all of `tune_grid.METRICS`; NaN where one does not exist.
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
        else [{**vars(h), "chosen": axes_of(h.chosen)} for h in tuned.halves],
        "constrained": {"value": tuned.constrained.value, **tuned.constrained.metrics},
        "default": _cell_record(tuned.default),
        "uniform": dict(tuned.uniform),
        "cells": [_cell_record(cell) for cell in tuned.cells],
    }


def _cell_record(cell: Cell) -> dict[str, Any]:
    own = {"value": cell.value, **cell.metrics}
    distance = {"behind": cell.behind, "stderr": cell.stderr, "alike": cell.alike}
    return {**axes_of(cell.scoring), **own, **distance}
