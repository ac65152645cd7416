"""Checkpoints of a run: what is written into `csr_config.json`, and which one to go on from.

The file itself is `lm_eval_semsoft.engine.checkpoint`'s, which also loads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from csr_trainer.config import Settings, difference
from lm_eval_semsoft.engine import checkpoint
from lm_eval_semsoft.engine.checkpoint import Base, Checkpoint, PromptTemplate

PACKAGES = ("lm-eval-semsoft", "trl", "transformers", "peft", "accelerate", "torch")
_PREFIX = "checkpoint-"


def describe(
    folder: Path,
    settings: Settings,
    base: Base,
    prompt: PromptTemplate,
    step: int,
    lam: float | None,
    metrics: Mapping[str, float],
    processes: int,
) -> Checkpoint:
    """What `csr_config.json` in a folder with weights says.

    Args:
        folder: the weights are there already.
        settings: of the run.
        base: what is trained.
        prompt: how questions are put.
        step: optimiser steps done.
        lam: lambda of the newest rewards; None where the reward has none.
        metrics: of the newest evaluation.
        processes: that train.
    """
    return Checkpoint(
        kind="adapter" if settings.is_adapter else "full",
        base=base,
        prompt=prompt,
        step=step,
        reward={
            "name": settings.reward,
            "judge": settings.judge,
            "num_generations": settings.num_generations,
            "eps": settings.eps,
            "soft": settings.soft,
            "schedule": settings.schedule,
            "lambda_max": settings.lambda_max,
            "lambda": lam,
        },
        seeds={"seed": settings.seed, "question_seed": settings.question_seed},
        metrics=dict(metrics),
        files=checkpoint.weights_in(folder),
        versions={name: found for name in PACKAGES if (found := _version(name))},
        settings={**dataclasses.asdict(settings), "processes": processes},
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def checkpoints_in(output_dir: Path) -> list[Path]:
    """Folders of checkpoints, oldest first, whole or not."""
    found = [
        (int(number), path)
        for path in output_dir.glob(f"{_PREFIX}*")
        if path.is_dir() and (number := path.name.removeprefix(_PREFIX)).isdecimal()
    ]
    return [path for _, path in sorted(found)]


def newest(output_dir: Path) -> Path | None:
    """The newest checkpoint that was written to its end; None without one.

    A run that was killed while it wrote leaves one without `csr_config.json`, which comes last.
    """
    whole = [path for path in checkpoints_in(output_dir) if checkpoint.is_complete(path)]
    return whole[-1] if whole else None


def check_same_run(folder: Path, settings: Settings, processes: int) -> None:
    """A run is resumed with the settings with which it began.

    Raises:
        ValueError: others, on which its losses depend.
    """
    before = checkpoint.read(folder).settings
    changed = difference(before, settings)
    if before.get("processes", processes) != processes:
        changed.append(f"processes {before['processes']} -> {processes}")
    if changed:
        raise ValueError(
            f"--resume goes on with the run in {folder.parent}, and these settings differ from "
            f"those of its checkpoint {folder.name}: {'; '.join(changed)}. Give them as they were, "
            "or another output_dir."
        )


def check_new_run(output_dir: Path) -> None:
    """A new run does not write into the folder of another.

    Raises:
        ValueError: there are checkpoints in it.
    """
    if found := checkpoints_in(output_dir):
        raise ValueError(
            f"output_dir={str(output_dir)!r} has {found[-1].name} of another run: go on with it by "
            "--resume, or choose another output_dir."
        )


def fitting_save_steps(save_steps: int, passes: int, accumulation: int) -> None:
    """A checkpoint within a block of rollouts could not be resumed exactly: refuse it.

    TRL keeps a block's rollouts in memory alone, so that a resumed run would make new ones.

    Args:
        save_steps: optimiser steps between checkpoints.
        passes: forward-backward passes per block, ``steps_per_generation * num_iterations``.
        accumulation: passes per optimiser step.

    Raises:
        ValueError: a checkpoint would fall into a block.
    """
    least = next(n for n in range(1, passes + 1) if n * accumulation % passes == 0)
    if save_steps % least:
        raise ValueError(
            f"save_steps={save_steps} would write checkpoints in the middle of a block of rollouts "
            f"({passes} passes, {accumulation} to an optimiser step), which cannot be resumed "
            f"exactly: use a multiple of {least}."
        )
