"""The README's results table and picture, from real runs of `goemotions_zs`.

    SEMSOFT_DATA_DIR=… python benchmarks/readme_results.py out/ --split validation

Runs both packaged models through the harness (Gemma 3 270M as it is, SmolLM2 135M Instruct as it is
and under its chat template), prints the table as Markdown, and draws reliability diagrams of one
run into docs/images/reliability.png.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

RUNS = (
    ("Gemma 3 270M", "demo:gemma-3-270m", False),
    ("SmolLM2 135M Instruct", "demo:smollm2-135m-instruct", False),
    ("SmolLM2 135M Instruct, chat template", "demo:smollm2-135m-instruct", True),
)
PICTURED = RUNS[1][0]
METRICS = ("accuracy", "macro_f1", "auroc", "brier", "nll", "ece", "ece_sweep", "mean_confidence")
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "reliability.png"


def evaluate(model: str, chat: bool, split: str, limit: int | None) -> dict[str, Any]:
    """One run of the harness: its results for the task, and each document's payloads."""
    from lm_eval_semsoft import plugin

    plugin.arm()

    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(plugin.task_path()), include_defaults=False, metadata={"split": split}
    )
    out = lm_eval.simple_evaluate(
        model="semsoft-hf",
        model_args={"pretrained": model, "dtype": "float32"},
        tasks=["goemotions_zs"],
        task_manager=manager,
        batch_size=16,
        limit=limit,
        apply_chat_template=chat,
    )
    samples = out["samples"]["goemotions_zs"]
    calibrated = {side: [list(s[side]) for s in samples] for side in ("ece", "constrained_ece")}
    return {"results": out["results"]["goemotions_zs"], "config": out["config"]["semsoft"],
            "n": len(samples), **calibrated}  # fmt: skip


def markdown(outcomes: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model | scoring | " + " | ".join(METRICS) + " |",
        "|---|---|" + "---|" * len(METRICS),
    ]
    for name, outcome in outcomes.items():
        for scoring, prefix in (("constrained", "constrained_"), ("Semantic Softmax", "")):
            results = outcome["results"]
            cells = [
                f"{results[f'{prefix}{m},none']:.3f} ± {results[f'{prefix}{m}_stderr,none']:.3f}"
                for m in METRICS
            ]
            lines.append(f"| {name} | {scoring} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(outcome: dict[str, Any], title: str) -> None:
    """Reliability diagrams, constrained beside Semantic Softmax, 15 equal-width bins."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(
        2, 2, figsize=(8, 4.6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    sides = (("constrained softmax", "constrained_ece", "C1"), ("Semantic Softmax", "ece", "C0"))
    edges = np.linspace(0, 1, 16)
    for (name, key, colour), (top, bottom) in zip(sides, axes.T, strict=True):
        confidence, correct = np.array(outcome[key]).T
        bins = np.minimum((confidence * 15).astype(int), 14)
        filled = [b for b in range(15) if (bins == b).sum() >= 5]
        means = [(confidence[bins == b].mean(), correct[bins == b].mean()) for b in filled]
        top.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--")
        top.plot(*zip(*means, strict=True), "o-", color=colour)
        value = outcome["results"][f"{key},none"]
        error = outcome["results"][f"{key}_stderr,none"]
        top.set(title=f"{name}: ECE {value:.3f} ± {error:.3f}", ylim=(0, 1), xlim=(0, 1))
        bottom.hist(confidence, edges, color=colour)
        bottom.set(xlabel="confidence")
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("comments")
    figure.suptitle(title, fontsize=10)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)


def main(
    folder: Path,
    split: str = "validation",
    limit: int | None = None,
    only: Annotated[int | None, typer.Option(help="Run only this row, from 0.")] = None,
) -> None:
    """Run what is not in FOLDER yet, then print the table and draw the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for number, (name, model, chat) in enumerate(RUNS):
        kept = folder / f"{number}.json"
        if only in (None, number) and not kept.exists():
            outcome = evaluate(model, chat, split, limit)
            kept.write_text(json.dumps(outcome, default=str))
        if kept.exists():
            outcomes[name] = json.loads(kept.read_text())
    print(markdown(outcomes))
    first = next(iter(outcomes))
    draw(
        outcomes[first], f"{first}, GoEmotions {split}, {outcomes[first]['n']} comments, 28 labels"
    )


if __name__ == "__main__":
    typer.run(main)
