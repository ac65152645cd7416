"""The pictures of a run with free-text answers: numbers in, a matplotlib figure out.

Everything that `figures` says of its pictures holds here: inks by role, no state, and no two
things that differ by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .figures import _PAPER, COLOURS, MIN_IN_BIN, _runs, _style
from .report_data import Estimate
from .report_text import number
from .sampled_data import ByN, ClusterCounts, Curve, Ints, Points, SampledSection

Corner = Literal["upper left", "upper right", "lower left"]

# Inches. All pictures are as wide, so that two stand beside each other and a phone shows one.
_WIDTH, _LEFT, _PLOT = 4.72, 0.62, 3.9
_TOP, _BOTTOM, _BARS, _GAP = 0.15, 0.48, 1.0, 0.16
_HEIGHT = _TOP + _PLOT + _GAP + _BARS + _BOTTOM
_LOW = 3.2  # height of the smaller pictures
_SETTLED = 0.1  # coverage

_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": COLOURS["semantic"], "ls": "-", "marker": "o"},
    {"color": COLOURS["constrained"], "ls": (0, (5, 2)), "marker": "s"},
    {"color": COLOURS["muted"], "ls": (0, (5, 2, 1, 2)), "marker": "^"},
)


def all_of(section: SampledSection) -> dict[str, Figure]:
    """Every picture that a section has, by what it shows."""
    drawn: dict[str, Figure] = {}
    if section.points is not None:
        drawn["reliability"] = reliability(section.points, section.confidence_name)
    if section.curves:
        drawn["risk-coverage"] = risk_coverage(section.curves)
    if section.cluster_counts is not None:
        drawn["clusters"] = clusters(section.cluster_counts)
    if section.by_n is not None:
        drawn["samples"] = by_n(section.by_n)
    return drawn


def reliability(points: Points, name: str) -> Figure:
    """How often answers of one confidence are right, over how many there are."""
    with _style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        bars = _axes(figure, _BOTTOM, _BARS)
        plot = _axes(figure, _BOTTOM + _BARS + _GAP, _PLOT)
        _diagonal(plot, points)
        _histogram(bars, points, name)
        for axes in (bars, plot):
            axes.yaxis.set_label_coords(-0.115, 0.5)
    return figure


def risk_coverage(curves: Sequence[Curve]) -> Figure:
    """The share of wrong answers against the share of questions that are answered."""
    # Of the first few questions one more wrong answer is a leap: they do not set the scale.
    settled = [own[c.coverage >= _SETTLED] for c in curves for own in (c.risk, c.high)]
    top = max((float(np.nanmax(own)) for own in settled if np.isfinite(own).any()), default=1.0)
    head = 0.3 + 0.17 * (len(curves) + 1)  # inches of the legend
    base = float(curves[0].risk[-1])
    with _style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        axes = _axes(figure, _BOTTOM, _HEIGHT - _BOTTOM - _TOP - head)
        for i, curve in enumerate(curves):
            _curve(axes, curve, _LOOKS[i], first=i == 0, order=4 - i)
        axes.axhline(
            base, color=COLOURS["ink"], lw=1, ls=(0, (1, 2)), label=f"no choice ({number(base)})"
        )
        axes.set(xlim=(0, 1.02), ylim=(0, min(1.02, max(0.1, 1.08 * top))))
        axes.set_xlabel("coverage: share of questions answered")
        axes.set_ylabel("risk: share of them that is wrong")
        axes.yaxis.set_label_coords(-0.115, 0.5)
        _grid(axes)
        _legend(
            axes, "lower left", bbox_to_anchor=(0, 1.01),
            title="questions ordered by (area under the curve)",
        )  # fmt: skip
    return figure


def _curve(axes: Axes, curve: Curve, look: dict[str, Any], first: bool, order: int) -> None:
    steps, ink = curve.steps, look["color"]
    axes.plot(
        curve.coverage, curve.risk, color=ink, ls=look["ls"], lw=1.6 if first else 1.3,
        zorder=order,
    )  # fmt: skip
    if first:
        axes.fill_between(curve.coverage, curve.low, curve.high, color=ink, alpha=0.16, lw=0)
    axes.plot(
        steps[:, 0], steps[:, 1], look["marker"], ms=6 if first else 4, mew=0.8, color=ink,
        mec=COLOURS["paper"], zorder=order + 1,
    )  # fmt: skip
    axes.plot(
        [], [], color=ink, ls=look["ls"], marker=look["marker"] if len(steps) else "", ms=5,
        label=f"{curve.name} ({number(curve.aurc.value)})",
    )  # fmt: skip


def clusters(counts: ClusterCounts) -> Figure:
    """How many questions have how many clusters, and how many of those are answered right."""
    parts: tuple[tuple[str, Ints, dict[str, Any]], ...] = (
        ("right", counts.right, {"facecolor": COLOURS["semantic"], "edgecolor": COLOURS["paper"]}),
        ("wrong", counts.wrong,
         {"facecolor": "none", "edgecolor": COLOURS["constrained"], "hatch": "////"}),
        ("no gold answer", counts.unknown, {"facecolor": "none", "edgecolor": COLOURS["muted"]}),
    )  # fmt: skip
    x = np.arange(1, len(counts.right) + 1)
    total = counts.right + counts.wrong + counts.unknown
    with _style():
        figure = Figure(figsize=(_WIDTH, _LOW))
        axes = _axes(figure, _BOTTOM, _LOW - _BOTTOM - _TOP)
        below = np.zeros(len(x))
        for label, own, look in parts:
            if own.any():
                axes.bar(x, own, 0.7, bottom=below, lw=0.8, label=label, **look)
            below = below + own
        for i, n in zip(x, total, strict=True):
            if n and len(x) <= 30:
                axes.annotate(
                    f"{n:,}", (i, n), (0, 2.5), textcoords="offset points", ha="center",
                    va="bottom", size=7.5, color=COLOURS["muted"],
                )  # fmt: skip
        axes.set(xlabel="clusters among the samples of a question", ylabel="questions")
        axes.set(xlim=(0.4, len(x) + 0.6), ylim=(0, 1.3 * max(1, total.max(initial=0))))
        if len(x) <= 20:
            axes.set_xticks(x)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_label_coords(-0.115, 0.5)
        _legend(axes, "upper right", ncols=3, columnspacing=1.2)
    return figure


def by_n(found: ByN) -> Figure:
    """Accuracy and calibration error against the number of samples."""
    with _style():
        figure = Figure(figsize=(_WIDTH, _LOW))
        tall = (_LOW - _BOTTOM - _TOP - 0.18) / 2
        below, above = _axes(figure, _BOTTOM, tall), _axes(figure, _BOTTOM + tall + 0.18, tall)
        if np.isfinite(found.greedy.value):
            above.axhline(
                found.greedy.value, color=COLOURS["muted"], lw=1, ls=(0, (1, 2)),
                label=f"greedy answer ({number(found.greedy.value)})",
            )  # fmt: skip
            _legend(above, "upper left")
        _whiskers(above, found.n, found.accuracy, 0)
        _whiskers(below, found.n, found.ece, 1)
        above.set_ylabel("accuracy")
        below.set(ylabel="ECE", xlabel="N: samples of each question")
        above.tick_params(labelbottom=False)
        _room(above, (*found.accuracy, found.greedy), 1.45)
        _room(below, found.ece, 1.15)
        for axes in (above, below):
            axes.set_xticks(found.n)
            axes.set_xlim(0, max(found.n) * 1.06)
            axes.yaxis.set_label_coords(-0.115, 0.5)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            _grid(axes)
    return figure


def _axes(figure: Figure, bottom: float, tall: float) -> Axes:
    height = figure.get_figheight()
    return figure.add_axes((_LEFT / _WIDTH, bottom / height, _PLOT / _WIDTH, tall / height))


def _diagonal(axes: Axes, points: Points) -> None:
    ink = COLOURS["semantic"]
    axes.plot([0, 1], [0, 1], color=COLOURS["muted"], lw=0.9, ls=(0, (1, 2)))
    axes.text(
        0.97, 0.93, "accuracy = confidence", color=COLOURS["muted"], size=8, ha="right", va="top",
        rotation=45, rotation_mode="anchor", transform_rotates_text=True,
    )  # fmt: skip
    x, y = points.confidence, points.accuracy
    solid = points.count >= MIN_IN_BIN
    axes.vlines(x, points.low, points.high, color=ink, lw=1.1, alpha=0.75)
    for run in _runs(solid):
        axes.plot(x[run], y[run], color=ink, lw=1.6)
    for some, face in ((solid, ink), (~solid, COLOURS["paper"])):
        axes.plot(
            x[some], y[some], "o", ms=6 if face == ink else 5, mfc=face, mew=0.8 if face == ink
            else 1, mec=COLOURS["paper"] if face == ink else ink, clip_on=False, zorder=3,
        )  # fmt: skip
    axes.text(0.02, 0.975, points.note, transform=axes.transAxes, va="top", bbox=_PAPER)
    axes.set(xlim=_room_for_bars(points), ylim=(0, 1), ylabel="accuracy")
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.set_yticks(np.linspace(0, 1, 6))
    _grid(axes)
    axes.tick_params(labelbottom=False)


def _histogram(axes: Axes, points: Points, name: str) -> None:
    share = points.count / points.count.sum()
    axes.bar(
        points.left, share, width=points.width, align="edge", lw=0.6,
        facecolor=COLOURS["semantic"], edgecolor=COLOURS["semantic"],
    )  # fmt: skip
    middle = points.left + points.width / 2
    axes.axvline(points.mean_confidence, color=COLOURS["ink"], lw=1.2, label="mean confidence")
    axes.axvline(points.mean_accuracy, color=COLOURS["ink"], lw=1.4, ls=":", label="accuracy")
    for x, y, n in zip(middle, share, points.count, strict=True):
        axes.annotate(
            f"{n:,}", (x, y), (0, 2.5), textcoords="offset points", ha="center", va="bottom",
            rotation=90, size=7, color=COLOURS["muted"], bbox=_PAPER,
        )  # fmt: skip
    axes.set(xlim=_room_for_bars(points), ylim=(0, share.max() * 1.75))
    axes.set(xlabel=name, ylabel="share")
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    _legend(axes, "upper left" if points.mean_confidence > 0.5 else "upper right")


def _room_for_bars(points: Points) -> tuple[float, float]:
    """From 0 to 1, and wider where a bar stands at an end."""
    ends = (points.left.min(), (points.left + points.width).max())
    return min(0.0, float(ends[0]) - 0.01), max(1.0, float(ends[1]) + 0.01)


def _whiskers(axes: Axes, n: Sequence[int], values: Sequence[Estimate], look: int) -> None:
    style = _LOOKS[look]
    axes.vlines(n, [v.low for v in values], [v.high for v in values], color=style["color"], lw=1.1)
    axes.plot(
        n, [v.value for v in values], lw=1.6, ms=6, mew=0.8, mec=COLOURS["paper"], zorder=3,
        clip_on=False, color=style["color"], ls=style["ls"], marker=style["marker"],
    )  # fmt: skip


def _room(axes: Axes, values: Sequence[Estimate], more: float) -> None:
    """From 0 to somewhat above the highest."""
    known = [x for v in values for x in (v.value, v.high) if np.isfinite(x)]
    axes.set_ylim(0, max(0.05, more * max(known, default=1.0)))


def _grid(axes: Axes) -> None:
    axes.grid(color=COLOURS["grid"], lw=0.6)
    axes.set_axisbelow(True)


def _legend(
    axes: Axes, where: Literal["upper left", "upper right", "lower left"], **more: Any
) -> None:
    legend = axes.legend(
        loc=where, frameon=False, handlelength=2.2, borderaxespad=0.15, fontsize=8,
        title_fontsize=8, alignment="left", **more,
    )  # fmt: skip
    legend.get_title().set_color(COLOURS["muted"])
