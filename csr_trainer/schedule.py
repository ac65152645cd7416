"""How much the calibration reward counts at a step of training: lambda(t), never decreasing.

TRL reads rewards once per block of rollouts, and a block may last several optimiser steps:
``steps_per_generation * num_iterations`` forward-backward passes, of which
``gradient_accumulation_steps`` make one optimiser step. `Blocks` finds the step in which a block
began, so that lambda is the same for a whole block, also when training resumes within one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lm_eval_semsoft.core.errors import check_choice

KINDS = ("linear", "constant", "cosine", "step")


@dataclass(frozen=True)
class Schedule:
    """lambda as a function of progress p in [0, 1].

    With u = min(1, max(0, (p - begin) / (end - begin))):

    - ``linear``: lambda_max · u
    - ``cosine``: lambda_max · (1 - cos(pi u)) / 2
    - ``step``: lambda_max if u >= 1/2, else 0
    - ``constant``: lambda_max, whatever p

    Attributes:
        kind: ``linear`` is the paper's curriculum (arXiv 2605.15588).
        lambda_max: 0 or more. The paper does not publish it; 1 is our choice.
        begin, end: shares of training, 0 <= begin < end <= 1 (our choice: all of it).

    Raises:
        ValueError: one of them is not allowed.

    >>> Schedule("linear", lambda_max=2.0)(0.25)
    0.5
    """

    kind: str = "linear"
    lambda_max: float = 1.0
    begin: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        check_choice("schedule", self.kind, KINDS)
        if not 0 <= self.lambda_max < math.inf:
            raise ValueError(f"lambda_max={self.lambda_max!r} must be a number from 0.")
        if not 0 <= self.begin < self.end <= 1:
            raise ValueError(
                f"begin={self.begin!r}, end={self.end!r} must be 0 <= begin < end <= 1."
            )

    def __call__(self, progress: float) -> float:
        """lambda at `progress`; outside 0..1 it is what it is at the nearer end."""
        u = min(1.0, max(0.0, (progress - self.begin) / (self.end - self.begin)))
        if self.kind == "linear":
            return self.lambda_max * u
        if self.kind == "cosine":
            return self.lambda_max * (1 - math.cos(math.pi * u)) / 2
        if self.kind == "step":
            return self.lambda_max if u >= 0.5 else 0.0
        return self.lambda_max


@dataclass(frozen=True)
class Blocks:
    """Which optimiser steps use the same rollouts.

    Attributes:
        passes: forward-backward passes per block, ``steps_per_generation * num_iterations``.
        accumulation: passes per optimiser step, ``gradient_accumulation_steps``.
    """

    passes: int = 1
    accumulation: int = 1

    def __post_init__(self) -> None:
        for name in ("passes", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a whole number from 1.")

    @classmethod
    def of(cls, args: Any) -> Blocks:
        """Those of a run, from its ``trl.GRPOConfig``."""
        return cls(
            passes=args.steps_per_generation * args.num_iterations,
            accumulation=args.gradient_accumulation_steps,
        )

    def start(self, step: int) -> int:
        """The optimiser step in which the last block that `step` uses began.

        Step s makes the passes s·a ... s·a + a - 1 (a = accumulation); the last block that begins
        before their end begins at pass b, and b belongs to the step b // a.

        >>> [Blocks(passes=4, accumulation=2).start(step) for step in range(5)]
        [0, 0, 2, 2, 4]
        """
        last = (step + 1) * self.accumulation - 1
        return last // self.passes * self.passes // self.accumulation


def progress_of(trainer_state: Any, blocks: Blocks = Blocks()) -> float:
    """How far training is, 0..1: the step in which the block began ÷ all steps.

    So the first block has progress 0, and the last one a little less than 1.

    Args:
        trainer_state: ``global_step`` (optimiser steps done) and ``max_steps``, as transformers'
            TrainerState; None: training has not begun.
        blocks: of the run.
    """
    if trainer_state is None or trainer_state.max_steps <= 0:
        return 0.0
    return min(1.0, blocks.start(trainer_state.global_step) / float(trainer_state.max_steps))
