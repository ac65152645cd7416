"""The page of a report: its numbers as one HTML file that needs no network and runs no script."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from . import figures, report_statistics, sampled_measures
from . import sampled_page as free
from .figures import Reliability, TauSurface
from .measures import MEASURES
from .report_data import HEADLINE, TITLES, Estimate, MetricRow, Report, Section
from .report_text import marked, number, percent, signed, visible


def render(report: Report) -> str:
    """The page: one HTML file without scripts, links to elsewhere, or state."""
    template = _environment().get_template("report.html")
    return template.render(
        report=report,
        title="Confidence report" if report.sampled else "Semantic Softmax report",
        many=len(report.sections) + len(report.sampled) > 1,
        metrics=MEASURES,
        headline=HEADLINE,
        answer_metrics=sampled_measures.MEASURES,
        answer_headline=sampled_measures.HEADLINE,
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lm_eval_semsoft.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Every text on its way to the page passes here, so none can be forgotten.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(
        number=number, signed=signed, count="{:,}".format, percent=percent,
        word=marked, bar=lambda p: f"{100 * p:.1f}%" if math.isfinite(p) else "0",
    )  # fmt: skip
    environment.globals.update(
        titles=TITLES,
        min_in_bin=figures.MIN_IN_BIN,
        resamples=report_statistics.RESAMPLES,
        diagram=_diagram_svg,
        diagram_rows=_diagram_rows,
        surface=_surface_svg,
        groups=lambda rows: [
            (group, list(own)) for group, own in itertools.groupby(rows, lambda r: r.metric.group)
        ],
        findings=_findings,
        points_svg=free.points_svg,
        points_rows=free.points_rows,
        curves_svg=free.curves_svg,
        curve_rows=free.curve_rows,
        clusters_svg=free.clusters_svg,
        by_n_svg=free.by_n_svg,
        of_filter=free.of_filter,
        isnan=math.isnan,
    )
    return environment


def _diagram_svg(panel: Reliability, beside: Sequence[Reliability], prefix: str) -> Markup:
    figure = figures.reliability([panel], beside)
    return Markup(figures.inline_svg(figure, _in_words(panel), prefix))


def _in_words(panel: Reliability) -> str:
    """A diagram for those who do not see it."""
    what = "Histogram of confidences" if panel.accuracy is None else "Reliability diagram"
    head = f"{what}, {panel.title}: {panel.count.sum():,} documents, mean confidence "
    head += number(panel.mean_confidence)
    if panel.accuracy is not None:
        head += f", accuracy {number(panel.mean_accuracy)}, {panel.note}"
    bins = [
        f"confidence {number(c, 2)}" + ("" if a is None else f", accuracy {number(a, 2)}")
        + f", {n:,} documents"
        for c, a, n in zip(
            panel.confidence,
            itertools.repeat(None) if panel.accuracy is None else panel.accuracy,
            panel.count,
            strict=False,
        )
        if n
    ]  # fmt: skip
    return f"{head}. Bins: {'; '.join(bins)}."


def _diagram_rows(panel: Reliability) -> Iterator[dict[str, Any]]:
    """A diagram as a table."""
    for b in range(len(panel.count)):
        own = {"from": panel.edges[b], "to": panel.edges[b + 1], "count": int(panel.count[b])}
        own["confidence"] = float(panel.confidence[b])
        if panel.accuracy is not None and panel.low is not None and panel.high is not None:
            ends = (float(panel.accuracy[b]), float(panel.low[b]), float(panel.high[b]))
            own["accuracy"] = Estimate(*ends)
        yield own


def _surface_svg(surface: TauSurface, prefix: str) -> Markup:
    return Markup(
        figures.inline_svg(figures.tau_surface(surface), _surface_in_words(surface), prefix)
    )


def _surface_in_words(surface: TauSurface) -> str:
    text = f"Heat map of {surface.objective} over {len(surface.rows)} spaces and "
    text += f"{len(surface.columns)} thresholds"
    for what, cell in (("best", surface.best), ("this run", surface.used)):
        if cell is not None:
            panel, row, column = cell
            value = surface.panels[panel].values[row, column]
            title = f", {surface.panels[panel].title}" if surface.panels[panel].title else ""
            text += f"; {what}: {number(float(value))} at space {surface.rows[row]}, "
            text += f"tau {surface.columns[column]}{title}"
    return f"{text}. All values are in the table below."


def _findings(section: Section) -> dict[str, list[MetricRow]]:
    """The headline metrics by what Semantic Softmax does to them."""
    return {
        verdict: [
            row for row in section.metrics if row.verdict == verdict and row.metric.key in HEADLINE
        ]
        for verdict in ("better", "worse", "unclear")
    }
