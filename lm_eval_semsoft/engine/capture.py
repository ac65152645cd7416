"""Activations: the residual stream after every block, at the answer positions only."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from .records import HiddenShape

logger = logging.getLogger(__name__)

_LARGEST = torch.finfo(torch.float16).max


class Capture:
    """Keeps what every block of a model puts out at some positions, and nothing else.

    Hooks, because a forward pass that returns hidden states keeps those of all positions. The last
    block's output is kept as it is, before the model's final norm.

    Args:
        model: a causal transformers model.

    Raises:
        ValueError: its blocks cannot be found.
    """

    def __init__(self, model: Any) -> None:
        self._blocks = decoder_blocks(model)
        self.shape: HiddenShape = (len(self._blocks), int(text_config(model.config).hidden_size))
        self._clipped = False

    @contextmanager
    def at(
        self, width: int, rows: Sequence[int], columns: Sequence[int]
    ) -> Iterator[dict[int, torch.Tensor]]:
        """Keep positions [rows, columns] of the pass inside: layer -> [n, d], filled by it.

        Columns are counted in the `width` tokens that were given, as for the output head.
        """
        kept: dict[int, torch.Tensor] = {}

        def keep(layer: int, _: nn.Module, __: object, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            own = torch.tensor(columns, device=hidden.device, dtype=torch.long)
            where = torch.tensor(rows, device=hidden.device, dtype=torch.long)
            kept[layer] = hidden[where, own + (hidden.shape[1] - width)]

        handles = [
            block.register_forward_hook(partial(keep, layer))
            for layer, block in enumerate(self._blocks)
        ]
        try:
            yield kept
        finally:
            for handle in handles:
                handle.remove()

    def stacked(self, kept: dict[int, torch.Tensor]) -> torch.Tensor:
        """[n, layers, d] float16 on the CPU; what is too large for it is clipped, and said once."""
        hidden = torch.stack([kept[layer].cpu() for layer in range(len(self._blocks))], dim=1)
        if not self._clipped and bool((hidden.abs() > _LARGEST).any()):
            self._clipped = True
            logger.warning(
                "Some activations are larger than float16 can hold and are stored as %g.", _LARGEST
            )
        return hidden.clamp(-_LARGEST, _LARGEST).to(torch.float16)


def decoder_blocks(model: Any) -> list[nn.Module]:
    """The transformer blocks of a causal model's decoder, in order.

    Raises:
        ValueError: no list of as many modules as the model has hidden layers.
    """
    n = int(text_config(model.config).num_hidden_layers)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    for root in (decoder, model):
        if not isinstance(root, nn.Module):
            continue
        for module in root.modules():
            if isinstance(module, nn.ModuleList) and len(module) == n:
                return list(module)
    raise ValueError(
        f"capture=hidden: the {n} blocks of {type(model).__name__} cannot be found; run without it."
    )


def text_config(config: Any) -> Any:
    """The configuration of the language model inside, where there is more than one."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config
