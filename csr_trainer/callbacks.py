"""What a run writes and shows while it trains: its log, evaluations, a picture, a progress bar."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from csr_trainer.development import METRICS, Asked, draw, measure, share_of
from csr_trainer.groups import gather
from csr_trainer.steplog import StepLog

if TYPE_CHECKING:
    from rich.console import Console

    from csr_trainer.trainer import CSRTrainer
    from lm_eval_semsoft.judges import Judge

LOG, DEVELOPMENT, PICTURE = "train.jsonl", "development.jsonl", "development.png"
_PREFIX = "dev/"


class LogFile(TrainerCallback):
    """Everything that TRL logs, a line a step, in `train.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self._log = StepLog(folder / LOG)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._log.keep(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        values = {k: v for k, v in (logs or {}).items() if not k.startswith(_PREFIX)}
        if values and state.is_world_process_zero:
            self._log.append(state.global_step, values)


class Development(TrainerCallback):
    """Evaluations on development questions: in the log, in a JSONL, and as a picture.

    Args:
        folder: of the run.
        questions: rows with ``prompt``, ``question`` and ``answers``.
        read: a completion -> the answer in it.
        judges: of meanings, and of right and wrong.
        every: optimiser steps between evaluations; there is one before the first and one after the
            last step, too.
        n_samples: answers to each question.
        seed: of sampling.
        title: of the picture.
    """

    trainer: CSRTrainer  # which itself wants its callbacks first

    def __init__(
        self,
        folder: Path,
        questions: Sequence[Mapping[str, Any]],
        read: Callable[[str], str],
        judges: tuple[Judge, Judge],
        every: int,
        n_samples: int,
        seed: int,
        title: str,
    ) -> None:
        self._folder = folder
        self._log = StepLog(folder / DEVELOPMENT)
        self._questions = questions
        self._read, self._judges = read, judges
        self._every, self._n, self._seed, self._title = every, n_samples, seed, title
        self.metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows = self._log.keep(state.global_step) if state.is_world_process_zero else []
        if rows:
            self.metrics = {k: v for k, v in rows[-1].items() if k != "step"}
        if state.global_step == 0:
            self._evaluate(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            self._evaluate(state)

    def _evaluate(self, state: Any) -> None:
        """All processes ask, the first one judges."""
        accelerator = self.trainer.accelerator
        own = share_of(accelerator.process_index, accelerator.num_processes, len(self._questions))
        texts = self.trainer.answers(
            [self._questions[i]["prompt"] for i in own], self._n, self._seed + state.global_step
        )
        answered = dict(gather(list(zip(own, texts, strict=True))).items)
        if not state.is_world_process_zero:
            return
        asked = [
            Asked(row["question"], row["answers"], [self._read(text) for text in answered[i]])
            for i, row in enumerate(self._questions)
        ]
        self.metrics = measure(*self._judges, asked)
        self._log.append(state.global_step, self.metrics)
        self.trainer.log_beside({f"{_PREFIX}{name}": v for name, v in self.metrics.items()})
        draw(self._log.rows(), self._folder / PICTURE, self._title)


class Progress(TrainerCallback):
    """A progress bar with the time that is left, and a line for each log and each evaluation.

    Where the output is no terminal, the lines alone, with the time that is left.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("steps,"), TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(),
            TextColumn("left"), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._begin = (0, 0.0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = (state.global_step, time.monotonic())
        self._task = self._bar.add_task("Training", total=state.max_steps,
                                        completed=state.global_step)  # fmt: skip
        self._bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if line := log_line(logs or {}):
            left = "" if self._console.is_terminal else self._left(state)
            self._console.print(
                f"step {state.global_step}/{state.max_steps}: {line}{left}", soft_wrap=True
            )

    def _left(self, state: Any) -> str:
        first, begin = self._begin
        done = state.global_step - first
        if done < 1:
            return ""
        seconds = (time.monotonic() - begin) / done * (state.max_steps - state.global_step)
        return f", {clock(seconds)} left"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.stop()


_SHOWN = ("loss", "reward", "right", "r_cal", "agreement", "lambda", "format", "kl", "mean_length")


def log_line(logs: Mapping[str, Any]) -> str:
    """What people want to see of a line of the log; "" where there is nothing of it.

    >>> log_line({"loss": 0.0123, "csr/r_cal": -0.5, "epoch": 1.0})
    'loss 0.012, r_cal -0.500'
    """
    if any(name.startswith(_PREFIX) for name in logs):
        return "development: " + ", ".join(
            f"{name} {_number(logs[_PREFIX + name])}" for name in METRICS
        )
    by_name = {name.rpartition("/")[2]: value for name, value in logs.items()}
    found = [name for name in _SHOWN if isinstance(by_name.get(name), (int, float))]
    if "loss" not in found:  # the summary at the end of training has other keys
        return ""
    return ", ".join(f"{name} {_number(by_name[name])}" for name in found)


def _number(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else f"{value:.3f}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725.2)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
