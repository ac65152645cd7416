"""The picture of a grid: an objective over thresholds and spaces, from what `semsoft tune` found.

A figure is a function of its numbers: no pyplot, no state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lm_eval_semsoft.core.semantic_softmax import parse_space, parse_tau

from .figures import COLOURS, HEAT

INK, MUTED, PAPER, MARK = (COLOURS[role] for role in ("ink", "muted", "paper", "constrained"))

_CELL = (0.72, 0.33)  # inches
_GAP = 0.3  # rows between absolute thresholds and quantiles: they are two scales
_NEAR = 0.25  # of the range of the values


def tau_surface(record: Mapping[str, Any]) -> Figure:
    """Heat maps of the objective: thresholds down, spaces across, one map per kind of rival votes.

    K and anchors are those of the best cell. The best cell is framed, the package's default dotted;
    values that cannot be told from the best are bold. The colour bar says where the constrained
    softmax and a uniform guess stand.

    Args:
        record: `tune.record`, or the content of `tune.json`.
    """
    best = record["best"]
    shown = [c for c in record["cells"] if all(c[a] == best[a] for a in ("top_k", "anchors"))]
    spaces = sorted({c["space"] for c in shown}, key=_space_order)
    taus = sorted({c["tau"] for c in shown}, key=_tau_order)
    switches = sorted({c["rival_votes"] for c in shown})
    values = [_number(c["value"]) for c in shown if c["value"] is not None]
    references = _references(record, values)
    known = [*values, *references.values()]
    colours = ScalarMappable(
        Normalize(min(known), max(known)),
        HEAT.reversed() if record["better"] == "lower" else HEAT,
    )
    style = {**matplotlib.rcParamsDefault, "font.size": 9, "text.color": INK}
    with matplotlib.rc_context(style):
        width = len(switches) * (len(spaces) * _CELL[0] + 0.25) + 2.2
        height = len(taus) * _CELL[1] + 1.9
        figure = Figure(figsize=(max(width, 6.0), height), layout="constrained")
        panels = figure.subplots(1, len(switches), sharey=True, squeeze=False)[0]
        for axes, switch in zip(panels, switches, strict=True):
            own = [c for c in shown if c["rival_votes"] == switch]
            _panel(axes, own, spaces, taus, record, colours)
            axes.set_title(f"rival votes {switch}", size=9, loc="left")
        panels[0].set_ylabel("tau")
        _colour_bar(figure, list(panels), colours, record, references)
        figure.suptitle(_title(record), x=0.01, ha="left", size=10.5, parse_math=False)
        figure.supxlabel(_caption(record, shown), x=0.01, ha="left", size=8, color=MUTED)
    return figure


def _references(record: Mapping[str, Any], values: Sequence[float]) -> dict[str, float]:
    """What the cells are compared with; a uniform guess only where it does not crush the scale."""
    constrained = _number(record["constrained"]["value"])
    uniform = _number(record["uniform"].get(record["objective"]))
    low, high = min([*values, constrained]), max([*values, constrained])
    found = {"constrained": constrained}
    if low - _NEAR * (high - low) <= uniform <= high + _NEAR * (high - low):
        found["uniform guess"] = uniform
    return found


def _panel(
    axes: Axes,
    cells: Sequence[Mapping[str, Any]],
    spaces: Sequence[str],
    taus: Sequence[float | str],
    record: Mapping[str, Any],
    colours: ScalarMappable,
) -> None:
    tops = _tops(taus)
    for cell in cells:
        column, top, value = spaces.index(cell["space"]), tops[cell["tau"]], _number(cell["value"])
        if not math.isfinite(value):
            axes.add_patch(Rectangle((column, top), 1, 1, fill=False, ec=MUTED, lw=0, hatch="///"))
            continue
        colour = tuple(colours.to_rgba(np.array(value)))
        axes.add_patch(Rectangle((column, top), 1, 1, fc=colour, ec=PAPER, lw=1))
        axes.text(
            column + 0.5, top + 0.52, _digits(value), ha="center", va="center", size=8,
            color=_readable_on(colour), weight="bold" if cell["alike"] else "normal",
        )  # fmt: skip
        for other, line in ((record["default"], ":"), (record["best"], "-")):
            if _same(cell, other):
                axes.add_patch(
                    Rectangle((column, top), 1, 1, fill=False, ec=MARK, lw=2.2, ls=line, zorder=3)
                )
    axes.set(xlim=(-0.03, len(spaces) + 0.03), ylim=(max(tops.values()) + 1.05, -0.05))
    axes.set_xticks([i + 0.5 for i in range(len(spaces))], spaces)
    axes.set_yticks([top + 0.5 for top in tops.values()], [str(tau) for tau in taus])
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def _tops(taus: Sequence[float | str]) -> dict[float | str, float]:
    """Where the row of each threshold begins: absolute ones first, then quantiles."""
    absolute = sum(not parse_tau(tau)[1] for tau in taus)
    return {tau: i + (_GAP if 0 < absolute <= i else 0.0) for i, tau in enumerate(taus)}


def _colour_bar(
    figure: Figure,
    panels: list[Axes],
    colours: ScalarMappable,
    record: Mapping[str, Any],
    references: Mapping[str, float],
) -> None:
    """The scale, with the best on top whatever is better, and where the references stand."""
    bar = figure.colorbar(colours, ax=panels, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=8, colors=MUTED)
    if record["better"] == "lower":
        bar.ax.invert_yaxis()
    low, high = colours.get_clim()
    span = high - low or 1.0
    height = {name: (value - low) / span for name, value in references.items()}
    if record["better"] == "lower":
        height = {name: 1 - at for name, at in height.items()}
    lowest = 0.0
    for name in sorted(height, key=lambda name: height[name]):
        value, at = references[name], max(height[name], lowest)
        lowest = at + 0.13  # the next label must not lie on this one
        bar.ax.axhline(value, color=MARK, lw=2)
        bar.ax.annotate(
            f"{name}\n{_digits(value)}", (1, height[name]), (4.3, at), size=8, va="center",
            xycoords="axes fraction", textcoords="axes fraction", color=MARK,
            arrowprops={"arrowstyle": "-", "color": MARK, "lw": 0.7, "shrinkA": 2, "shrinkB": 0},
        )  # fmt: skip


def _title(record: Mapping[str, Any]) -> str:
    what = record["objective"]
    if what.startswith("rank:"):
        what = f"mean rank of {' and '.join(what.removeprefix('rank:').split(','))}"
    corrected = ", label prior corrected" if record["prior"] else ""
    where = f"{PurePath(record['model']).name}, {record['task']}, {record['n']:,} documents"
    return f"{what} ({record['better']} is better{corrected})\n{where}"


def _caption(record: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    best, default = record["best"], record["default"]
    words = f"K = {best['top_k']}, anchors {best['anchors']}. The darker, the better. "
    if _same(best, default):
        words += "Framed: the best cell, which is the package's default."
    elif any(_same(cell, default) for cell in shown):
        words += "Framed: the best cell; dotted: the package's default."
    else:
        words += "Framed: the best cell."
    if sum(cell["alike"] for cell in shown) > 1:
        words += "\nBold: cannot be told from the best on these documents."
    return words


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    axes = ("space", "tau", "top_k", "anchors", "rival_votes")
    return all(one[axis] == other[axis] for axis in axes)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _digits(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever contrasts more (WCAG 2 relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = sum(a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
    return INK if luminance > 0.179 else PAPER


def _space_order(space: str) -> tuple[int, int]:
    kind, directions = parse_space(space)
    return ("raw", "centered", "pc", "whitened").index(kind), directions


def _tau_order(tau: float | str) -> tuple[bool, float]:
    value, quantile = parse_tau(tau)
    return quantile, value
