"""docs/ablation.md: which scoring is the package's default, and what it is worth, from readouts.

    python benchmarks/ablation.py \\
        --run "Gemma 3 270M, zero-shot=readouts/gemma-zs-dev:readouts/gemma-zs" \\
        --run "SmolLM2 135M Instruct, chat=readouts/smol-chat-dev:readouts/smol-chat"

Each run is a directory of development documents, on which the grid is ranked and temperatures are
fitted, and one of evaluated documents, on which nothing is chosen. The directories come from
`--model_args …,readouts=DIR`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import rankdata

OBJECTIVES = ("brier", "auroc")  # whose mean rank over all runs decides
SHOWN = ("accuracy", "macro_f1", "auroc", "brier", "nll", "ece")
AXES = ("space", "tau", "top_k", "anchors", "rival_votes")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "ablation.md"


@dataclass
class Run:
    """One model and kind of prompt: its name, development and evaluated documents."""

    name: str
    dev: Any
    evaluated: Any


def measure(log_scores: Any, target: Any) -> dict[str, float]:
    from lm_eval_semsoft.core import calibration, classification
    from lm_eval_semsoft.core.semantic_softmax import normalise

    probs = normalise(log_scores)
    confidence, correct = probs.max(1), classification.correctness(probs, target)
    return {
        "accuracy": classification.accuracy(probs, target),
        "macro_f1": classification.macro_f1(probs, target),
        "auroc": classification.auroc(probs, target),
        "brier": calibration.brier(probs, target),
        "nll": calibration.nll(probs, target),
        "ece": calibration.ece(confidence, correct),
    }


def grid_of(run: Run) -> dict[Any, dict[str, float]]:
    """Every cell of the grid, measured on the development documents."""
    from lm_eval_semsoft.reports import tune

    grid = tune.make_grid(run.dev)
    target = run.dev.gold()
    return {cell: measure(s, target) for cell, s in tune.many_log_scores(run.dev, grid)}


def mean_ranks(grids: Sequence[dict[Any, dict[str, float]]], cells: Sequence[Any]) -> np.ndarray:
    """Mean rank of every cell over runs and objectives, 1 is the best."""
    signs = {"brier": 1.0, "auroc": -1.0}
    ranks = [
        rankdata([signs[o] * grid[cell][o] for cell in cells]) for grid in grids for o in OBJECTIVES
    ]
    return np.asarray(np.mean(ranks, axis=0))


def named(cell: Any) -> str:
    return f"{cell.space} | {cell.tau} | {cell.top_k} | {cell.anchors} | {cell.rival_votes}"


def choice(runs: Sequence[Run], grids: Sequence[dict[Any, dict[str, float]]]) -> Iterator[str]:
    """The rule, the ten best cells, and what each axis does."""
    from lm_eval_semsoft.core.semantic_softmax import Scoring
    from lm_eval_semsoft.reports.tune import simplicity

    cells = list(grids[0])
    ranks = dict(zip(cells, mean_ranks(grids, cells), strict=True))
    order = sorted(cells, key=lambda c: (round(ranks[c], 9), simplicity(c)))
    yield "## The default scoring"
    yield ""
    yield (
        f"Rule: of {len(cells)} combinations the one with the best mean rank on Brier and AUROC "
        f"over the {len(runs)} runs' development documents; ties go to the simpler. "
        "`ECE ratio` is ECE over that of the constrained softmax, `ΔAUROC` the difference from "
        "it, both averaged over the runs."
    )
    yield ""
    yield "| rank | space | tau | K | anchors | rival votes | mean rank | Brier | AUROC | ECE ratio | ΔAUROC |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    base = [measure(r.dev.label_logprobs.astype(float), r.dev.gold()) for r in runs]
    default = Scoring()
    shown = order[:10] + ([default] if default in ranks and default not in order[:10] else [])
    for cell in shown:
        own = [grid[cell] for grid in grids]
        ratio = np.mean([o["ece"] / b["ece"] for o, b in zip(own, base, strict=True)])
        gain = np.mean([o["auroc"] - b["auroc"] for o, b in zip(own, base, strict=True)])
        place = f"{order.index(cell) + 1}" + (" (default)" if cell == default else "")
        yield (
            f"| {place} | {named(cell)} | {ranks[cell]:.1f} | "
            f"{np.mean([o['brier'] for o in own]):.3f} | {np.mean([o['auroc'] for o in own]):.3f} "
            f"| {ratio:.2f} | {gain:+.3f} |"
        )
    yield ""
    yield "What each setting does, all else averaged (mean over cells and runs):"
    yield ""
    yield "| setting | value | Brier | AUROC | macro-F1 | ECE | NLL | best mean rank |"
    yield "|---|---|---|---|---|---|---|---|"
    for axis in AXES:
        for value in dict.fromkeys(getattr(c, axis) for c in cells):
            some = [c for c in cells if getattr(c, axis) == value]
            means = {
                m: np.mean([grid[c][m] for grid in grids for c in some])
                for m in ("brier", "auroc", "macro_f1", "ece", "nll")
            }
            numbers = " | ".join(f"{v:.3f}" for v in means.values())
            yield f"| {axis} | {value} | {numbers} | {min(ranks[c] for c in some):.1f} |"
    yield ""


def paper(runs: Sequence[Run]) -> Iterator[str]:
    """The published formula: how many neighbours pass tau, and what that does."""
    from lm_eval_semsoft.core.semantic_softmax import PAPER
    from lm_eval_semsoft.reports import scores

    yield "## The published setting (`preset=paper`)"
    yield ""
    yield (
        "Raw space, tau .8, K 50, the label as spelled, own vote only from inside the top K. "
        "`silent labels` is the share of label scores that get no vote at all (probability 0)."
    )
    yield ""
    yield (
        "| run | neighbours (median, most) | silent labels | " + " | ".join(SHOWN) + " |"
    )
    yield "|---|---|---|" + "---|" * len(SHOWN)
    for run in runs:
        kernel = scores.kernel_of(run.evaluated, PAPER)
        found = scores.log_scores(run.evaluated, PAPER, "cosine")
        silent = float((found <= found.min() + 1e-9).mean())
        own = measure(found, run.evaluated.gold())
        counts = kernel.neighbours
        numbers = " | ".join(f"{own[m]:.3f}" for m in SHOWN)
        yield (
            f"| {run.name} | {int(np.median(counts))}, {counts.max()} | {silent:.2f} | {numbers} |"
        )
    yield ""


def tables(runs: Sequence[Run], resamples: int) -> Iterator[str]:
    """Every method on the evaluated documents, with intervals."""
    from lm_eval_semsoft.cli.compare import interval, mark, number
    from lm_eval_semsoft.reports.compare import MEASURES, Pair, compare

    for run in runs:
        print(run.name, flush=True)
        found = compare([Pair(run.evaluated, run.dev)], resamples=resamples)
        table = found.tables[0]
        yield f"### {run.name}"
        yield ""
        yield (
            f"{table.n:,} evaluated documents; temperatures from {table.n_dev:,} development "
            "documents."
        )
        yield ""
        yield f"| method | T | {' | '.join(m.name for m in MEASURES)} |"
        yield f"|---|---|{'---|' * len(MEASURES)}"
        for row in table.rows:
            cells = [
                f"{number(f.value)}{mark(f.beats)} [{interval(f)}]" for f in row.figures.values()
            ]
            heat = "" if row.temperature is None else f"{row.temperature:.2f}"
            yield f"| {row.method.replace('temperature', 'T')} | {heat} | {' | '.join(cells)} |"
        yield ""
        yield from wins(table)


def wins(table: Any) -> Iterator[str]:
    """Where Semantic Softmax helps and where it does not, in words."""
    from lm_eval_semsoft.reports.compare import MEASURES

    own = next((row for row in table.rows if row.method == "semantic"), None)
    if own is None:
        return
    judged = [(m.name, own.figures[m.key].beats) for m in MEASURES if m.higher is not None]
    groups = {
        "better": [name for name, p in judged if p is not None and p >= 0.975],
        "worse": [name for name, p in judged if p is not None and p <= 0.025],
        "undecided": [name for name, p in judged if p is not None and 0.025 < p < 0.975],
    }
    yield (
        "Semantic Softmax against constrained: "
        + "; ".join(f"{how}: {', '.join(names)}" for how, names in groups.items() if names)
        + "."
    )
    yield ""


def main(
    run: Annotated[list[str], typer.Option(help="NAME=DEV:EVALUATED, repeatable.")],
    out: Path = PAGE,
    resamples: int = 1000,
    introduction: Annotated[Path | None, typer.Option(help="Markdown to put on top.")] = None,
) -> None:
    """Rank the grid on development documents, compare all methods on the others, write the page."""
    from lm_eval_semsoft.reports.readings import load

    runs = []
    for text in run:
        name, _, folders = text.partition("=")
        dev, _, evaluated = folders.partition(":")
        runs.append(Run(name, load(dev), load(evaluated)))
    lines = ["# Ablation", ""]
    if introduction is not None:
        lines += [introduction.read_text(encoding="utf-8").strip(), ""]
    lines += ["Generated by `benchmarks/ablation.py` from readouts.", ""]
    lines += ["| run | development documents | evaluated documents |", "|---|---|---|"]
    lines += [f"| {r.name} | {r.dev.n:,} | {r.evaluated.n:,} |" for r in runs]
    lines.append("")
    grids = []
    for r in runs:
        print("grid:", r.name, flush=True)
        grids.append(grid_of(r))
        r.dev.source.forget()
    lines += [*choice(runs, grids), *paper(runs)]
    lines += ["## Every method on the evaluated documents", ""]
    lines += ["+ or − behind a value: better or worse than constrained in at least 97.5 % of the "
              "resamples. [95 % percentile bootstrap intervals.]", ""]  # fmt: skip
    lines += tables(runs, resamples)
    out.write_text("\n".join(itertools.chain(lines)) + "\n", encoding="utf-8")
    print(out)


if __name__ == "__main__":
    typer.run(main)
