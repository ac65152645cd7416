"""docs/csr.md: does Calibration with Semantic Reward do what it says? Real GRPO on a CPU.

    python benchmarks/csr_toy.py                    # three seeds, all variants, then the page
    python benchmarks/csr_toy.py --seeds 100 --out toy.json --no-page

For each seed a small model reads the corpus of `csr_world`, and TRL's GRPOTrainer trains a copy of
it for each variant, with the rewards of `csr_trainer`, on the seen types of questions. Every model
is then asked every question of both splits SAMPLES times at temperature 1. The largest cluster of
answers is the prediction and its share the confidence, each marked against MARKS right answers
drawn anew. The oracle judge marks all variants, whoever judged in training.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import csr_world as world_of
import numpy as np
import typer

SEEDS = (1, 2, 3)  # everything was chosen on seeds 100 and 101
SAMPLES = 32
MARKS = 8
SPLITS = {"seen": world_of.SEEN, "held out": world_of.HELD_OUT}


@dataclass(frozen=True)
class Settings:
    """What all variants share; chosen on other seeds than those reported.

    Attributes:
        corpus_steps: of reading the corpus.
        steps: of GRPO.
        groups: questions per step.
        num_generations: G.
        learning_rate: at the first step; it falls linearly to 0.
        beta: weight of the KL divergence from the base model.
        lambda_max: of the linear curriculum and of constant lambda.
        looks: evaluations while training.
    """

    corpus_steps: int = 800
    steps: int = 300
    groups: int = 16
    num_generations: int = 16
    learning_rate: float = 1e-3
    beta: float = 0.03
    lambda_max: float = 1.5
    looks: int = 6


VARIANTS = {
    "base": "no training with rewards",
    "rlvr": "RLVR",
    "csr": "CSR, linear lambda",
    "constant": "CSR, constant lambda",
    "calibration": "calibration reward alone",
    "csr_f1": "CSR, linear lambda, f1 judge",
}


@dataclass
class Outcome:
    """One model.

    Attributes:
        seed, variant: which.
        measures: split -> name -> value.
        history: measures while training, from the first look at step 0.
        bins: split -> [3, 10] answers, right ones and summed confidence per bin of confidence.
        seconds: of processor time, training and evaluation.
    """

    seed: int
    variant: str
    measures: dict[str, dict[str, float]]
    history: list[dict[str, Any]] = field(default_factory=list)
    bins: dict[str, list[list[float]]] = field(default_factory=dict)
    seconds: float = math.nan


# --- training ------------------------------------------------------------------------------------


def reward_of(variant: str, settings: Settings, args: Any) -> Any:
    """The reward that a variant is trained with."""
    from csr_trainer.rewards import CSR, RLVR, CalibrationOnly
    from csr_trainer.schedule import Blocks, Schedule
    from lm_eval_semsoft.judges.f1 import F1

    oracle, size = world_of.Oracle(), settings.num_generations
    if variant == "rlvr":
        return RLVR(oracle)
    if variant == "calibration":
        return CalibrationOnly(oracle, num_generations=size)
    kind = "constant" if variant == "constant" else "linear"
    return CSR(
        F1() if variant == "csr_f1" else oracle,
        num_generations=size,
        schedule=Schedule(kind, settings.lambda_max),
        blocks=Blocks.of(args),
    )


def make_base(seed: int, settings: Settings, folder: Path) -> Path:
    """A model that read the corpus, as a directory."""
    path = folder / f"base-{seed}"
    tokenizer = world_of.make_tokenizer()
    model = world_of.make_model(tokenizer, seed)
    world_of.read_corpus(model, tokenizer, world_of.World(seed), settings.corpus_steps)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def train(base: Path, variant: str, seed: int, settings: Settings, folder: Path) -> Any:
    """A copy of the base model after GRPO, and what was seen on the way."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.utils import logging
    from trl import GRPOConfig, GRPOTrainer

    logging.set_verbosity_error()
    world = world_of.World(seed)
    asked = world_of.rows(
        world.questions(world_of.SEEN),
        settings.steps * settings.groups,
        np.random.default_rng([seed, 2]),
    )
    data = Dataset.from_list(
        [
            {
                "prompt": row.question.text,
                "row_id": str(i),
                "question": row.question.text,
                "answers": [row.answer],
            }
            for i, row in enumerate(asked)
        ]
    )
    args = GRPOConfig(
        output_dir=str(folder / f"{variant}-{seed}"),
        use_cpu=True,
        bf16=False,
        seed=seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.groups * settings.num_generations,
        num_generations=settings.num_generations,
        max_completion_length=world_of.ANSWER_TOKENS,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        beta=settings.beta,
        scale_rewards="none",  # a group's spread would divide lambda out where all are right or wrong
        gradient_checkpointing=False,  # ten times slower than it all
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=settings.steps,
    )

    tokenizer = world_of.make_tokenizer()
    history: list[dict[str, Any]] = []

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step % max(1, settings.steps // settings.looks) == 0:
                found = measure_all(given["model"], tokenizer, seed, n=16, marks=2)[0]
                history.append({"step": state.global_step, **found})

    trainer = GRPOTrainer(
        model=str(base),
        reward_funcs=reward_of(variant, settings, args),
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Look()] if settings.looks else [],
    )
    trainer.train()
    return trainer.model, history


# --- measuring -----------------------------------------------------------------------------------


def measure_all(
    model: Any, tokenizer: Any, seed: int, n: int = SAMPLES, marks: int = MARKS
) -> tuple[dict[str, dict[str, float]], dict[str, list[list[float]]]]:
    """Measures and reliability bins of both splits."""
    world = world_of.World(seed)
    measures, bins = {}, {}
    for i, (split, relations) in enumerate(SPLITS.items()):
        questions = world.questions(relations)
        answers = world_of.sample(model, tokenizer, [q.text for q in questions], n, seed=1000 + i)
        rng = np.random.default_rng([seed, 3, i])  # the same marks for all variants
        golds = [world_of.draw(questions, False, rng) for _ in range(marks)]
        measures[split], bins[split] = measure(questions, answers, golds)
    return measures, bins


def measure(
    questions: Sequence[world_of.Question],
    answers: Sequence[Sequence[str]],
    golds: Sequence[Sequence[str]],
) -> tuple[dict[str, float], list[list[float]]]:
    """Measures of the sampled answers.

    Args:
        questions: [n].
        answers: [n][N].
        golds: [marks][n] right answers.
    """
    from lm_eval_semsoft.core import calibration, classification, semantic_entropy

    names = [[world_of.bare(answer) for answer in own] for own in answers]
    # The oracle's sameness is that of names, so that these are its clusters.
    ids = [np.unique(own, return_inverse=True)[1] for own in names]
    predicted = [own[semantic_entropy.representative(i)] for own, i in zip(names, ids, strict=True)]
    share = np.array([semantic_entropy.cluster_share(i) for i in ids])
    right = np.array([[p == g for p, g in zip(predicted, own, strict=True)] for own in golds])
    confidence, correct = np.tile(share, len(golds)), right.flatten().astype(float)
    found = {
        "accuracy": classification.accuracy_of(correct)
        if hasattr(classification, "accuracy_of")
        else float(correct.mean()),
        "ece": calibration.ece(confidence, correct, n_bins=10),
        "auroc": classification.confidence_auroc(confidence, correct),
        "brier": calibration.confidence_brier(confidence, correct),
        "confidence": calibration.mean_confidence(confidence),
        "semantic_entropy": float(np.mean([semantic_entropy.semantic_entropy(i) for i in ids])),
        "agreement": float(np.mean([agreement(i) for i in ids])),
        "r_cal": float(
            np.mean([r_cal(own, g) for marks in golds for own, g in zip(names, marks, strict=True)])
        ),
    }
    kinds = np.array([q.kind for q in questions])
    for kind in world_of.KINDS:
        of_kind = kinds == kind
        found[f"accuracy {kind}"] = float(right[:, of_kind].mean())
        found[f"confidence {kind}"] = float(share[of_kind].mean())
    totals = calibration.bin_totals(confidence, correct, 10)(np.ones((len(correct), 1)))
    return found, totals[:, :, 0].tolist()


def agreement(ids: np.ndarray[Any, Any]) -> float:
    """Share of the pairs of answers that mean the same."""
    sizes, n = np.bincount(ids), len(ids)
    return float((sizes * (sizes - 1)).sum() / (n * (n - 1)))


def r_cal(names: Sequence[str], gold: str) -> float:
    """Mean calibration reward of the answers to one question under the oracle judge, -1..0."""
    n, (found, sizes) = len(names), np.unique(names, return_counts=True)
    others = (sizes - 1) / (n - 1)
    return float(-(sizes / n * np.where(found == gold, 1 - others, others)).sum())


# --- all runs ------------------------------------------------------------------------------------


def run(job: tuple[int, str, Settings, Path]) -> Outcome:
    """Train and measure one variant, or the base model, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    seed, variant, settings, folder = job
    start = time.process_time()
    base, tokenizer = folder / f"base-{seed}", world_of.make_tokenizer()
    history: list[dict[str, Any]] = []
    if variant == "base":
        from transformers import AutoModelForCausalLM

        make_base(seed, settings, folder)
        model = AutoModelForCausalLM.from_pretrained(base)
    else:
        model, history = train(base, variant, seed, settings, folder)
    measures, bins = measure_all(model, tokenizer, seed)
    return Outcome(seed, variant, measures, history, bins, time.process_time() - start)


def run_all(
    seeds: Sequence[int], variants: Sequence[str], settings: Settings, workers: int
) -> list[Outcome]:
    """All variants of all seeds; base models first."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        found = []
        trained = [v for v in variants if v != "base"]
        for own in (["base"], trained):
            jobs = [(seed, variant, settings, Path(name)) for seed in seeds for variant in own]
            for outcome in pool.map(run, jobs):
                print(line_of(outcome), flush=True)
                found.append(outcome)
    return found


def line_of(outcome: Outcome) -> str:
    """One line for the log."""
    parts = [f"seed {outcome.seed} {outcome.variant:12s} {outcome.seconds:4.0f} s"]
    for split, own in outcome.measures.items():
        parts.append(f"{split}: " + " ".join(f"{m} {own[m]:.3f}" for m in ("accuracy", "ece", "auroc", "agreement")))
    return " | ".join(parts)


def main(
    seeds: Annotated[str, typer.Option(help="By commas.")] = ",".join(map(str, SEEDS)),
    variants: Annotated[str, typer.Option(help="By commas.")] = ",".join(VARIANTS),
    workers: int = 2,
    out: Annotated[Path | None, typer.Option(help="JSON of all outcomes.")] = None,
    steps: int = Settings.steps,
    learning_rate: float = Settings.learning_rate,
    beta: float = Settings.beta,
    lambda_max: float = Settings.lambda_max,
) -> None:
    """Train, measure, check the claims."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = Settings(
        steps=steps, learning_rate=learning_rate, beta=beta, lambda_max=lambda_max
    )
    start = time.monotonic()
    found = run_all([int(s) for s in seeds.split(",")], variants.split(","), settings, workers)
    print(f"{(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    if out:
        out.write_text(json.dumps([asdict(o) for o in found]), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
