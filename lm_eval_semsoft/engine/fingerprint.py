"""What a number depends on, as a short string, so that no other model's number is ever served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from torch import nn

_SAMPLES = 64  # values hashed per tensor: any training step moves nearly all of them


def model_fingerprint(model: nn.Module) -> str:
    """16 hex digits of a model's weights: names, shapes, types and strided samples of values.

    Sampling keeps it cheap for a model of any size; tensors that are not in memory (offloaded)
    count by name and shape.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.device.type != "meta" and tensor.numel():
            flat = tensor.detach().reshape(-1)
            step = max(1, flat.numel() // _SAMPLES)
            digest.update(flat[::step][:_SAMPLES].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def combine(parts: Mapping[str, object]) -> str:
    """16 hex digits of a mapping of JSON-able settings."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
