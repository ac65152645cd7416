"""The pictures of a report: numbers in, a matplotlib figure out, and figures into files.

Figures are drawn once, in the colours of a white page. Inside the HTML report they are inline SVG
whose colours are CSS variables, so one drawing serves the light and the dark page; on paper they
are PNG and PDF. Nothing here uses pyplot or any other state: a figure is a function of its data.

The two scorings never differ by colour alone: the standard softmax is an orange, dashed line with
squares and hatched bars, Semantic Softmax a blue, solid line with circles and plain bars.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

# One ink per role. In the HTML each becomes the CSS variable of its name.
COLOURS = {
    "ink": "#1f2328",
    "muted": "#59636e",
    "grid": "#d1d9e0",
    "paper": "#fefefe",
    "constrained": "#ad5200",
    "semantic": "#0b5cad",
}
# Light to dark blue; the numbers in the cells stay readable because each picks black or white.
HEAT = LinearSegmentedColormap.from_list("heat", ["#eef4fa", "#9dc3e6", "#3f83c4", "#123c6b"])

_PAPER = {"facecolor": COLOURS["paper"], "edgecolor": "none", "pad": 0.4}  # behind numbers

MIN_IN_BIN = 5  # bins with fewer documents are drawn hollow: their accuracy says next to nothing
PNG_DPI = 200

# Inches. A phone shows one panel at about its own size.
_PLOT, _BARS, _GAP = 3.9, 1.0, 0.16
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.2, 0.34, 0.48
_CHARACTERS = 5.6  # points that one character of a label takes, for room beside a heat map


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: how often answers of about one confidence are right.

    Attributes:
        title: of the panel.
        side: `constrained` or `semantic`; decides colour, marker, line and hatching.
        count: [B] documents per equal-width bin of confidence.
        confidence: [B] their mean confidence; NaN where the bin is empty.
        accuracy: [B] share of right answers; None if the documents have no targets.
        low, high: [B] ends of the 95 % bootstrap interval of the accuracy; NaN where there is none.
        note: one line of numbers inside the panel, e.g. the ECE.
    """

    title: str
    side: str
    count: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64] | None = None
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    note: str = ""

    @property
    def edges(self) -> NDArray[np.float64]:
        return np.linspace(0, 1, len(self.count) + 1)

    @property
    def mean_confidence(self) -> float:
        return _weighted_mean(self.confidence, self.count)

    @property
    def mean_accuracy(self) -> float:
        return float("nan") if self.accuracy is None else _weighted_mean(self.accuracy, self.count)


@dataclass(frozen=True)
class HeatPanel:
    """One table of a tau surface.

    Attributes:
        title: what all its cells have in common, e.g. "rival votes off, K = 1000".
        values: [rows, columns]; NaN where a setting was not tried.
    """

    title: str
    values: NDArray[np.float64]


@dataclass(frozen=True)
class TauSurface:
    """An objective over settings of the kernel.

    Attributes:
        objective: what the cells hold.
        better: `lower`, `higher`, or "" if unknown.
        rows: names of the spaces.
        columns: names of the thresholds.
        panels: one per combination of the other settings.
        shown: which panels are drawn; a grid over five arguments does not fit on one page.
        best: (panel, row, column) of the best cell, if it is known what is better.
        used: (panel, row, column) of the setting that this run was scored with, if it was tried.
        constrained: the objective of the standard softmax on the same documents, NaN if unknown.
        origin: which documents the grid was tried on.
    """

    objective: str
    better: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    panels: tuple[HeatPanel, ...]
    shown: tuple[int, ...]
    best: tuple[int, int, int] | None = None
    used: tuple[int, int, int] | None = None
    constrained: float = float("nan")
    origin: str = ""


# --------------------------------------------------------------------------------------------
# figures
# --------------------------------------------------------------------------------------------


def reliability(
    panels: Sequence[Reliability], beside: Sequence[Reliability] | None = None
) -> Figure:
    """Reliability diagrams side by side, each over the histogram of its confidences.

    Args:
        panels: what is drawn.
        beside: panels that will stand next to it, so that all bars have one scale.
    """
    with_accuracy = any(panel.accuracy is not None for panel in panels)
    one = _LEFT + _PLOT + _RIGHT
    width, height = one * len(panels), _TOP + _BARS + _BOTTOM
    if with_accuracy:
        height += _PLOT + _GAP
    tallest = max(_share(panel.count).max(initial=0) for panel in beside or panels)
    with _style():
        figure = Figure(figsize=(width, height))

        def axes(column: int, bottom: float, tall: float) -> Axes:
            left = column * one + _LEFT
            box = (left / width, bottom / height, _PLOT / width, tall / height)
            return figure.add_axes(box)

        for column, panel in enumerate(panels):
            _histogram(axes(column, _BOTTOM, _BARS), panel, tallest)
            if with_accuracy:
                _diagram(axes(column, _BOTTOM + _BARS + _GAP, _PLOT), panel)
            for own in figure.axes[-2 if with_accuracy else -1 :]:
                own.yaxis.set_label_coords(-0.115, 0.5)
            figure.axes[-1].set_title(
                panel.title, loc="left", weight="bold", color=COLOURS[panel.side], size=10.5
            )
    return figure


def tau_surface(
    surface: TauSurface,
    title: str = "",
    caption: str = "",
    bold: Collection[tuple[int, int, int]] = (),
) -> Figure:
    """Heat maps of an objective: spaces down, thresholds across, one map per other setting.

    Args:
        surface: what is drawn.
        title, caption: lines above and below, for a picture that stands alone.
        bold: (panel, row, column) of values that are set in bold.
    """
    known = np.concatenate([panel.values.ravel() for panel in surface.panels])
    known = known[np.isfinite(known)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    left = max(map(len, surface.rows)) * _CHARACTERS / 72
    width = max(_LEFT + _PLOT + _RIGHT, 0.25 + left + 0.5 * len(surface.columns))
    height = len(surface.shown) * (0.6 + 0.3 * len(surface.rows)) + 0.4
    lines = [*title.splitlines(), *caption.splitlines()]
    width = max([width, *(0.25 + len(line) * _CHARACTERS / 72 for line in lines)])
    height += 0.2 * len(lines)
    with _style():
        figure = Figure(figsize=(width, height), layout="constrained")
        stack = figure.subplots(len(surface.shown), 1, sharex=True, squeeze=False)[:, 0]
        for number, axes in zip(surface.shown, stack, strict=True):
            strong = {(row, column) for panel, row, column in bold if panel == number}
            _heat_map(axes, surface, surface.panels[number], float(low), float(high), strong)
            for cell, line in ((surface.used, ":"), (surface.best, "-")):
                if cell is not None and cell[0] == number:
                    _frame(axes, cell[1], cell[2], line)
        stack[-1].set_xlabel("tau")
        if title:
            figure.suptitle(title, x=0.01, ha="left", size=10.5, parse_math=False)
        if caption:
            figure.supxlabel(
                caption, x=0.01, ha="left", size=8, color=COLOURS["muted"], parse_math=False
            )
    return figure


def _diagram(axes: Axes, panel: Reliability) -> None:
    """Accuracy over confidence, bin by bin, beside the diagonal where the two are equal."""
    assert panel.accuracy is not None
    assert panel.low is not None
    assert panel.high is not None
    look = _look(panel.side)
    line = {"color": look["color"], "marker": look["marker"], "ls": look["ls"]}
    axes.plot([0, 1], [0, 1], color=COLOURS["muted"], lw=0.9, ls=(0, (1, 2)))
    axes.text(
        0.97, 0.93, "accuracy = confidence", color=COLOURS["muted"], size=8, ha="right", va="top",
        rotation=45, rotation_mode="anchor", transform_rotates_text=True,
    )  # fmt: skip
    solid = panel.count >= MIN_IN_BIN
    for run in _runs(solid):
        x, low, high = panel.confidence[run], panel.low[run], panel.high[run]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.16, lw=0)
        axes.vlines(x, low, high, color=look["color"], lw=1.1)
    axes.plot(
        panel.confidence[solid], panel.accuracy[solid], lw=1.6, ms=6, mew=0.8, clip_on=False,
        mec=COLOURS["paper"], zorder=3, **line,
    )  # fmt: skip
    hollow = (panel.count > 0) & ~solid
    axes.plot(
        panel.confidence[hollow], panel.accuracy[hollow], look["marker"], ms=5, mfc="none", mew=1,
        mec=look["color"], clip_on=False, zorder=3,
    )  # fmt: skip
    axes.text(0.02, 0.975, panel.note, transform=axes.transAxes, va="top", bbox=_PAPER)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.grid(color=COLOURS["grid"], lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelbottom=False)


def _histogram(axes: Axes, panel: Reliability, tallest: float) -> None:
    """The share of documents in each bin, with their number on each bar."""
    look = _look(panel.side)
    share = _share(panel.count)
    axes.axvline(panel.mean_confidence, color=COLOURS["ink"], lw=1.2, label="mean confidence")
    if panel.accuracy is not None:
        axes.axvline(panel.mean_accuracy, color=COLOURS["ink"], lw=1.4, ls=":", label="accuracy")
    axes.bar(
        panel.edges[:-1], share, width=np.diff(panel.edges), align="edge", lw=0.6,
        facecolor="none" if look["hatch"] else look["color"], edgecolor=look["color"],
        hatch=look["hatch"],
    )  # fmt: skip
    for left, right, height, count in zip(
        panel.edges[:-1], panel.edges[1:], share, panel.count, strict=True
    ):
        if count:
            axes.annotate(
                f"{count:,}", ((left + right) / 2, height), (0, 2.5), textcoords="offset points",
                ha="center", va="bottom", rotation=90, size=7, color=COLOURS["muted"], bbox=_PAPER,
            )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, max(tallest, 1e-9) * 1.7), xlabel="confidence")
    axes.set_ylabel("share")
    free: Literal["upper left", "upper right"]
    free = "upper left" if panel.mean_confidence > 0.5 else "upper right"
    axes.legend(loc=free, frameon=False, handlelength=1.6, borderaxespad=0.1, fontsize=8)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.yaxis.set_major_locator(MaxNLocator(3))


def _heat_map(
    axes: Axes,
    surface: TauSurface,
    panel: HeatPanel,
    low: float,
    high: float,
    bold: Collection[tuple[int, int]],
) -> None:
    rows, columns = panel.values.shape
    span = (high - low) or 1.0
    for row in range(rows):
        for column in range(columns):
            value = panel.values[row, column]
            corner = (column, row)
            if not np.isfinite(value):
                axes.add_patch(
                    Rectangle(corner, 1, 1, fill=False, ec=COLOURS["grid"], lw=0, hatch="////")
                )
                continue
            weight = (value - low) / span
            colour = HEAT(1 - weight if surface.better == "lower" else weight)
            axes.add_patch(Rectangle(corner, 1, 1, fc=colour, ec=COLOURS["paper"], lw=1))
            axes.text(
                column + 0.5, row + 0.5, f"{value:.3f}", ha="center", va="center", size=8,
                color=_readable_on(colour), weight="bold" if (row, column) in bold else "normal",
            )  # fmt: skip
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.set_xticks(np.arange(columns) + 0.5, surface.columns)
    axes.set_yticks(np.arange(rows) + 0.5, surface.rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(panel.title, loc="left", size=9, parse_math=False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)


def _frame(axes: Axes, row: int, column: int, line: str) -> None:
    axes.add_patch(
        Rectangle(
            (column + 0.04, row + 0.07), 0.92, 0.86, fill=False, ec=COLOURS["constrained"],
            lw=2, ls=line, zorder=4,
        )
    )  # fmt: skip


def _look(side: str) -> dict[str, Any]:
    if side == "constrained":
        return {"color": COLOURS[side], "marker": "s", "ls": "--", "hatch": "////"}
    return {"color": COLOURS[side], "marker": "o", "ls": "-", "hatch": None}


def _runs(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Indices of each unbroken run of True."""
    chosen = np.flatnonzero(mask)
    return [r for r in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1) if r.size]


def _share(count: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(count / max(1, count.sum()))


def _weighted_mean(values: NDArray[np.float64], count: NDArray[np.int64]) -> float:
    used = count > 0
    return float(np.average(values[used], weights=count[used])) if used.any() else float("nan")


def _readable_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever contrasts more (WCAG 2 relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return "#000000" if luminance > 0.179 else "#ffffff"


def _style() -> AbstractContextManager[None]:
    """Small type, thin lines, nothing that does not carry data; and the same bytes every time."""
    context: AbstractContextManager[None] = matplotlib.rc_context(
        {
            **matplotlib.rcParamsDefault,
            "axes.edgecolor": COLOURS["muted"],
            "axes.labelcolor": COLOURS["ink"],
            "axes.linewidth": 0.7,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "font.size": 9,
            "hatch.linewidth": 0.9,
            "pdf.fonttype": 42,
            "svg.fonttype": "none",
            "svg.hashsalt": "semsoft",
            "text.color": COLOURS["ink"],
            "xtick.color": COLOURS["muted"],
            "xtick.labelcolor": COLOURS["ink"],
            "ytick.color": COLOURS["muted"],
            "ytick.labelcolor": COLOURS["ink"],
        }
    )
    return context


# --------------------------------------------------------------------------------------------
# files
# --------------------------------------------------------------------------------------------


def inline_svg(figure: Figure, label: str, prefix: str) -> str:
    """A figure as an SVG element for an HTML page.

    Its colours are the page's CSS variables (`--ink`, `--semantic`, …, with the light colours as
    fallback), its font is the page's, and its ids begin with `prefix`.

    Args:
        figure: from this module.
        label: what the picture shows, in words and numbers, for readers who do not see it.
        prefix: unique on the page.
    """
    buffer = io.BytesIO()
    with _style(), warnings.catch_warnings():
        # Letters stay letters in an SVG: the reader's fonts matter, not those of this machine.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', buffer.getvalue().decode()))
    for element in root.iter():
        for child in list(element):
            # matplotlib's <style> would hold for the whole page; the page has its own rule for it.
            if _local(child.tag) in ("metadata", "style"):
                element.remove(child)
        element.tag = _local(element.tag)
        element.attrib = _for_page(element.attrib, prefix, used)
        element.text = (element.text or "").strip()
        element.tail = None
    size = root.attrib["viewBox"]
    root.attrib = {"role": "img", "aria-label": label, "viewBox": size}
    return ElementTree.tostring(root, encoding="unicode")


def _for_page(attributes: Mapping[str, str], prefix: str, used: set[str]) -> dict[str, str]:
    """Attributes with the page's colours, font and ids."""
    out = {}
    for name, value in attributes.items():
        if name == "id" and value not in used:
            continue
        value = re.sub(r"url\(#", f"url(#{prefix}", value)
        # matplotlib 3.8 writes `font: 9px 'A', 'B'`, newer ones have a font-family of their own.
        value = re.sub(r"(font-family:|font:[^;]*?px) [^;]*", r"\1 var(--sans,sans-serif)", value)
        for role, colour in COLOURS.items():
            value = value.replace(colour, f"var(--{role},{colour})")
        if name == "d":
            value = " ".join(value.split())
        local = _local(name)
        if local == "href":
            value = f"#{prefix}{value[1:]}"
        out[local] = f"{prefix}{value}" if name == "id" else value
    return out


def _local(name: str) -> str:
    """A name without its namespace: inside HTML the parser knows it."""
    return name.rpartition("}")[2]


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.png (200 dpi) and STEM.pdf for a paper; returns their paths."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".pdf")]
    save_png(figure, paths[0])
    with _style():
        figure.savefig(
            paths[1], facecolor="white", metadata={"CreationDate": None, "Producer": None}
        )
    return paths


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, 200 dpi, the same bytes every time, whatever the file is called."""
    with _style():
        figure.savefig(
            path, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None}
        )
