"""A run: settings in, checkpoints out."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csr_trainer import data
from csr_trainer.checkpoint import (
    check_new_run,
    check_same_run,
    describe,
    fitting_save_steps,
    newest,
)
from csr_trainer.config import ALL_LINEAR, Command, Settings
from csr_trainer.groups import fitting
from csr_trainer.rewards import CSR, Reward, cut, reward_named
from csr_trainer.schedule import Blocks, Schedule, progress_of
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.engine.checkpoint import Base, Checkpoint, PromptTemplate
from lm_eval_semsoft.engine.fingerprint import model_fingerprint
from lm_eval_semsoft.models import demo

if TYPE_CHECKING:
    from csr_trainer.trainer import CSRTrainer

logger = logging.getLogger(__name__)

INSTALL = 'pip install "lm-eval-semsoft[train]"'
EXAMPLES = 4  # solved questions in front of each, as in the tasks that evaluate


class TrainingUnavailable(RuntimeError):
    """A package that training needs is missing."""


def check_packages(adapter: bool = True) -> None:
    """Raise `TrainingUnavailable`, one sentence, where TRL or (for an adapter) peft is missing."""
    for name in ("trl", *(["peft"] if adapter else [])):
        if find_spec(name) is None:
            raise TrainingUnavailable(
                f"Training needs {name}, which is not installed: install it with `{INSTALL}`."
            )


# ------------------------------------------------------------------ a run


def run(command: Command) -> None:
    """Train, resume, or show what would be trained.

    Raises:
        TrainingUnavailable: TRL or peft is missing.
        ValueError: a setting that is not possible here.
        DataUnavailable, BrokenData: see `csr_trainer.data.load`.
    """
    settings = command.settings
    check_packages(settings.is_adapter)
    output_dir = Path(settings.output_dir)
    resumed = _where_to_begin(command, output_dir)
    prepared = prepare(settings)
    if command.dry_run:
        from csr_trainer.dry_run import show

        show(prepared)
        return
    trainer = prepared.trainer
    trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    trainer.save_model(str(output_dir))
    trainer.say_what_it_is(output_dir)
    if trainer.is_world_process_zero():
        prepared.console.print(
            f"Trained: {output_dir}. Evaluate it with `lm_eval --model semsoft-csr --model_args "
            f"checkpoint={output_dir} --tasks semantic_uncertainty`.",
            soft_wrap=True,
        )


def _where_to_begin(command: Command, output_dir: Path) -> Path | None:
    """The checkpoint to go on from; None for the beginning."""
    if command.dry_run:
        return None
    if not command.resume:
        check_new_run(output_dir)
        return None
    found = newest(output_dir)
    if found is None:
        logger.warning("--resume: %s has no whole checkpoint, so training begins.", output_dir)
        return None
    check_same_run(found, command.settings, processes())
    return found


def processes() -> int:
    """How many processes train, as accelerate and torchrun tell them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


# ------------------------------------------------------------------ its parts


@dataclass
class Prepared:
    """All that a run needs, before its first step.

    Attributes:
        settings: of the run.
        base: what is trained.
        prompt: how questions are put.
        reward: what TRL calls.
        questions: number of questions to train on.
        trainer: with its callbacks.
        console: for people.
    """

    settings: Settings
    base: Base
    prompt: PromptTemplate
    reward: Reward
    questions: int
    trainer: CSRTrainer
    console: Any


def prepare(settings: Settings) -> Prepared:
    """Load everything, and check what can be checked before the first step."""
    import transformers
    from rich.console import Console
    from transformers import PrinterCallback

    from csr_trainer.callbacks import Development, LogFile, Progress
    from csr_trainer.trainer import CSRTrainer

    reward = _reward(settings)
    reward.resolved()
    reward.reference()  # a judge that is missing is told now
    path, name = locate(settings.model)
    base = base_of(path, name, settings.revision)
    args = grpo_config(settings)  # before the model: under DeepSpeed it decides how that is loaded
    blocks = Blocks.of(args)
    fitting_save_steps(settings.save_steps, blocks.passes, blocks.accumulation)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        path, revision=settings.revision, padding_side="left", truncation_side="left"
    )
    template = prompt_template(settings, tokenizer)
    is_chat = template.kind == "chat"
    reward.until = data.stop_strings(template.form, is_chat)
    if isinstance(reward, CSR):
        reward.blocks = blocks
    tables = {
        split: data.with_prompts(table, template.form, is_chat, template.num_fewshot)
        for split, table in data.load(
            settings.dataset, settings.n_questions, settings.dev_questions, settings.question_seed
        ).items()
    }
    model = load_model(settings, path)

    output_dir = Path(settings.output_dir)
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    callbacks: list[Any] = [LogFile(output_dir)]
    if args.process_index == 0:
        callbacks.append(Progress(console))
    development = Development(
        output_dir,
        list(tables["development"]),
        lambda text: answer_in(reward, text),
        (reward.resolved(), reward.reference()),
        settings.eval_steps,
        settings.eval_samples,
        settings.seed,
        f"{settings.reward}, {name}, {settings.dataset}",
    )
    if settings.eval_steps:
        callbacks.insert(0, development)

    def about(folder: Path, step: int) -> Checkpoint:
        lam = None
        if isinstance(reward, CSR):
            lam = reward.schedule(progress_of(trainer.state, blocks))
        return describe(
            folder, settings, base, template, step, lam, development.metrics, processes()
        )

    stop = [] if is_chat else stop_tokens(tokenizer, reward.until)
    ends = model.generation_config.eos_token_id
    if stop:  # TRL reads here where a completion ends
        model.generation_config.eos_token_id = [*_listed(ends), tokenizer.eos_token_id, *stop]
    trainer = CSRTrainer(
        about=about,
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=tables["train"],
        processing_class=tokenizer,
        callbacks=callbacks,
        peft_config=lora_config(settings) if settings.is_adapter else None,
    )
    # What is saved with the weights is the model's own again.
    trainer.accelerator.unwrap_model(trainer.model).generation_config.eos_token_id = ends
    trainer.remove_callback(PrinterCallback)
    development.trainer = trainer
    return Prepared(settings, base, template, reward, len(tables["train"]), trainer, console)


def _reward(settings: Settings) -> Reward:
    return reward_named(
        settings.reward,
        judge=settings.judge,
        num_generations=settings.num_generations,
        eps=settings.eps,
        soft=settings.soft,
        schedule=Schedule(settings.schedule, settings.lambda_max),
    )


def answer_in(reward: Reward, text: str) -> str:
    """The answer in a completion, as the reward reads it."""
    text = cut(text, reward.until)
    parse = getattr(reward, "parse", None)
    return text if parse is None else (parse(text).answer or "")


def prompt_template(settings: Settings, tokenizer: Any) -> PromptTemplate:
    """How questions are put.

    Raises:
        ValueError: a chat is asked for, and the tokenizer has no chat template.
    """
    has_template = tokenizer.chat_template is not None
    if settings.prompt == "chat" and not has_template:
        raise ValueError(
            f"prompt='chat' needs a chat template, and the tokenizer of {settings.model!r} has "
            "none: use prompt=completion."
        )
    is_chat = has_template if settings.prompt == "auto" else settings.prompt == "chat"
    form = data.FORMAT_OF[settings.reward]
    messages = data.prompt("?", form, chat=True, examples=0)
    assert isinstance(messages, list)
    return PromptTemplate(
        "chat" if is_chat else "completion", messages[0]["content"], EXAMPLES, form
    )


def _listed(value: int | Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def stop_tokens(tokenizer: Any, until: Sequence[str]) -> list[int]:
    """Tokens that end an answer: those with a line break, if that is where it ends.

    Longer stop strings have no tokens of their own; the reward cuts at them.
    """
    if "\n" not in until:
        return []
    line_break = ("\n", "Ċ", "<0x0A>")  # as it stands in vocabularies, and of bytes
    return sorted(
        number
        for token, number in tokenizer.get_vocab().items()
        if any(own in token for own in line_break)
    )


# ------------------------------------------------------------------ the model


def locate(model: str | None) -> tuple[str, str]:
    """Where a model can be loaded from, and the name by which others find it again."""
    path = demo.resolve(model)
    if model is None or model.startswith(demo.PREFIX):
        return path, demo.PREFIX + Path(path).name.rpartition("-")[0]
    folder = Path(model).expanduser()
    return (str(folder), str(folder.resolve())) if folder.is_dir() else (path, model)


def base_of(path: str, name: str, revision: str | None) -> Base:
    """The base model, with the fingerprint of its weights as they are stored.

    Loaded apart from the one that is trained, before TRL's arguments: once these name DeepSpeed's
    third stage, a loaded model has no whole weights. Only by the process that writes checkpoints.
    """
    if os.environ.get("RANK", "0") != "0":
        return Base(name, revision, "", "")
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype="auto")
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or "no reason given").splitlines()[0].rstrip(".")
        raise ValueError(f"model={name!r} cannot be loaded ({reason}).") from error
    commit = getattr(model.config, "_commit_hash", None)
    dtype = str(model.dtype).removeprefix("torch.")
    return Base(name, revision or commit, model_fingerprint(model), dtype)


def device_of(settings: Settings) -> str:
    """Where the model is trained."""
    import torch

    return "cuda" if torch.cuda.is_available() and not settings.use_cpu else "cpu"


def dtype_of(settings: Settings) -> str:
    """In which dtype the weights are trained."""
    if settings.dtype != "auto":
        return settings.dtype
    return demo.recommended_dtype(device_of(settings)) if settings.is_adapter else "float32"


def load_model(settings: Settings, path: str) -> Any:
    """The base model in the dtype of training."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path, revision=settings.revision, dtype=getattr(torch, dtype_of(settings))
    )


def lora_config(settings: Settings) -> Any:
    """The adapter, as peft wants it."""
    from peft import LoraConfig

    targets = settings.lora_targets
    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=targets if targets == ALL_LINEAR else targets.split(","),
        task_type="CAUSAL_LM",
    )


# ------------------------------------------------------------------ TRL's arguments


def grpo_config(settings: Settings) -> Any:
    """The run's `trl.GRPOConfig`.

    Raises:
        ValueError: groups that do not fit into a block, or a name in `trl` that is not TRL's or
            that is a setting of its own.
    """
    from trl import GRPOConfig

    _check_groups(settings)
    native = demo.recommended_dtype(device_of(settings)) == "bfloat16"
    on_cpu = device_of(settings) == "cpu"
    checkpointing = settings.gradient_checkpointing
    own: dict[str, Any] = {
        "output_dir": settings.output_dir,
        "num_generations": settings.num_generations,
        "max_completion_length": settings.completion_length,
        "temperature": settings.temperature,
        "scale_rewards": settings.scale_rewards,
        "beta": settings.beta,
        "learning_rate": settings.rate,
        "per_device_train_batch_size": settings.per_device_train_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "steps_per_generation": settings.steps_per_generation,
        "max_steps": settings.max_steps,
        "num_train_epochs": settings.num_train_epochs,
        "bf16": native and settings.dtype in ("auto", "bfloat16"),
        "fp16": settings.dtype == "float16",
        "use_cpu": on_cpu,
        "gradient_checkpointing": not on_cpu if checkpointing is None else checkpointing,
        "use_vllm": settings.use_vllm,
        "vllm_mode": settings.vllm_mode,
        "seed": settings.seed,
        "save_strategy": "steps",
        "save_steps": settings.save_steps,
        "save_total_limit": settings.save_total_limit,
        "logging_steps": settings.logging_steps,
        "report_to": "none",
        "disable_tqdm": True,  # the run has a bar of its own
    }
    known = tuple(field.name for field in fields(GRPOConfig) if field.init)
    for name in settings.trl:
        check_choice("trl", name, known)
        if name in own and name not in ("report_to", "disable_tqdm", "bf16", "fp16"):
            raise ValueError(f"trl: {name} is a setting of its own: set it outside of trl.")
    return GRPOConfig(**{**own, **settings.trl})


def _check_groups(settings: Settings) -> None:
    steps = settings.steps_per_generation or settings.gradient_accumulation_steps
    rows = settings.per_device_train_batch_size * steps * processes()
    if rows % settings.num_generations:
        raise ValueError(
            f"num_generations={settings.num_generations} does not divide the {rows} rollouts of a "
            f"block: {fitting(settings.num_generations, processes())}."
        )
