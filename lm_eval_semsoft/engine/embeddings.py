"""The output-embedding matrix E, whose rows are the directions of the next tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def output_head(model: nn.Module) -> Any:
    """The module that turns the last hidden state into logits.

    Raises:
        ValueError: the model has none, or one without a weight matrix.
    """
    get = getattr(model, "get_output_embeddings", None)
    head = get() if callable(get) else None
    if head is None or getattr(head, "weight", None) is None:
        raise ValueError(
            f"{type(model).__name__} has no output embeddings (an lm_head with a weight matrix): "
            "semsoft-hf needs them; use a causal language model, or --model hf."
        )
    return head


def vocabulary_of(head: Any) -> int:
    """V of an output head; the weights of a quantised one have another shape."""
    return int(getattr(head, "out_features", None) or head.weight.shape[0])


def output_embeddings(model: nn.Module) -> torch.Tensor:
    """E of a loaded model: [V, d], as stored.

    Raises:
        ValueError: no output embeddings, or rows that are quantised and so have no directions.
    """
    weight = output_head(model).weight
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(
            f"The output embeddings of {type(model).__name__} are not a matrix of floats "
            "(quantised?): Semantic Softmax cannot measure directions in them; use "
            "scoring=constrained, or load the model with an unquantised lm_head."
        )
    if weight.device.type == "meta":
        raise ValueError(
            f"The output embeddings of {type(model).__name__} are offloaded to disk: Semantic "
            "Softmax must read them; give the model more memory, or use scoring=constrained."
        )
    return weight.detach()
