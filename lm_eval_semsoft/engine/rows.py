"""Keys and values of many answers that grow together, in room made ahead.

All rows end in the same column, whatever their lengths are, so that one more column is one more
token of every row. A row that is done leaves at once, and another may take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

_ROOM = 64  # columns that are added at once


class RowCache(Cache):
    """The keys and values of some rows in every layer, in the same columns.

    Sliding layers keep all of them, too: what a query may see is the mask's business.

    Attributes:
        lengths: tokens of each row; they stand in the last columns.
        end: columns in use.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=lambda: _Layer(self))
        self.lengths: list[int] = []
        self.end = 0

    def mask(self, lengths: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
        """[rows, width], 1 where a token stands, if rows of these lengths end at that width."""
        starts = width - torch.tensor(lengths)
        return (torch.arange(width) >= starts[:, None]).long().to(device)

    def drop(self, row: int) -> None:
        """Forget a row; the last one takes its place."""
        last = len(self.lengths) - 1
        if row != last:
            for layer in self._layers:
                layer.keys[row], layer.values[row] = layer.keys[last], layer.values[last]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def take(self, other: RowCache, rows: Sequence[int]) -> None:
        """Append rows of another cache, by number; one may come several times."""
        lengths = [other.lengths[row] for row in rows]
        n, end = len(self.lengths), max([*self.lengths, *lengths])
        while len(self._layers) < len(other._layers):
            self._layers.append(_Layer(self))
        pairs = list(zip(self._layers, other._layers, strict=True))
        for own, theirs in pairs:  # first, since memory may lack: so far nothing has moved
            own.make_room(theirs, n + len(rows), end)
        for own, theirs in pairs:
            own.shift(n, self.end, end)
            own.copy(theirs, rows, lengths, other.end, n, end)
        self.lengths += lengths
        self.end = end

    def lay(self, source: RowCache, counts: Sequence[int]) -> None:
        """Fill an empty cache with one row for each count: that many tokens of the source's row."""
        self.end, self.lengths = max(counts), list(counts)
        for theirs in source._layers:
            own = _Layer(self)
            own.make_room(theirs, len(counts), self.end)
            for row, n in enumerate(counts):
                own.keys[row, :, self.end - n : self.end] = theirs.keys[0, :, :n]
                own.values[row, :, self.end - n : self.end] = theirs.values[0, :, :n]
            self._layers.append(own)

    @property
    def _layers(self) -> list[Any]:
        return self.layers


class _Layer(DynamicLayer):
    """Keys and values [rows, heads, columns, size] of one layer, with columns to spare."""

    keys: Any
    values: Any
    is_initialized: bool

    def __init__(self, table: RowCache) -> None:
        super().__init__()
        self.table = table

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        n, new = key_states.shape[0], key_states.shape[-2]
        end = self.table.end
        if not self.is_initialized or self.keys.shape[2] < end + new:
            self._enlarge(key_states, value_states, n, end + new)
        self.keys[:n, :, end : end + new] = key_states
        self.values[:n, :, end : end + new] = value_states
        return self.keys[:n, :, : end + new], self.values[:n, :, : end + new]

    def get_seq_length(self) -> int:
        return self.table.end

    def make_room(self, like: _Layer, rows: int, columns: int) -> None:
        """Have room for at least that many rows and columns."""
        if not self.is_initialized or self.keys.shape[0] < rows or self.keys.shape[2] < columns:
            self._enlarge(like.keys, like.values, rows, columns)

    def _enlarge(self, keys: torch.Tensor, values: torch.Tensor, rows: int, columns: int) -> None:
        # Zeros: what is masked still meets a weight of 0, which NaN would survive.
        before = (self.keys, self.values) if self.is_initialized else None
        rows = max(rows, before[0].shape[0]) if before else rows
        self.keys, self.values = (
            x.new_zeros(rows, x.shape[1], columns + _ROOM, x.shape[3]) for x in (keys, values)
        )
        self.is_initialized = True
        if before:
            for own, old in zip((self.keys, self.values), before, strict=True):
                own[: old.shape[0], :, : old.shape[2]] = old[:, :, : own.shape[2]]

    def shift(self, rows: int, end: int, new_end: int) -> None:
        """Move the first rows so that they end in another column; their beginnings may go."""
        kept = min(end, new_end)
        if rows and end != new_end:
            for x in (self.keys, self.values):
                x[:rows, :, new_end - kept : new_end] = x[:rows, :, end - kept : end].clone()

    def copy(
        self, other: _Layer, rows: Sequence[int], lengths: Sequence[int], end: int, first: int,
        new_end: int,
    ) -> None:  # fmt: skip
        """Put another layer's rows, which end in column `end`, after the first ones here."""
        for row, same in groupby(zip(rows, lengths, strict=True)):
            many, n = len(list(same)), row[1]
            for own, theirs in ((self.keys, other.keys), (self.values, other.values)):
                own[first : first + many, :, new_end - n : new_end] = theirs[
                    row[0], :, end - n : end
                ]
            first += many
