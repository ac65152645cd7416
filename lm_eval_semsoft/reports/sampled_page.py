"""What the page of a report needs of runs with free-text answers: pictures, also in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from . import figures, sampled_figures
from .report_data import Estimate
from .report_text import interval, number
from .sampled_data import Curve, Points, SampledSection

_COVERAGES = (0.1, 0.25, 0.5, 0.75, 1.0)  # rows of the table


def of_filter(section: SampledSection) -> str:
    """Which filter a picture is of, where there are several."""
    return f" ({section.main})" if len(section.filters) > 1 else ""


def points_svg(section: SampledSection, prefix: str) -> Markup:
    points = section.points
    assert points is not None
    rows = [
        f"confidence {number(c, 2)}, accuracy {number(a, 2)}, {n:,} questions"
        for c, a, n in zip(points.confidence, points.accuracy, points.count, strict=True)
    ]
    text = f"Reliability diagram of {section.confidence_name}: {points.count.sum():,} questions, "
    text += f"mean confidence {number(points.mean_confidence)}, accuracy "
    text += f"{number(points.mean_accuracy)}, {points.note}. {'; '.join(rows)}."
    return _svg(sampled_figures.reliability(points, section.confidence_name), text, prefix)


def points_rows(points: Points) -> Iterator[dict[str, Any]]:
    """The reliability diagram as a table."""
    for b in range(len(points.count)):
        ends = (float(points.accuracy[b]), float(points.low[b]), float(points.high[b]))
        yield {
            "confidence": float(points.confidence[b]),
            "count": int(points.count[b]),
            "right": int(points.right[b]),
            "accuracy": Estimate(*ends),
        }


def curves_svg(section: SampledSection, prefix: str) -> Markup:
    text = "Risk–coverage curves; all questions answered, "
    text += f"{number(float(section.curves[0].risk[-1]))} are wrong"
    for curve in section.curves:
        half = next(iter(_risks([curve], 0.5)))
        text += f"; ordered by {curve.name}: area {interval(curve.aurc)}, risk at half coverage "
        text += interval(half)
    return _svg(sampled_figures.risk_coverage(section.curves), f"{text}.", prefix)


def curve_rows(curves: Sequence[Curve]) -> Iterator[dict[str, Any]]:
    """The curves as a table, at a few coverages."""
    for coverage in _COVERAGES:
        yield {"coverage": coverage, "risks": list(_risks(curves, coverage))}


def _risks(curves: Sequence[Curve], coverage: float) -> Iterator[Estimate]:
    """The risk at the nearest coverage that was computed."""
    for curve in curves:
        i = int(np.abs(curve.coverage - coverage).argmin())
        yield Estimate(float(curve.risk[i]), float(curve.low[i]), float(curve.high[i]))


def clusters_svg(section: SampledSection, prefix: str) -> Markup:
    counts = section.cluster_counts
    assert counts is not None
    rows = [
        f"{i} cluster{'s' if i > 1 else ''}: {r + w + u:,} questions, {r:,} right, {w:,} wrong"
        for i, (r, w, u) in enumerate(
            zip(counts.right, counts.wrong, counts.unknown, strict=True), start=1
        )
        if r + w + u
    ]
    text = f"Histogram of the number of clusters. {'; '.join(rows)}."
    return _svg(sampled_figures.clusters(counts), text, prefix)


def by_n_svg(section: SampledSection, prefix: str) -> Markup:
    found = section.by_n
    assert found is not None
    rows = [
        f"N = {n}: accuracy {interval(a)}, ECE {interval(e)}"
        for n, a, e in zip(found.n, found.accuracy, found.ece, strict=True)
    ]
    text = f"Accuracy and ECE against the number of samples. {'; '.join(rows)}; "
    text += f"greedy accuracy {interval(found.greedy)}."
    return _svg(sampled_figures.by_n(found), text, prefix)


def _svg(figure: Figure, text: str, prefix: str) -> Markup:
    return Markup(figures.inline_svg(figure, text, prefix))
