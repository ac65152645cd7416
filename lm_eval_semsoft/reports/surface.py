"""The grid that `semsoft tune` found, as heat maps: for its own picture and for the report."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import Scoring, parse_space

from . import figures
from .figures import HeatPanel, TauSurface
from .measures import BY_KEY
from .readings import Readings
from .report_text import number, visible
from .tune_grid import canonical

_REST = ("anchors", "top_k", "rival_votes")  # what differs between heat maps

Place = tuple[int, int, int]  # panel, row, column
Cell = tuple[str, str, tuple[str, ...], float]  # space, tau, the rest, value


def read_surface(
    path: Path, readings: Readings, scoring: Scoring | None = None
) -> TauSurface | None:
    """The grid that `semsoft tune` wrote, as heat maps; None if it is another task's.

    Drawn are the maps that differ from the best cell's in `rival_votes` only, and the run's own.

    Args:
        path: a JSON file {"objective": …, "cells": [{"space", "tau", "value", …}, …]}.
        readings: what is reported on.
        scoring: of the report, the run's by default; its cell is marked.

    Raises:
        ValueError: not such a file, naming it.
        OSError: it cannot be read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        grid = _Grid.of(record)
        task = record.get("task")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not what `semsoft tune` writes, an object with objective and cells "
            f"({type(error).__name__}: {error})."
        ) from error
    if not grid.cells:
        raise ValueError(f"{path} holds no cells.")
    if task not in (None, readings.task):
        return None
    known = BY_KEY[grid.objective].better if grid.objective in BY_KEY else ""
    better = str(record.get("better") or known)
    used = grid.place(vars(scoring or readings.run_scoring))
    n = record.get("n")
    origin = "" if n is None else f"{n:,} documents of {record.get('model', 'unknown model')}"
    return grid.surface(better, grid.best(better), used, origin)


def draw_tuned(record: Mapping[str, Any]) -> Figure:
    """The picture of `semsoft tune`: its best cell framed, the package's default dotted.

    Values that cannot be told from the best are bold. The caption says where the constrained
    softmax and a uniform guess stand.

    Args:
        record: `tune.record`, or the content of `tune.json`.
    """
    grid = _Grid.of(record)
    best, default = grid.place(record["best"]), grid.place(record["default"])
    surface = grid.surface(record["better"], best, default)
    alike = [place for cell in record["cells"] if cell["alike"] and (place := grid.place(cell))]
    bold = [place for place in alike if place[0] in surface.shown]
    return figures.tau_surface(surface, _title(record), _caption(record, surface, bold), bold)


@dataclass(frozen=True)
class _Grid:
    """The cells of a `tune.json` in order.

    Attributes:
        objective: what the cells hold.
        constrained: the objective of the standard softmax.
        cells: as in the file.
        rows: spaces.
        columns: thresholds, absolute ones first.
        others: combinations of the other settings, one heat map each.
    """

    objective: str
    constrained: float
    cells: Sequence[Cell]
    rows: Sequence[str]
    columns: Sequence[str]
    others: Sequence[tuple[str, ...]]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Grid:
        objective = visible(str(record["objective"]))
        cells = [_cell(cell) for cell in record["cells"]]
        return cls(
            objective,
            _float(record.get("constrained", {}).get("value")),
            cells,
            rows=sorted({space for space, *_ in cells}, key=_space_order),
            columns=sorted({tau for _, tau, *_ in cells}, key=_tau_order),
            others=sorted(
                {rest for *_, rest, _ in cells}, key=lambda r: (r[0], _number(r[1]), r[2])
            ),
        )

    @property
    def tables(self) -> NDArray[np.float64]:
        """[panels, rows, columns]; NaN where a setting was not tried."""
        tables = np.full((len(self.others), len(self.rows), len(self.columns)), np.nan)
        for space, tau, rest, value in self.cells:
            place = self.others.index(rest), self.rows.index(space), self.columns.index(tau)
            tables[place] = value
        return tables

    def place(self, scoring: Mapping[str, Any]) -> Place | None:
        """Where a setting stands, if it is in the grid."""
        space, tau, rest, _ = _cell({**scoring, "value": 0})
        if space in self.rows and tau in self.columns and rest in self.others:
            return self.others.index(rest), self.rows.index(space), self.columns.index(tau)
        return None

    def best(self, better: str) -> Place | None:
        tables = self.tables
        known = np.isfinite(tables)
        if not better or not known.any():
            return None
        loss = np.where(known, tables if better == "lower" else -tables, np.inf)
        panel, row, column = np.unravel_index(int(np.argmin(loss)), loss.shape)
        return int(panel), int(row), int(column)

    def surface(
        self, better: str, best: Place | None, used: Place | None, origin: str = ""
    ) -> TauSurface:
        """Shown are the maps that differ from the best one's in rival votes, and the used one."""
        chosen = self.others[best[0] if best else 0]
        varying = [i for i in range(len(_REST)) if len({rest[i] for rest in self.others}) > 1]
        return TauSurface(
            objective=self.objective,
            better=better,
            rows=tuple(self.rows),
            columns=tuple(self.columns),
            panels=tuple(
                HeatPanel(", ".join(_named(_REST[i], rest[i]) for i in varying), table)
                for rest, table in zip(self.others, self.tables, strict=True)
            ),
            shown=tuple(
                i
                for i, rest in enumerate(self.others)
                if rest[:2] == chosen[:2] or (used is not None and used[0] == i)
            ),
            best=best,
            used=used,
            constrained=self.constrained,
            origin=origin,
        )


def _title(record: Mapping[str, Any]) -> str:
    what = record["objective"]
    if what.startswith("rank:"):
        what = f"mean rank of {' and '.join(what.removeprefix('rank:').split(','))}"
    corrected = ", label prior corrected" if record["prior"] else ""
    where = f"{PurePath(record['model']).name}, {record['task']}, {record['n']:,} documents"
    return f"{what} ({record['better']} is better{corrected})\n{where}"


def _caption(record: Mapping[str, Any], surface: TauSurface, bold: Sequence[Place]) -> str:
    best = record["best"]
    words = "The darker, the better. Framed: the best cell"
    if surface.used is not None and surface.used == surface.best:
        words += ", which is the package's default"
    elif surface.used is not None:
        words += "; dotted: the package's default"
    words += f".\nBest: K = {best['top_k']}, anchors {best['anchors']}. "
    words += f"Constrained softmax: {number(surface.constrained)}"
    uniform = _float(record["uniform"].get(record["objective"]))
    if math.isfinite(uniform):
        words += f"; uniform guess: {number(uniform)}"
    if len(bold) > 1:
        words += ".\nBold: cannot be told from the best on these documents"
    return f"{words}."


def _cell(cell: Mapping[str, Any]) -> Cell:
    """What may be text is made harmless for pictures."""
    tau = cell["tau"]
    with contextlib.suppress(ValueError):
        tau = canonical(tau)
    rest = tuple(visible(str(cell.get(name, ""))) for name in _REST)
    return visible(str(cell["space"])), visible(str(tau)), rest, _float(cell["value"])


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _named(name: str, value: str) -> str:
    return f"K = {value}" if name == "top_k" else f"{name.replace('_', ' ')} {value}"


def _space_order(space: str) -> tuple[int, int, str]:
    kinds = ("raw", "centered", "pc", "whitened")
    try:
        kind, directions = parse_space(space)
    except ValueError:
        return len(kinds), 0, space
    return kinds.index(kind), directions, space


def _tau_order(tau: str) -> tuple[bool, float, str]:
    return tau.startswith("q"), _number(tau.removeprefix("q")), tau


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf
