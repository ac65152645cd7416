"""What a trained checkpoint says of itself: `csr_config.json` beside its safetensors.

`csr_trainer` writes it, last of all files, so that a checkpoint whose writing was cut short has
none. `--model semsoft-csr` and the tasks of open questions read it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FILE = "csr_config.json"
FORMAT = 1
KINDS = ("adapter", "full")
PROMPTS = ("chat", "completion")
FORMS = ("answer", "tags", "ten")
ADAPTER_WEIGHTS = "adapter_model.safetensors"


class CheckpointError(ValueError):
    """A directory that is no checkpoint, or one that cannot be used."""


@dataclass(frozen=True)
class Base:
    """The model that was trained.

    Attributes:
        model: hub id, folder, or `demo:<name>`.
        revision: of a hub id; None is the newest.
        fingerprint: `engine.fingerprint.model_fingerprint` of its weights in `dtype`.
        dtype: in which they are stored, as torch spells it ("bfloat16").
    """

    model: str
    revision: str | None
    fingerprint: str
    dtype: str


@dataclass(frozen=True)
class PromptTemplate:
    """How a question was put in training.

    Attributes:
        kind: `chat`, through the tokenizer's chat template, or `completion`, as plain text.
        instruction: the system message of a chat; "" is none.
        num_fewshot: solved questions in front of each.
        form: of replies: the `answer` alone, or with a confidence in `tags` or from 0 to `ten`.
    """

    kind: str
    instruction: str = ""
    num_fewshot: int = 0
    form: str = "answer"


@dataclass(frozen=True)
class Checkpoint:
    """The content of `csr_config.json`.

    Attributes:
        kind: `adapter` (a LoRA adapter on the base model) or `full` (all weights).
        base: what was trained.
        prompt: how questions were put.
        step: optimiser steps done.
        reward: name, judge, G, eps and the schedule of lambda.
        seeds: of training and of the questions.
        metrics: of the newest evaluation on development questions; {} before the first.
        files: weights beside it -> bytes.
        versions: of packages.
        settings: everything that the trainer was told.
        format: of this file.
    """

    kind: str
    base: Base
    prompt: PromptTemplate
    step: int
    reward: Mapping[str, Any]
    seeds: Mapping[str, int]
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT


# ------------------------------------------------------------------ writing


def weights_in(folder: Path) -> dict[str, int]:
    """Names and bytes of the safetensors of a checkpoint."""
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.safetensors"))}


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `csr_config.json`, whole or not at all.

    Numbers that JSON does not have (NaN, infinities) become null.
    """
    text = json.dumps(_plain(asdict(checkpoint)), indent=2, allow_nan=False) + "\n"
    beside = folder / f".{FILE}.tmp"
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, folder / FILE)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(own) for own in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ------------------------------------------------------------------ reading


def read(folder: str | Path) -> Checkpoint:
    """What the checkpoint in a folder says of itself, checked.

    Raises:
        CheckpointError: there is no such folder or no `csr_config.json` in it; it is no JSON, of a
            newer format, or lacks something; or weights that it names are missing or shortened.
    """
    where = Path(folder).expanduser()
    if not where.is_dir():
        raise CheckpointError(f"checkpoint={str(folder)!r}: there is no such folder.")
    path = where / FILE
    if not path.is_file():
        raise CheckpointError(
            f"checkpoint={str(folder)!r} has no {FILE}: expected a checkpoint of csr_trainer, "
            f"found {_found(where)}."
        )
    checkpoint = _parsed(path)
    _check_weights(where, checkpoint)
    return checkpoint


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    try:
        read(folder)
    except CheckpointError:
        return False
    return True


def _found(folder: Path) -> str:
    """What stands in a folder without `csr_config.json`, and what to do about it."""
    names = sorted(path.name for path in folder.iterdir())
    inner = sorted(path.parent.name for path in folder.glob(f"*/{FILE}"))
    if inner:
        return f"checkpoints one level deeper ({', '.join(inner[:4])}): name one of them"
    if "adapter_config.json" in names:
        return "a PEFT adapter of another trainer: load it with --model semsoft-hf and peft="
    if "config.json" in names:
        return "a model of another origin: load it with --model semsoft-hf and pretrained="
    if not names:
        return "an empty folder"
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")


def _parsed(path: Path) -> Checkpoint:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no JSON that can be read ({error}).") from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} must hold a JSON object, and holds {type(content).__name__}."
        )
    version = content.get("format")
    if version != FORMAT:
        raise CheckpointError(
            f"{path} is of format {version!r}, and this version reads format {FORMAT}: "
            "use the version of lm-eval-semsoft that wrote it, or a newer one."
        )
    try:
        parts = {
            **{name: content[name] for name in _names(Checkpoint)},
            "base": Base(**{name: content["base"][name] for name in _names(Base)}),
            "prompt": PromptTemplate(
                **{name: content["prompt"][name] for name in _names(PromptTemplate)}
            ),
        }
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error.args[0]!r}.") from error
    except TypeError as error:
        raise CheckpointError(f"{path}: base and prompt must be JSON objects.") from error
    checkpoint = Checkpoint(**parts)
    _check_choice(path, "kind", checkpoint.kind, KINDS)
    _check_choice(path, "prompt.kind", checkpoint.prompt.kind, PROMPTS)
    _check_choice(path, "prompt.form", checkpoint.prompt.form, FORMS)
    return checkpoint


def _names(kind: type) -> list[str]:
    return [own.name for own in fields(kind)]


def _check_choice(path: Path, name: str, given: Any, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise CheckpointError(f"{path}: {name} is {given!r}, and must be {' or '.join(allowed)}.")


def _check_weights(folder: Path, checkpoint: Checkpoint) -> None:
    """Are all files there in their full length, and among them what the kind needs?"""
    found = weights_in(folder)
    if not checkpoint.files or (
        checkpoint.kind == "adapter" and ADAPTER_WEIGHTS not in checkpoint.files
    ):
        needed = ADAPTER_WEIGHTS if checkpoint.kind == "adapter" else "safetensors"
        raise CheckpointError(
            f"{folder / FILE} names no weights: expected {needed} of a checkpoint of kind "
            f"{checkpoint.kind}, found {', '.join(found) or 'none'}."
        )
    for name, size in checkpoint.files.items():
        if found.get(name) != size:
            state = "is missing" if name not in found else f"has {found[name]:,} bytes"
            raise CheckpointError(
                f"checkpoint={str(folder)!r} is damaged: {name} {state}, expected {size:,} bytes."
            )
