"""The tables of sampled answers in docs/tasks.md, from what runs of the harness wrote.

    lm_eval --model semsoft-hf … --tasks semantic_uncertainty --output_path results/gemma
    python benchmarks/sampled_results.py "Gemma 3 270M=results/gemma" "SmolLM2=results/smol"

Prints Markdown: one table of all metrics for all samples, one against the number of samples.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer

COLUMNS = {
    "accuracy ↑": "accuracy",
    "greedy ↑": "greedy_accuracy",
    "confidence": "mean_confidence",
    "ECE ↓": "ece",
    "ECE sweep ↓": "ece_sweep",
    "AUROC ↑": "auroc",
    "AUROC of entropy ↑": "entropy_auroc",
    "AUARC ↑": "auarc",
    "Brier ↓": "brier",
    "entropy": "semantic_entropy",
    "Rao": "rao_semantic_entropy",
    "clusters": "n_clusters",
    "tokens": "n_tokens",
    "parse rate": "parse_rate",
    "no gold": "no_gold",
}
OF_SUBSETS = ("accuracy", "ece", "auroc", "brier", "semantic_entropy")
ONE_ANSWER = ("accuracy", "mean_confidence", "ece", "auroc", "brier", "parse_rate")

Runs = dict[tuple[str, str], dict[str, Any]]  # (model, task) -> the harness's results


def read(folders: dict[str, Path]) -> Runs:
    """The newest results of every task in each folder."""
    found: Runs = {}
    for model, folder in folders.items():
        for file in sorted(folder.rglob("results_*.json")):
            results = json.loads(file.read_text(encoding="utf-8"))["results"]
            found |= {(model, task): own for task, own in results.items()}
    return found


def table(runs: Runs, names: dict[str, str], filters: list[str]) -> str:
    """Rows of models, tasks and filters; columns of metrics."""
    lines = [
        f"| model | task | filter | {' | '.join(names)} |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for (model, task), own in runs.items():
        for used in filters:
            if f"accuracy,{used}" in own:
                cells = [cell(own, metric, used) for metric in names.values()]
                lines.append(f"| {model} | {task} | {used} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(own: dict[str, Any], metric: str, used: str) -> str:
    value = own.get(f"{metric},{used}", math.nan)
    error = own.get(f"{metric}_stderr,{used}")
    if math.isnan(value):
        return ""
    digits = 1 if abs(value) >= 20 else 2 if abs(value) >= 1 else 3
    told = f"{value:.{digits}f}"
    if isinstance(error, float) and not math.isnan(error):
        told += f" ± {error:.{digits}f}"
    return re.sub(r"\b0\.", ".", told)


def main(
    runs: Annotated[list[str], typer.Argument(help="NAME=FOLDER of each model's results.")],
) -> None:
    """Print the tables."""
    folders = {name: Path(folder) for name, _, folder in (run.partition("=") for run in runs)}
    found = read(folders)
    names = {metric: title for title, metric in COLUMNS.items()}
    sampled = {key: own for key, own in found.items() if any(k.endswith(",n10") for k in own)}
    others = {key: own for key, own in found.items() if key not in sampled}
    print(table(sampled, COLUMNS, ["n10"]), end="\n\n")
    print(table(sampled, {names[m]: m for m in OF_SUBSETS}, ["n10", "n5", "n2"]), end="\n\n")
    if others:
        print(table(others, {names[m]: m for m in ONE_ANSWER}, ["zero", "exclude", "none"]))


if __name__ == "__main__":
    typer.run(main)
