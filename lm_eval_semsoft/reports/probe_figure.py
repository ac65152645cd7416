"""What a probe finds over the depth of a model: curves, side by side on relative depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .align import signed
from .figures import COLOURS, _style
from .probe import Probed, Probes, depth, share

# Inches.
_WIDE, _TALL = 3.6, 2.7
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 0.62, 0.15, 0.5, 1.0, 0.22
_ROW_GAP = 0.95  # between tasks: room for titles and for the axis above

_ASIDE = 1.06  # where the headline stands: right of the last layer
_DASHES = (0, (6, 2, 1, 2))
_RIDGE, _OLS, _CONTROL = COLOURS["semantic"], COLOURS["constrained"], "#b8c0c8"


def curves(found: Probes) -> Figure:
    """A panel per task (down) and directory (across): correlation over relative depth.

    Args:
        found: from `probe.probe_all`.
    """
    tasks = list(dict.fromkeys(t.task for t in found.tables))
    grid = [[t for t in found.tables if t.task == task] for task in tasks]
    columns = max(map(len, grid))
    wide = _WIDE if columns > 1 else 1.8 * _WIDE  # the legend needs as much
    width = _LEFT + columns * wide + (columns - 1) * _GAP + _RIGHT
    height = _TOP + len(grid) * _TALL + (len(grid) - 1) * _ROW_GAP + _BOTTOM
    low, high = _limits(found.tables)
    with _style():
        figure = Figure(figsize=(width, height))
        for row, tables in enumerate(grid):
            bottom = height - _TOP - (row + 1) * _TALL - row * _ROW_GAP
            for column, table in enumerate(tables):
                left = _LEFT + column * (wide + _GAP)
                box = (left / width, bottom / height, wide / width, _TALL / height)
                axes = figure.add_axes(box)
                axes.set(xlim=(0, _ASIDE + 0.04), ylim=(low, high))
                _panel(axes, table)
                if column:
                    axes.tick_params(labelleft=False)
                else:
                    axes.set_ylabel("r, out of fold")
        figure.legend(
            handles=_legend(found), loc="lower left", bbox_to_anchor=(_LEFT / width, 0.0), ncol=2,
            frameon=False, fontsize=8, handlelength=2.2, columnspacing=1.6, borderaxespad=0.2,
        )  # fmt: skip
    return figure


def _panel(axes: Axes, table: Probed) -> None:
    p = table.probe
    layers = len(p.layers)
    x = np.array([depth(i, layers) for i in range(layers)])
    r, low, high = (np.array([getattr(own.pearson, k) for own in p.layers]) for k in
                    ("r", "low", "high"))  # fmt: skip
    axes.axhline(0, color=COLOURS["muted"], lw=0.8)
    axes.fill_between(
        x, [own.control_low for own in p.layers], [own.control_high for own in p.layers],
        color=_CONTROL, alpha=0.45, lw=0, hatch="....", edgecolor="#ffffff",
    )  # fmt: skip
    axes.fill_between(x, low, high, color=_RIDGE, alpha=0.18, lw=0)
    ols = [own.ols_r for own in p.layers]
    axes.plot(x, ols, color=_OLS, lw=1.1, ls="--", gid="ols", zorder=3)
    axes.plot(x, r, color=_RIDGE, lw=1.6, marker="o", ms=3, gid="ridge", zorder=4)
    _best(axes, table)
    _headline(axes, table)
    axes.grid(axis="y", color=COLOURS["grid"], lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
    axes.set_xlabel(f"depth, share of {layers} blocks")
    heading = axes.set_title(f"{table.name}: {table.task}\n", loc="left", size=9.5, weight="bold")
    heading.set_parse_math(False)
    line = axes.text(
        0, 1.02, f"{table.target.replace('_', ' ')}, {p.n:,} documents", size=8,
        transform=axes.transAxes, color=COLOURS["muted"],
    )  # fmt: skip
    line.set_parse_math(False)
    if p.flaw:
        axes.text(0.5, 0.6, "no probe", transform=axes.transAxes, ha="center", va="center")


def _headline(axes: Axes, table: Probed) -> None:
    """The nested r as a line across, its interval beside the curve."""
    own = table.probe.pearson
    if own.r != own.r:
        return
    ink = COLOURS["ink"]
    axes.plot([0, _ASIDE], [own.r, own.r], color=ink, lw=1.2, ls=_DASHES, gid="headline", zorder=5)
    axes.plot([_ASIDE, _ASIDE], [own.low, own.high], color=ink, lw=1.6, zorder=5)
    axes.plot([_ASIDE], [own.r], color=ink, marker="D", ms=5, zorder=6)
    layer = table.probe.layer
    assert layer is not None
    axes.text(
        0.02, 0.025,
        f"nested {signed(own.r)} [{signed(own.low)} {signed(own.high)}]: "
        f"layer {layer} in {share(table.probe.layer_of_fold, layer)}",
        transform=axes.transAxes, size=8, bbox=_box(), zorder=7,
    )  # fmt: skip


def _best(axes: Axes, table: Probed) -> None:
    p = table.probe
    if p.max_over_layers is None:
        return
    r, x = p.layers[p.max_over_layers].pearson.r, depth(p.max_over_layers, len(p.layers))
    axes.plot(
        [x], [r], marker="o", ms=9, mfc="none", mec=COLOURS["ink"], mew=1.3, zorder=6,
        gid="max_over_layers",
    )  # fmt: skip
    axes.annotate(
        f"{signed(r)}, layer {p.max_over_layers}", (x, r), (0, 9), textcoords="offset points",
        ha="right" if x > 0.7 else "left" if x < 0.3 else "center", size=8, bbox=_box(), zorder=7,
    )  # fmt: skip


def _box() -> dict[str, object]:
    return {"facecolor": COLOURS["paper"], "edgecolor": "none", "alpha": 0.75, "pad": 0.6}


def _limits(tables: Sequence[Probed]) -> tuple[float, float]:
    """One scale for all panels, with room for the line of text at the foot."""
    values = [0.0, 0.1]
    for table in tables:
        for own in table.probe.layers:
            values += [own.pearson.low, own.pearson.high, own.ols_r, own.control_low]
            values.append(own.control_high)
        values += [table.probe.pearson.low, table.probe.pearson.high]
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = high - low
    return low - 0.16 * room, high + 0.08 * room


def _legend(found: Probes) -> list[Line2D | Patch]:
    level = f"{found.settings.level:.0%}"
    return [
        Line2D([], [], color=_RIDGE, lw=1.6, marker="o", ms=3, label=f"ridge, {level} interval"),
        Line2D(
            [], [], color=COLOURS["ink"], lw=1.2, ls=_DASHES, marker="D", ms=4,
            label="headline: layer chosen in the training folds",
        ),
        Line2D([], [], color=_OLS, lw=1.1, ls="--", label="least squares, mean over folds (study)"),
        Line2D(
            [], [], color="none", marker="o", ms=8, mfc="none", mec=COLOURS["ink"], mew=1.3,
            label="max over layers (optimistic)",
        ),
        Patch(
            facecolor=_CONTROL, alpha=0.45, lw=0, hatch="....", edgecolor="#ffffff",
            label=f"shuffled targets, {level}",
        ),
    ]  # fmt: skip
