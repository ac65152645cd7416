"""Arrays in JSON, for what is cached: data, never a pickle."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack_array(array: NDArray[Any]) -> list[Any]:
    """[type, bytes, *shape]; `unpack_array` gives back an equal array."""
    return [array.dtype.str, base64.b64encode(array.tobytes()).decode("ascii"), *array.shape]


def unpack_array(record: list[Any]) -> NDArray[Any]:
    """The array that `pack_array` was given; flat where an older cache knows no shape."""
    kind, data, *shape = record
    flat = np.frombuffer(base64.b64decode(data), dtype=np.dtype(kind))
    return flat.reshape(shape) if shape else flat
