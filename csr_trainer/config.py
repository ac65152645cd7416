"""Everything that the trainer can be told, where each default comes from, YAML files and flags.

A default is the paper's (arXiv 2605.15588), TRL's, or ours. The paper does not publish learning
rate, G, eps, lambda_max and beta.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from csr_trainer.data import FORMAT_OF
from csr_trainer.rewards import EPS, REWARDS
from csr_trainer.schedule import KINDS as SCHEDULES
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.judges import DEFAULT

PAPER, TRL, OURS = "paper", "TRL", "our choice"
DTYPES = ("auto", "float32", "bfloat16", "float16")
PROMPTS = ("auto", "chat", "completion")
VLLM_MODES = ("colocate", "server")
ALL_LINEAR = "all-linear"


def _setting(default: Any, help: str, source: str, allowed: Sequence[str] = ()) -> Any:
    about = {"help": help, "source": source, "allowed": tuple(allowed)}
    if default is dict:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Settings:
    """One run of the trainer; `python -m csr_trainer --help` explains every field.

    Raises:
        ValueError: a value that is not allowed.
    """

    # What is trained, on what
    model: str | None = _setting(
        None,
        "hub id, folder or demo:<name> of the base model; the installed demo model by default",
        OURS,
    )
    revision: str | None = _setting(None, "of a hub id", OURS)
    dataset: str = _setting(
        "hotpotqa",
        "hotpotqa, triviaqa, nq_open, or a JSONL file of rows with question and answers (answer, "
        "aliases)",
        PAPER,
    )
    n_questions: int = _setting(10_000, "training questions, drawn at random", PAPER)
    dev_questions: int = _setting(200, "other questions, for evaluations while training", OURS)
    question_seed: int = _setting(1234, "of the random draw of questions", OURS)
    prompt: str = _setting(
        "auto",
        "chat: the model's chat template and a system message; completion: solved questions, then "
        "the question; auto: chat where there is a template",
        OURS,
        PROMPTS,
    )
    output_dir: str = _setting("csr-out", "checkpoints, logs and the picture go there", OURS)

    # The reward
    reward: str = _setting("csr", "what is rewarded", PAPER, tuple(REWARDS))
    judge: str = _setting(DEFAULT, "of whether two answers mean the same (docs/judges.md)", OURS)
    num_generations: int = _setting(8, "G, rollouts of one question", TRL)
    schedule: str = _setting("linear", "how lambda grows", PAPER, SCHEDULES)
    lambda_max: float = _setting(1.0, "lambda at the end of the schedule", OURS)
    eps: float = _setting(EPS, "clip of the cross-entropy of a pair", OURS)
    soft: bool = _setting(False, "take a judge's scores of pairs as probabilities", OURS)
    scale_rewards: str = _setting(
        "group",
        "divide advantages by the spread of rewards in a group, a batch, or not at all; by group "
        "it partly undoes lambda where all rollouts are right or all wrong",
        TRL,
        ("group", "batch", "none"),
    )

    # LoRA
    lora_r: int = _setting(16, "rank of the adapter; 0 trains all weights", OURS)
    lora_alpha: int = _setting(32, "scale of the adapter is lora_alpha / lora_r", OURS)
    lora_dropout: float = _setting(0.0, "of the adapter's inputs", OURS)
    lora_targets: str = _setting(
        ALL_LINEAR, "names of the adapted modules, by commas; all-linear: all but the head", OURS
    )

    # Training
    learning_rate: float | None = _setting(
        None, "1e-6 for all weights (TRL's), 1e-5 for an adapter (ours)", TRL
    )
    beta: float = _setting(0.0, "weight of the KL divergence from the base model", TRL)
    temperature: float = _setting(1.0, "of rollouts", TRL)
    max_completion_length: int | None = _setting(
        None,
        "tokens of a rollout; by default 32, and 256 where it tells a confidence (TRL: 512)",
        OURS,
    )
    per_device_train_batch_size: int = _setting(8, "rollouts in one forward-backward pass", TRL)
    gradient_accumulation_steps: int = _setting(1, "passes in one optimiser step", TRL)
    steps_per_generation: int | None = _setting(
        None, "passes per block of rollouts; gradient_accumulation_steps by default", TRL
    )
    max_steps: int = _setting(-1, "optimiser steps; -1: as num_train_epochs says", TRL)
    num_train_epochs: float = _setting(1.0, "passes over the questions (TRL: 3)", OURS)
    dtype: str = _setting(
        "auto",
        "of the weights while training: all weights float32; under an adapter bfloat16 where the "
        "device multiplies it natively, else float32",
        OURS,
        DTYPES,
    )
    gradient_checkpointing: bool | None = _setting(
        None, "less memory, slower (TRL: on); by default on, and off on a CPU", OURS
    )
    use_cpu: bool = _setting(False, "leave GPUs alone", TRL)
    use_vllm: bool = _setting(False, "make rollouts with vLLM", TRL)
    vllm_mode: str = _setting(
        "colocate", "vLLM in the same processes, or a server", TRL, VLLM_MODES
    )
    seed: int = _setting(42, "of training", TRL)

    # What is kept and shown
    save_steps: int = _setting(50, "optimiser steps between checkpoints (TRL: 500)", OURS)
    save_total_limit: int | None = _setting(3, "so many newest checkpoints are kept", OURS)
    eval_steps: int = _setting(50, "optimiser steps between evaluations; 0: none", OURS)
    eval_samples: int = _setting(10, "sampled answers per development question", OURS)
    logging_steps: int = _setting(1, "optimiser steps between log lines (TRL: 10)", OURS)
    trl: dict[str, Any] = _setting(  # noqa: RUF009 - a field with a factory
        dict, "anything else of trl.GRPOConfig: deepspeed, fsdp, report_to, vllm_…", TRL
    )

    def __post_init__(self) -> None:
        for own in fields(self):
            allowed = own.metadata["allowed"]
            if allowed:
                check_choice(own.name, getattr(self, own.name), allowed)
        for name in ("n_questions", "logging_steps",
                     "per_device_train_batch_size", "gradient_accumulation_steps", "save_steps",
                     "eval_samples"):  # fmt: skip
            self._check_least(name, 1)
        self._check_least("num_generations", 2)
        for name in ("dev_questions", "question_seed", "lora_r", "eval_steps", "seed"):
            self._check_least(name, 0)
        if self.eval_steps and not self.dev_questions:
            raise ValueError(
                f"eval_steps={self.eval_steps} needs development questions, and dev_questions=0: "
                "set eval_steps=0, or dev_questions."
            )

    def _check_least(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            raise ValueError(
                f"{name}={getattr(self, name)!r} is not allowed: use a whole number from {least}."
            )

    @property
    def is_adapter(self) -> bool:
        """Is an adapter trained, and not all weights?"""
        return self.lora_r > 0

    @property
    def completion_length(self) -> int:
        """Tokens of a rollout at most."""
        if self.max_completion_length is not None:
            return self.max_completion_length
        return 32 if FORMAT_OF[self.reward] == "answer" else 256

    @property
    def rate(self) -> float:
        """The learning rate."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-5 if self.is_adapter else 1e-6


#: Settings that may differ when a run is resumed: no loss depends on them.
FREE = (
    "output_dir", "save_steps", "save_total_limit", "eval_steps", "eval_samples", "logging_steps",
)  # fmt: skip


def difference(before: Mapping[str, Any], now: Settings) -> list[str]:
    """Settings on which losses depend that are no longer what they were: "seed 1 -> 2"."""
    return [
        f"{name} {before[name]!r} -> {value!r}"
        for name, value in dataclasses.asdict(now).items()
        if name not in FREE and name in before and before[name] != value
    ]


# ------------------------------------------------------------------ files and flags


@dataclass(frozen=True)
class Command:
    """What was asked for on a command line.

    Attributes:
        settings: of the run.
        resume: go on from the newest whole checkpoint in output_dir.
        dry_run: show groups, memory and first rewards; train nothing.
    """

    settings: Settings
    resume: bool = False
    dry_run: bool = False


def parse(arguments: Sequence[str], prog: str = "python -m csr_trainer") -> Command:
    """Flags over a YAML file over defaults.

    Raises:
        ValueError: a setting that there is not, or a value that is not allowed.
        SystemExit: by argparse, for --help and what is no flag.
    """
    given = vars(parser(prog).parse_args(arguments))
    path = given.pop("config", None)
    command = {name: given.pop(name, False) for name in ("resume", "dry_run")}
    from_file = read_yaml(Path(path)) if path else {}
    flags: dict[str, Any] = {name: value for name, value in given.items() if name != "trl"}
    other = dict(_named_value(text) for text in given.get("trl") or ())
    trl = {**(from_file.get("trl") or {}), **other}
    return Command(settings_of({**from_file, **flags, "trl": trl}), **command)


def read_yaml(path: Path) -> dict[str, Any]:
    """Settings in a YAML file.

    Raises:
        ValueError: it is not there, no YAML, or no mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"--config {path} cannot be read: {reason}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"--config {path} must hold settings, one `name: value` a line.")
    return content


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings by name, values brought to their types ("1e-5" in YAML is a text).

    Raises:
        ValueError: a setting that there is not, or a value of another type.
    """
    known = typing.get_type_hints(Settings)
    for name in given:
        check_choice("setting", name, tuple(known))
    return Settings(**{name: _typed(name, value, known[name]) for name, value in given.items()})


def _typed(name: str, value: Any, kind: Any) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None
    plain = next(option for option in options if option is not type(None))
    if typing.get_origin(plain) is dict:
        if isinstance(value, Mapping):
            return dict(value)
    elif plain is bool:
        if isinstance(value, bool):
            return value
    elif not isinstance(value, bool):
        try:
            made = plain(value)
        except (TypeError, ValueError):
            made = None
        if made is not None and (plain is not int or made == float(value)):
            return made
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    raise ValueError(f"{name}={value!r} must be {wanted.get(plain, 'name: value pairs')}.")


def parser(prog: str) -> argparse.ArgumentParser:
    """The command line: one flag a setting."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="Train a language model so that its agreement with itself means that it is "
        "right: Calibration with Semantic Reward (arXiv 2605.15588) and its baselines, with GRPO.",
        epilog="In brackets: the default, and whose it is. Several GPUs: `accelerate launch -m "
        "csr_trainer …` (docs/csr.md).",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    made.add_argument("--config", metavar="FILE", help="YAML file of settings; flags win over it")
    made.add_argument("--resume", action="store_true",
                      help="go on from the newest whole checkpoint in --output-dir")  # fmt: skip
    made.add_argument("--dry-run", action="store_true",
                      help="show groups, memory and first rewards; train nothing")  # fmt: skip
    for own in fields(Settings):
        flag = "--" + own.name.replace("_", "-")
        text = f"{own.metadata['help']} [{_shown(own)}; {own.metadata['source']}]"
        text = text.replace("%", "%%")
        if own.name == "trl":
            made.add_argument(flag, action="append", metavar="NAME=VALUE", help=text)
        elif "bool" in str(own.type):
            made.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            name = "|".join(own.metadata["allowed"]) or str(own.type).partition(" ")[0].upper()
            made.add_argument(flag, metavar=name, help=text)
    return made


def _shown(own: dataclasses.Field[Any]) -> str:
    default = own.default if own.default is not dataclasses.MISSING else {}
    return "-" if default in (None, {}) else str(default)


def _named_value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--trl {text!r} must be NAME=VALUE, with a name of trl.GRPOConfig.")
    return name, yaml.safe_load(value)


def defaults_table() -> str:
    """All settings with their defaults and sources, in Markdown."""
    rows = [
        f"| `{own.name}` | {_shown(own)} | {own.metadata['source']} | {own.metadata['help']} |"
        for own in fields(Settings)
    ]
    return "\n".join(["| setting | default | source | |", "|---|---|---|---|", *rows]) + "\n"
