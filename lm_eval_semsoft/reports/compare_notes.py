"""What a reader of a comparison must know, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lm_eval_semsoft.core.corrections import HOTTEST
from lm_eval_semsoft.core.errors import listed
from lm_eval_semsoft.core.semantic_softmax import Scoring

from . import methods, rescore, scores
from .compare_data import Difference, Table
from .methods import Answers
from .readings import Readings


def names_of(readings: Sequence[Readings]) -> list[str]:
    """The directories' own names, their paths where those are not enough, numbers if need be."""
    names = [r.name for r in readings]
    if len(set(names)) < len(names):
        names = [str(r.source.folder) for r in readings]
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names, start=1)]
    return names


def general_notes(tables: Sequence[Table], differences: Sequence[Difference]) -> Iterator[str]:
    yield (
        "uniform: every choice equally probable; for accuracy, macro-F1 and the calibration errors "
        "one label is drawn at random for each document."
    )
    used = {row.method for table in tables for row in table.rows}
    if any("+prior" in name for name in used):
        yield (
            "+prior: divided by the mean probability of each label over these very documents; it "
            "uses no labels (transductive)."
        )
    if any(name.startswith("surprise") for name in used):
        yield (
            "surprise: a token votes the louder, the less probable it is on average over these "
            "very documents; it uses no labels (transductive). Its neighbourhoods are those of "
            f"space {methods.SURPRISE.space}, tau {methods.SURPRISE.tau}."
        )
    if any("+temperature" in name for name in used):
        yield "+temperature: T fitted on labelled development documents, none of them evaluated."
    if without := [table.name for table in tables if table.dev is None]:
        yield f"No temperature for {listed(without)}: it takes development documents (--dev)."
    if any(d.n < max(table.n for table in tables) for d in differences):
        yield "Directories are compared on the documents that both hold."


def task_notes(readings: Readings, scoring: Scoring, kernel: str) -> Iterator[str]:
    if not scores.wants_cosine(readings, scoring, kernel):
        why = readings.why_identity or "kernel=identity"
        if scoring.scoring == "constrained":
            why = "scoring=constrained"
        yield f"{readings.name}: neighbours do not vote ({why}), so there is no semantic row."
    if readings.label_set is None:
        yield (
            f"{readings.name}: every document has choices of its own, so there is no prior of a "
            "label, no macro-F1 and no AUROC."
        )
    several = int((readings.gold().sum(axis=1) > 1).sum())
    if several:
        yield (
            f"{readings.name}: {several} of {readings.n} documents have several right labels, any "
            "of which counts."
        )
    if readings.n == 1:
        yield f"{readings.name}: one document cannot show how results vary; there is no interval."


def dev_notes(given: Readings, dev: Readings, dropped: int) -> Iterator[str]:
    yield from rescore.data_notes(given)
    if dropped:
        yield (
            f"{given.name}: {dropped} of {given.n} development documents were left out, as their "
            "text is among the evaluated ones."
        )


def temperature_notes(answers: Sequence[Answers], name: str) -> Iterator[str]:
    flat = [a.method.name for a in answers if a.temperature == HOTTEST]
    if flat:
        yield (
            f"{name}: for {listed(flat)} a flatter distribution was always better on the "
            f"development documents (T stops at {HOTTEST:g}): as probabilities these scores are "
            "worth no more than a uniform guess."
        )
