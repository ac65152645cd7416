"""Rank correlations as a heat map: measures down, targets and models across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from .align import ALPHA, Aligned, Alignments, rows_of, signed
from .figures import COLOURS, _readable_on, _style

# Orange below 0, blue above: told apart with any colour vision, and by lightness from none.
DIVERGING = LinearSegmentedColormap.from_list(
    "diverging", ["#8a3d00", "#e08a3c", "#fbe3cb", "#fefefe", "#d3e5f5", "#5b9bd5", "#123c6b"]
)
_LEAST_SPAN = 0.3  # of the colours: small correlations shall look small

CAPTION = (
    "Spearman's r of doubt with what is known of people. Bold: p < .05 after Holm's correction\n"
    "over all cells of one task and model; in brackets: not. Hatched: no value."
)

# Inches.
_ROW, _COLUMN, _HEAD, _GAP, _CHARACTER = 0.2, 0.62, 0.62, 0.3, 0.073
_MARGIN = 0.15
_SHORT = int(_COLUMN / _CHARACTER)  # characters of a name that need not stand upright


@dataclass(frozen=True)
class Block:
    """Columns of one task: every target of every model.

    Attributes:
        task: its name.
        targets: names, with the number of columns that each covers.
        models: [C] name of each column's model, "" where there is one alone.
        r: [M, C].
        clear: [M, C] is the corrected p below `ALPHA`?
    """

    task: str
    targets: tuple[tuple[str, int], ...]
    models: tuple[str, ...]
    r: NDArray[np.float64]
    clear: NDArray[np.bool_]


@dataclass(frozen=True)
class Panel:
    """Blocks whose rows are the same measures."""

    measures: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def columns(self) -> int:
        return sum(len(block.models) for block in self.blocks)


def heat_map(found: Alignments) -> Figure:
    """Every correlation of every table; those without a corrected p below .05 in brackets."""
    panels = panels_of(found.tables)
    values = np.concatenate([b.r.ravel() for p in panels for b in p.blocks])
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    span = max(_LEAST_SPAN, np.ceil(largest * 10) / 10)
    left = max(len(name) for p in panels for name in p.measures) * _CHARACTER + _MARGIN
    longest = max(len(name) for p in panels for b in p.blocks for name in b.models)
    below = longest * _CHARACTER if longest > _SHORT else 0.2
    widest = max(p.columns * _COLUMN + _GAP * (len(p.blocks) - 1) for p in panels)
    width = left + max(widest, 3.2) + 1.0
    heights = [_HEAD + _ROW * len(p.measures) + below + _MARGIN for p in panels]
    height = sum(heights) + 0.55
    with _style():
        figure = Figure(figsize=(width, height))
        top = height - 0.05
        for panel, tall in zip(panels, heights, strict=True):
            x = left
            for block in panel.blocks:
                across, down = _COLUMN * len(block.models), _ROW * len(panel.measures)
                box = (x / width, (top - _HEAD - down) / height, across / width, down / height)
                axes = figure.add_axes(box)
                _draw(axes, panel, block, span, first=block is panel.blocks[0])
                x += across + _GAP
            top -= tall
        _colour_bar(figure, span, width, height)
        figure.text(
            _MARGIN / width, 0.12 / height, CAPTION, size=7.5, color=COLOURS["muted"],
            va="bottom", parse_math=False,
        )  # fmt: skip
    return figure


def panels_of(tables: Sequence[Aligned]) -> list[Panel]:
    """Tasks with the same measures side by side, models of one task next to each other."""
    tasks: dict[str, list[Aligned]] = {}
    for table in tables:
        tasks.setdefault(table.subject.task, []).append(table)
    panels: dict[tuple[str, ...], list[Block]] = {}
    for task, own in tasks.items():
        rows = rows_of(own)
        panels.setdefault(rows, []).append(_block(task, own, rows))
    return [Panel(rows, tuple(blocks)) for rows, blocks in panels.items()]


def _block(task: str, tables: Sequence[Aligned], rows: Sequence[str]) -> Block:
    columns, models, heads = [], [], []
    for target in dict.fromkeys(name for t in tables for name in t.targets):
        own = [t for t in tables if target in t.targets]
        heads.append((target, len(own)))
        for table in own:
            j = table.targets.index(target)
            place = [table.measures.index(name) if name in table.measures else -1 for name in rows]
            known = np.array(place) >= 0
            r = np.where(known, table.matrix.r[place, j], np.nan)
            columns.append((r, known & (table.p_holm[place, j] < ALPHA)))
            models.append(table.subject.name if len(tables) > 1 else "")
    r, clear = (np.stack(side, axis=1) for side in zip(*columns, strict=True))
    return Block(task, tuple(heads), tuple(models), r, clear)


def _draw(axes: Axes, panel: Panel, block: Block, span: float, first: bool) -> None:
    rows, columns = block.r.shape
    for row in range(rows):
        for column in range(columns):
            _cell(axes, row, column, block.r[row, column], block.clear[row, column], span)
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    longest = max(map(len, block.models))
    axes.set_xticks(
        np.arange(columns) + 0.5, block.models, rotation=90 if longest > _SHORT else 0, size=8
    )
    axes.set_yticks(np.arange(rows) + 0.5, panel.measures if first else [""] * rows, size=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    start = 0
    for target, wide in block.targets:
        axes.text(
            start + wide / 2, -0.25, _lines(target, wide), ha="center", va="bottom", size=7.5,
            linespacing=1.0, parse_math=False,
        )  # fmt: skip
        if start:
            axes.axvline(start, color=COLOURS["ink"], lw=0.8)
        start += wide
    axes.text(
        0, -2.0, block.task, ha="left", va="bottom", size=9.5, weight="bold", parse_math=False
    )


def _cell(axes: Axes, row: int, column: int, r: float, clear: bool, span: float) -> None:
    if not np.isfinite(r):
        axes.add_patch(
            Rectangle((column, row), 1, 1, fill=False, ec=COLOURS["grid"], lw=0, hatch="////")
        )
        return
    colour = DIVERGING(0.5 + r / span / 2)
    axes.add_patch(Rectangle((column, row), 1, 1, fc=colour, ec=COLOURS["paper"], lw=1))
    ink = _readable_on(colour)
    text = signed(r) if clear else f"({signed(r)})"
    axes.text(
        column + 0.5, row + 0.52, text, ha="center", va="center", size=7.5, color=ink,
        weight="bold" if clear else "normal", alpha=1 if clear else 0.7,
    )  # fmt: skip


def _lines(target: str, wide: int) -> str:
    """A field's name on as many lines as its columns ask for."""
    words, lines = target.split("_"), [""]
    room = max(8, int(wide * _COLUMN / _CHARACTER))
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _colour_bar(figure: Figure, span: float, width: float, height: float) -> None:
    tall = min(2.2, height * 0.6)
    box = ((width - 0.6) / width, (height - _HEAD - tall) / height, 0.13 / width, tall / height)
    bar = figure.colorbar(
        ScalarMappable(Normalize(-span, span), DIVERGING), cax=figure.add_axes(box)
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=7)
    bar.ax.set_title("r", size=8, loc="left")
