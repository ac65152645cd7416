"""What came of benchmarks/csr_toy.py: claims with their verdicts, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = {
    "base": "base (no rewards)",
    "rlvr": "RLVR",
    "csr": "CSR, linear λ",
    "constant": "CSR, constant λ",
    "calibration": "calibration only",
    "csr_f1": "CSR, linear λ, f1 judge",
}
SPLITS = ("seen", "held out")
SHOWN = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "auroc": "AUROC",
    "brier": "Brier",
    "confidence": "confidence",
    "agreement": "agreement",
    "r_cal": "r_cal",
}
COLOURS = {
    "rlvr": ("#ad5200", "-"),
    "csr": ("#0b5cad", "-"),
    "constant": ("#1a7f37", "--"),
    "calibration": ("#8250df", ":"),
    "csr_f1": ("#59a5e8", "-."),
}

ECE_LOWER = 0.3
ACCURACY_LOSS = 0.02
KEPT = 0.8


@dataclass
class Outcome:
    """One model.

    Attributes:
        seed, variant: which.
        measures: split -> name -> value.
        history: the same while training, smaller, with "step".
        bins: split -> [3, B] answers, right ones and summed confidence per bin of confidence.
        seconds: of processor time, training and evaluations.
    """

    seed: int
    variant: str
    measures: dict[str, dict[str, float]]
    history: list[dict[str, Any]] = field(default_factory=list)
    bins: dict[str, list[list[float]]] = field(default_factory=dict)
    seconds: float = math.nan


# --- claims --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Does a claim hold for one seed and split?

    Attributes:
        claim: in words.
        seed, split: where.
        figures: what it is judged by, in words.
        holds: the answer.
    """

    claim: str
    seed: int
    split: str
    figures: str
    holds: bool

    def __str__(self) -> str:
        word = "PASS" if self.holds else "FAIL"
        return f"{word}  seed {self.seed}, {self.split}: {self.claim}: {self.figures}"


CLAIMS = {
    "better": f"CSR against RLVR: ECE at least {ECE_LOWER:.0%} lower, AUROC higher, accuracy at "
    f"most {ACCURACY_LOSS} lower",
    "degenerate": "calibration only: accuracy below half of the base model's, agreement at most .1 "
    "or at least .9",
    "curriculum": "linear λ has a higher accuracy than λ_max from step 0",
    "f1": f"the f1 judge keeps at least {KEPT:.0%} of the oracle judge's ECE gain over RLVR",
}


def verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """All claims that can be judged with these outcomes, for every seed and split."""
    found = []
    for claim, needs, judge in (
        ("better", ("rlvr", "csr"), _better),
        ("degenerate", ("base", "calibration"), _degenerate),
        ("curriculum", ("csr", "constant"), _curriculum),
        ("f1", ("rlvr", "csr", "csr_f1"), _f1),
    ):
        for seed in sorted({o.seed for o in outcomes}):
            own = {o.variant: o.measures for o in outcomes if o.seed == seed}
            if not set(needs) <= set(own):
                continue
            for split in SPLITS:
                holds, figures = judge(*(own[variant][split] for variant in needs))
                found.append(Verdict(CLAIMS[claim], seed, split, figures, holds))
    return found


Measures = dict[str, float]


def _better(rlvr: Measures, csr: Measures) -> tuple[bool, str]:
    lower = 1 - csr["ece"] / rlvr["ece"]
    auroc, accuracy = csr["auroc"] - rlvr["auroc"], csr["accuracy"] - rlvr["accuracy"]
    holds = lower >= ECE_LOWER and auroc > 0 and accuracy >= -ACCURACY_LOSS
    return holds, f"ECE {-lower:+.0%}, AUROC {auroc:+.3f}, accuracy {accuracy:+.3f}"


def _degenerate(base: Measures, calibration: Measures) -> tuple[bool, str]:
    before, after = base["accuracy"], calibration["accuracy"]
    agreement = calibration["agreement"]
    holds = after < before / 2 and not 0.1 < agreement < 0.9
    return holds, f"accuracy {before:.3f} → {after:.3f}, agreement {agreement:.3f}"


def _curriculum(csr: Measures, constant: Measures) -> tuple[bool, str]:
    holds = csr["accuracy"] > constant["accuracy"]
    return holds, f"accuracy {csr['accuracy']:.3f} against {constant['accuracy']:.3f}"


def _f1(rlvr: Measures, csr: Measures, csr_f1: Measures) -> tuple[bool, str]:
    gain, kept = rlvr["ece"] - csr["ece"], rlvr["ece"] - csr_f1["ece"]
    if gain <= 0:
        return False, f"the oracle judge has no gain ({gain:+.3f})"
    return kept >= KEPT * gain, f"{kept:.3f} of {gain:.3f} ({kept / gain:.0%})"


# --- the page ------------------------------------------------------------------------------------


def page(outcomes: Sequence[Outcome], settings: str, minutes: float) -> Iterator[str]:
    """The generated part of docs/csr.md."""
    seeds = sorted({o.seed for o in outcomes})
    seconds = sum(o.seconds for o in outcomes)
    yield f"Seeds {', '.join(map(str, seeds))}; {settings}."
    yield (
        f"{minutes:.0f} minutes on the clock of a shared machine, {seconds / 60:.1f} minutes of "
        "processor time in all, base models and evaluations included."
    )
    yield ""
    judged = verdicts(outcomes)
    yield "### Claims"
    yield ""
    for claim in dict.fromkeys(v.claim for v in judged):
        own = [v for v in judged if v.claim == claim]
        yield f"**{claim}**: {sum(v.holds for v in own)} of {len(own)} hold."
        yield ""
        yield "| seed | split | | |"
        yield "|---|---|---|---|"
        for v in own:
            yield f"| {v.seed} | {v.split} | {'PASS' if v.holds else 'FAIL'} | {v.figures} |"
        yield ""
    yield "### Means over the seeds"
    yield ""
    yield "± is the standard deviation over the seeds. `agreement` is the share of pairs of answers"
    yield "that mean the same, `r_cal` the mean calibration reward under the oracle judge."
    yield ""
    for split in SPLITS:
        yield f"| {split} types | " + " | ".join(SHOWN.values()) + " |"
        yield "|---|" + "---|" * len(SHOWN)
        for variant in _variants(outcomes):
            found = [o.measures[split] for o in outcomes if o.variant == variant]
            cells = [_mean([measures[name] for measures in found]) for name in SHOWN]
            yield f"| {VARIANTS[variant]} | " + " | ".join(cells) + " |"
        yield ""
    yield "### Each seed"
    yield ""
    few = ("accuracy", "ece", "auroc")
    heads = [f"{split} {SHOWN[name]}" for split in SPLITS for name in few]
    yield "| seed | variant | " + " | ".join(heads) + " |"
    yield "|---|---|" + "---|" * len(heads)
    for seed in seeds:
        for o in (o for o in outcomes if o.seed == seed):
            cells = [f"{o.measures[split][name]:.3f}" for split in SPLITS for name in few]
            yield f"| {seed} | {VARIANTS[o.variant]} | " + " | ".join(cells) + " |"
    yield ""
    yield from _by_kind(outcomes)


def _by_kind(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "### What each kind of source does, held-out types"
    yield ""
    yield "Accuracy / confidence, means over the seeds."
    yield ""
    kinds = [
        name.removeprefix("accuracy ")
        for name in outcomes[0].measures[SPLITS[1]]
        if name.startswith("accuracy ")
    ]
    yield "| variant | " + " | ".join(kinds) + " |"
    yield "|---|" + "---|" * len(kinds)
    for variant in _variants(outcomes):
        own = [o.measures[SPLITS[1]] for o in outcomes if o.variant == variant]
        cells = [
            " / ".join(
                f"{np.mean([o[f'{what} {kind}'] for o in own]):.2f}"
                for what in ("accuracy", "confidence")
            )
            for kind in kinds
        ]
        yield f"| {VARIANTS[variant]} | " + " | ".join(cells) + " |"
    yield ""


def _variants(outcomes: Sequence[Outcome]) -> list[str]:
    return [v for v in VARIANTS if any(o.variant == v for o in outcomes)]


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


# --- pictures ------------------------------------------------------------------------------------


def draw_reliability(outcomes: Sequence[Outcome], path: Path, split: str = SPLITS[1]) -> None:
    """RLVR beside CSR, answers of all seeds together; bars from the lowest to the highest seed."""
    from lm_eval_semsoft.reports import figures

    panels = []
    for variant, side in (("rlvr", "constrained"), ("csr", "semantic")):
        own = [o for o in outcomes if o.variant == variant]
        count, right, confidence = np.sum([o.bins[split] for o in own], axis=0)
        with np.errstate(invalid="ignore"):
            accuracy, mean = right / count, confidence / count
        with np.errstate(invalid="ignore"):
            of_seeds = np.array([np.divide(*np.array(o.bins[split])[[1, 0]]) for o in own])
        ece = np.mean([o.measures[split]["ece"] for o in own])
        panels.append(
            figures.Reliability(
                f"{VARIANTS[variant]}, {split} types",
                side,
                count.astype(np.int64),
                mean,
                accuracy,
                low=of_seeds.min(0),  # NaN where a seed has no such answers
                high=of_seeds.max(0),
                note=f"ECE {ece:.3f}",
            )
        )
    figures.save_png(figures.reliability(panels), path)


def draw_training(outcomes: Sequence[Outcome], path: Path) -> None:
    """Accuracy and ECE while training: means over the seeds, and all that lies between seeds."""
    from matplotlib.figure import Figure

    from lm_eval_semsoft.reports import figures

    figure = Figure(figsize=(8.2, 5.4), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    for row, name in enumerate(("accuracy", "ece")):
        for column, split in enumerate(SPLITS):
            axes = grid[row][column]
            for variant, (colour, line) in COLOURS.items():
                runs = [o.history for o in outcomes if o.variant == variant and o.history]
                if not runs:
                    continue
                steps = [look["step"] for look in runs[0]]
                values = np.array([[look[split][name] for look in run] for run in runs])
                axes.fill_between(
                    steps, values.min(0), values.max(0), color=colour, alpha=0.12, lw=0
                )
                axes.plot(
                    steps, values.mean(0), line, color=colour, label=VARIANTS[variant], lw=1.6
                )
            axes.set_ylim(bottom=0)
            axes.grid(color=figures.COLOURS["grid"], lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            if row == 0:
                axes.set_title(f"{split} types", loc="left", fontsize=10)
            else:
                axes.set_xlabel("step")
            if column == 0:
                axes.set_ylabel(SHOWN[name])
    grid[0][1].legend(frameon=False, fontsize=8)
    figures.save_png(figure, path)
