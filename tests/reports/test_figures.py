"""The pictures: pure functions of their data, one drawing for light, dark and paper."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from lm_eval_semsoft.reports import figures
from lm_eval_semsoft.reports.figures import HeatPanel, Reliability, TauSurface

COUNT = np.array([0, 40, 120, 3, 0, 25, 8, 0, 0, 0, 0, 0, 0, 0, 1])
CONFIDENCE = np.where(COUNT > 0, (np.arange(15) + 0.5) / 15, np.nan)
ACCURACY = np.where(COUNT > 0, CONFIDENCE / 2, np.nan)
PANEL = Reliability(
    "Standard softmax",
    "constrained",
    COUNT,
    CONFIDENCE,
    ACCURACY,
    np.where(COUNT >= 5, ACCURACY - 0.05, np.nan),
    np.where(COUNT >= 5, ACCURACY + 0.05, np.nan),
    "ECE 0.123 [0.100, 0.150]",
)
OTHER = replace(PANEL, title="Semantic Softmax", side="semantic")
SURFACE = TauSurface(
    "brier",
    "lower",
    ("raw", "pc:3"),
    ("0.3", "q0.95", "q0.99"),
    (
        HeatPanel("rival votes off", np.array([[1.0, 0.9, math.nan], [0.8, 0.7, 0.95]])),
        HeatPanel("rival votes on", np.array([[1.0, 0.9, 0.9], [0.85, 0.75, 0.95]])),
    ),
    shown=(0, 1),
    best=(0, 1, 1),
    used=(1, 0, 0),
)


def lines(figure: Figure) -> list:
    return [line for axes in figure.axes for line in axes.get_lines()]


def test_the_diagram_draws_the_numbers():
    figure = figures.reliability([PANEL])
    histogram, diagram = figure.axes
    heights = [bar.get_height() for bar in histogram.patches]
    assert heights == pytest.approx(COUNT / COUNT.sum())
    assert [t.get_text() for t in histogram.texts] == ["40", "120", "3", "25", "8", "1"]
    diagonal, solid, hollow = diagram.get_lines()
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    enough = COUNT >= figures.MIN_IN_BIN
    assert solid.get_xdata() == pytest.approx(CONFIDENCE[enough])
    assert solid.get_ydata() == pytest.approx(ACCURACY[enough])
    few = (COUNT > 0) & ~enough
    assert hollow.get_ydata() == pytest.approx(ACCURACY[few])
    assert "ECE 0.123 [0.100, 0.150]" in [t.get_text() for t in diagram.texts]
    mean = float((CONFIDENCE * COUNT)[COUNT > 0].sum() / COUNT.sum())
    assert histogram.get_lines()[0].get_xdata()[0] == pytest.approx(mean)


def test_bands_break_where_bins_are_missing():
    diagram = figures.reliability([PANEL]).axes[1]
    bands = [c for c in diagram.collections if type(c).__name__ != "LineCollection"]
    assert len(bands) == 2  # bins 1-2, then 5-6


def test_scorings_differ_by_more_than_colour():
    looks = []
    for panel in (PANEL, OTHER):
        histogram, diagram = figures.reliability([panel]).axes
        line = diagram.get_lines()[1]
        looks.append((line.get_marker(), line.get_linestyle(), histogram.patches[0].get_hatch()))
    assert all(a != b for a, b in zip(*looks, strict=True))


def test_the_two_axes_line_up():
    for panels in ([PANEL], [PANEL, OTHER]):
        figure = figures.reliability(panels)
        for histogram, diagram in zip(figure.axes[::2], figure.axes[1::2], strict=True):
            one, other = histogram.get_position(), diagram.get_position()
            assert (one.x0, one.x1) == pytest.approx((other.x0, other.x1))
            assert other.y0 > one.y1


def test_without_targets_only_the_histogram():
    bare = Reliability("Standard softmax", "constrained", COUNT, CONFIDENCE)
    figure = figures.reliability([bare, replace(bare, side="semantic")])
    assert len(figure.axes) == 2
    assert math.isnan(bare.mean_accuracy)


def test_no_documents():
    nothing = Reliability(
        "Standard softmax", "constrained", np.zeros(15, dtype=np.int64), np.full(15, np.nan),
        np.full(15, np.nan), np.full(15, np.nan), np.full(15, np.nan),
    )  # fmt: skip
    ET.fromstring(figures.inline_svg(figures.reliability([nothing]), "nothing", "a-"))


@pytest.mark.parametrize("better", ["lower", "higher", ""])
def test_the_heat_map_shows_every_value(better):
    figure = figures.tau_surface(replace(SURFACE, better=better))
    assert len(figure.axes) == 2
    shown = [[t.get_text() for t in axes.texts] for axes in figure.axes]
    assert shown[0] == ["1.000", "0.900", "0.800", "0.700", "0.950"]
    assert len(shown[1]) == 6
    for axes in figure.axes:
        for text in axes.texts:
            column, row = (math.floor(x) for x in text.get_position())
            (cell,) = [p for p in axes.patches if p.get_xy() == (column, row)]
            assert contrast(text.get_color(), cell.get_facecolor()) >= 4.5


def contrast(ink: str, paper: tuple[float, ...]) -> float:
    def luminance(colour) -> float:
        rgb = matplotlib.colors.to_rgb(colour)
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    high, low = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_dark_is_better():
    def darkness(better: str, text: str) -> float:
        axes = figures.tau_surface(replace(SURFACE, better=better)).axes[0]
        (label,) = [t for t in axes.texts if t.get_text() == text]
        column, row = (math.floor(x) for x in label.get_position())
        (cell,) = [p for p in axes.patches if p.get_xy() == (column, row)]
        return -sum(cell.get_facecolor()[:3])

    assert darkness("lower", "0.700") > darkness("lower", "1.000")
    assert darkness("higher", "1.000") > darkness("higher", "0.700")


def test_one_value_only_and_no_value_at_all():
    one = HeatPanel("", np.array([[0.5]]))
    for panel in (one, HeatPanel("", np.array([[math.nan]]))):
        surface = TauSurface("ece", "lower", ("raw",), ("0.8",), (panel,), shown=(0,))
        ET.fromstring(figures.inline_svg(figures.tau_surface(surface), "one", "a-"))


@pytest.mark.parametrize(
    "figure",
    [lambda: figures.reliability([PANEL]), lambda: figures.reliability([PANEL, OTHER]),
     lambda: figures.tau_surface(SURFACE)],
)  # fmt: skip
def test_inline_svg(figure):
    label = 'numbers <1> & "2" \\1 \\g<0>'
    text = figures.inline_svg(figure(), label, "run-1-")
    root = ET.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == label
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)  # the page decides
    assert "<style" not in text
    assert "<metadata" not in text
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    assert all(i.startswith("run-1-") for i in ids)
    # every ink is a variable of the page, so nothing is black on a dark one
    for name, colour in figures.COLOURS.items():
        assert text.count(colour) == text.count(f"var(--{name},{colour})")
    assert "DejaVu" not in text
    assert len(text) < 60_000


def test_the_same_data_give_the_same_bytes(tmp_path):
    draws = [figures.inline_svg(figures.reliability([PANEL]), "x", "a-") for _ in range(2)]
    assert draws[0] == draws[1]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        figures.save(figures.tau_surface(SURFACE), tmp_path / name / "figure")
    for suffix in ("png", "pdf"):
        one, other = ((tmp_path / n / f"figure.{suffix}").read_bytes() for n in "ab")
        assert one == other


def test_saved_figures_are_for_paper(tmp_path):
    from PIL import Image

    paths = figures.save(figures.reliability([PANEL, OTHER]), tmp_path / "01-run.v2")
    assert [p.name for p in paths] == ["01-run.v2.png", "01-run.v2.pdf"]
    with Image.open(paths[0]) as image:
        assert image.info["dpi"] == pytest.approx((200, 200), abs=0.5)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert paths[1].read_bytes().startswith(b"%PDF")


def test_nothing_outside_changes():
    before = dict(matplotlib.rcParams)
    figures.inline_svg(figures.reliability([PANEL]), "x", "a-")
    figures.inline_svg(figures.tau_surface(SURFACE), "x", "b-")
    assert dict(matplotlib.rcParams) == before
