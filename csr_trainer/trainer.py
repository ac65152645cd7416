"""TRL's GRPOTrainer with what a run needs to go on after it was killed as if nothing had been.

Importing this module needs TRL; `csr_trainer.train` says so in one sentence where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from csr_trainer.groups import gather
from lm_eval_semsoft.engine import checkpoint
from lm_eval_semsoft.engine.checkpoint import Checkpoint


class EpochSampler(RepeatSampler):
    """TRL's sampler, with an order of questions that depends on the epoch alone.

    TRL's own draws every epoch's order from one generator, which a resumed run starts anew: it
    would see the first epoch's order in the second one.

    Args:
        epoch: tells the epoch, from 0, when an order is drawn.
        *args, **kwargs: of `RepeatSampler`, with a seed.
    """

    def __init__(self, epoch: Callable[[], int], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed + self._epoch())
        yield from super().__iter__()


class CSRTrainer(GRPOTrainer):
    """GRPO whose checkpoints say what they are and can be resumed exactly.

    Args:
        about: folder with weights, optimiser steps done -> the content of its `csr_config.json`.
        **kwargs: of GRPOTrainer.
    """

    def __init__(self, about: Callable[[Path, int], Checkpoint], **kwargs: Any) -> None:
        self._about = about
        super().__init__(**kwargs)

    # -- order of questions ------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        args: GRPOConfig = self.args
        return EpochSampler(
            lambda: int(self.state.epoch or 0),
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=args.seed,
        )

    # -- checkpoints -------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's files, and after the last of them, of all processes, `csr_config.json`."""
        super()._save_checkpoint(model, trial)
        self.say_what_it_is(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")

    def say_what_it_is(self, folder: Path) -> None:
        """Write `csr_config.json` beside weights that were saved; all processes call it."""
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            checkpoint.write(folder, self._about(folder, self.state.global_step))
        self.accelerator.wait_for_everyone()

    # -- answers of the policy ---------------------------------------------------------------------

    def answers(self, prompts: Sequence[Any], n: int, seed: int) -> list[list[str]]:
        """n sampled answers to each prompt, [len(prompts)][n], by what makes the rollouts.

        Training is the same with and without it: random numbers are its own.

        Args:
            prompts: texts or lists of messages; every process gives as many.
            n: answers to each.
            seed: of sampling.
        """
        rows = max(1, self.args.per_device_train_batch_size * self.args.steps_per_generation // n)
        was_training = self.model.training
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        texts: list[str] = []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed + self.accelerator.process_index)
            self.model.eval()
            try:
                for start in range(0, len(prompts), rows):
                    repeated = [p for p in prompts[start : start + rows] for _ in range(n)]
                    ids, *_ = self._tokenize_prompts(repeated)
                    made, _ = self._generate_single_turn(ids, None, {}, n)
                    texts += self.processing_class.batch_decode(made, skip_special_tokens=True)
            finally:
                self.model.train(was_training)
        return [texts[i : i + n] for i in range(0, len(texts), n)]

    def log_beside(self, values: dict[str, float]) -> None:
        """Add to the log; what GRPO has collected of the step, and its own log line, stay."""
        wanted = self.control.should_log
        Trainer.log(self, values)
        self.control.should_log = wanted

    # -- before the first step ---------------------------------------------------------------------

    def first_rollouts(self) -> list[dict[str, Any]]:
        """Rollouts of the first block, of all processes, and their rewards; no step is done."""
        block = next(iter(self.get_train_dataloader()))
        self.model.train()
        self._generate_and_score_completions(block)
        columns = {name: list(values) for name, values in self._logs["extra"].items()}
        (rewards,) = (list(values) for values in self._logs["rewards"].values())
        ids = gather([row["row_id"] for row in block]).items
        return [
            {
                "row_id": ids[i],
                "completion": completion,
                "reward": rewards[i],
                **{name: values[i] for name, values in columns.items()},
            }
            for i, completion in enumerate(self._logs["completion"])
        ]
