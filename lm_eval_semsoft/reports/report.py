"""The report: one HTML page that shows what readouts say, standard softmax beside Semantic Softmax.

    sections = [build(r) for r in readings.load_all("readouts/gemma")]
    html = render(Report(tuple(sections)))

Three steps that do not mix: `build` computes every number of a section from readings, `numbers`
gives them as JSON, `render` puts them on a page that needs no network and runs no script. The same
readouts always give the same bytes.

This module is what others call. Below it: `report_data` (what a report holds), `report_statistics`
(metrics and their resamples), `report_section` (rows, diagrams and documents), `surface` (the grid
of `semsoft tune`), `report_text` (numbers and foreign text), `report_page` (HTML) and `figures`.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.core.semantic_softmax import Kernel, Scoring
from lm_eval_semsoft.engine.store import ForeignReadouts

from . import figures, sampled_figures, scores
from .figures import TauSurface
from .readings import Readings
from .report_data import CONSTRAINED, SEMANTIC, Change, Report, Section
from .report_page import render
from .report_section import (
    data_of,
    diagram,
    flips_of,
    label_rows,
    largest_changes,
    metric_rows,
    notes_of,
    provenance_of,
)
from .report_statistics import Side, bootstrap_all
from .report_text import short_model
from .sampled_data import SampledSection
from .surface import read_surface

__all__ = [
    "TUNE_FILE",
    "Report",
    "SampledSection",
    "Section",
    "build",
    "numbers",
    "read_surface",
    "render",
    "write_figures",
    "write_text",
]

TUNE_FILE = "tune.json"


def build(
    readings: Readings,
    documents: int = 10,
    surface: TauSurface | None = None,
    scoring: Scoring | None = None,
    kernel: str | None = None,
) -> Section:
    """Every number of a section.

    Args:
        readings: one task of one directory.
        documents: how many of the documents that changed most are shown.
        surface: from `read_surface`.
        scoring: of Semantic Softmax; by default the run's.
        kernel: `auto`, `cosine` or `identity`; by default the run's.

    Raises:
        ValueError: an unknown kernel.
    """
    scoring = replace(scoring or readings.run_scoring, scoring=SEMANTIC)
    target, own = readings.target, readings.label_logprobs
    constrained = Side(own.astype(np.float64), target, kind=CONSTRAINED)
    voters, why = _kernel(readings, scoring, kernel)
    semantic, about_scoring = None, {}
    if voters is not None:
        log_s = scores.log_scores_by(readings, scoring, voters)
        semantic = Side(log_s, target, own_logprobs=own, kind=SEMANTIC)
        about_scoring = {**asdict(scoring), "kernel": "cosine"}
    sides = [constrained] if semantic is None else [constrained, semantic]

    draws = bootstrap_all(sides)
    changes: tuple[Change, ...] = ()
    if semantic is not None and voters is not None:
        changes = largest_changes(readings, constrained, semantic, voters, scoring.top_k, documents)
    return Section(
        name=readings.name,
        task=readings.task,
        model=short_model(readings.source.model),
        n=readings.n,
        missing=readings.missing,
        labels=len(readings.labels),
        data=data_of(readings.docs),
        scoring=about_scoring,
        no_semantic=why,
        notes=notes_of(readings, sides),
        metrics=metric_rows(draws, readings, semantic is not None),
        diagrams=tuple(diagram(side, draws, target is not None) for side in sides),
        label_rows=label_rows(readings, sides, voters, scoring.top_k, draws),
        flips={} if target is None or semantic is None else flips_of(constrained, semantic, target),
        changed_predictions=None
        if semantic is None
        else int((constrained.predicted != semantic.predicted).sum()),
        changes=changes,
        surface=surface,
        provenance=provenance_of(readings),
    )


def _kernel(readings: Readings, scoring: Scoring, wanted: str | None) -> tuple[Kernel | None, str]:
    """The voting weights, or why there are none."""
    run = readings.source.manifest["about"].get("scoring", {}).get("kernel", "auto")
    kind = check_choice("kernel", wanted or run, ("auto", "cosine", "identity"))
    if readings.label_set is None:
        return None, readings.why_identity or "the documents do not share one label set"
    if kind == "identity":
        return None, "the identity kernel was asked for"
    if readings.why_identity and kind != "cosine":
        return None, readings.why_identity
    try:
        return scores.kernel_of(readings, scoring), ""
    except (ForeignReadouts, FileNotFoundError) as problem:
        return None, str(problem)


# --------------------------------------------------------------------------------------------
# writing
# --------------------------------------------------------------------------------------------


def numbers(report: Report) -> dict[str, Any]:
    """Everything that the page shows, as dictionaries, dataclasses and arrays."""
    return {
        "version": report.version,
        "command": report.command,
        "sections": [_section_numbers(section) for section in report.sections],
        "sampled": [_sampled_numbers(section) for section in report.sampled],
    }


def _section_numbers(section: Section) -> dict[str, Any]:
    out = {k: v for k, v in vars(section).items() if k not in ("metrics", "diagrams")}
    out["metrics"] = {
        row.metric.key: {k: v for k, v in vars(row).items() if k != "metric"}
        for row in section.metrics
    }
    out["bins"] = {
        d.side: {k: getattr(d, k) for k in ("count", "confidence", "accuracy", "low", "high")}
        for d in section.diagrams
    }
    return out


def _sampled_numbers(section: SampledSection) -> dict[str, Any]:
    out = {k: v for k, v in vars(section).items() if k not in ("metrics", "parse_rate", "points")}
    out["metrics"] = {
        row.metric.key: dict(zip(section.filters, row.values, strict=True))
        for row in section.metrics
    }
    if section.parse_rate:
        out["metrics"]["parse_rate"] = dict(zip(section.filters, section.parse_rate, strict=True))
    out["reliability"] = section.points and {
        k: getattr(section.points, k)
        for k in ("confidence", "count", "right", "accuracy", "low", "high", "exact")
    }
    return out


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Every figure as PNG and PDF; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, section in enumerate(report.sections, start=1):
        stem = "-".join(filter(None, map(_slug, (f"{number:02d}", section.name, section.task))))
        drawn = {"reliability": figures.reliability(section.diagrams)}
        if section.surface is not None:
            drawn["tau"] = figures.tau_surface(section.surface)
        for what, figure in drawn.items():
            written += figures.save(figure, folder / f"{stem}-{what}")
    for number, own in enumerate(report.sampled, start=len(report.sections) + 1):
        stem = "-".join(filter(None, map(_slug, (f"{number:02d}", own.name, own.task))))
        for what, figure in sampled_figures.all_of(own).items():
            written += figures.save(figure, folder / f"{stem}-{what}")
    return written


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:60]


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none: under another name, then renamed.

    Raises:
        OSError: the folder cannot be written to, or `path` is one.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # a temporary file is its owner's alone, a report is not
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
