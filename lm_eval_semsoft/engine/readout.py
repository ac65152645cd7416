"""The readout: everything one forward pass tells at an answer position.

Scores, measures and pictures are pure functions of readouts, so scoring is never a reason to run
a model twice.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_semsoft.core.uncertainty import NUCLEUS_LEVELS

from .packing import pack_array, unpack_array

DEFAULT_TOP_K = 1000

_ENOUGH = NUCLEUS_LEVELS[-1] + 1e-3  # mass that surely reaches the largest nucleus
_CACHE = 2**19  # floats that stay in a CPU's cache while several passes go over them


@dataclass(frozen=True, eq=False)
class Readout:
    """One answer position. Log-probabilities and entropies in nats, over the full vocabulary.

    Attributes:
        topk_ids: [K] int32, the most probable next tokens, most probable first.
        topk_logprobs: [K] float32.
        label_logprobs: [L] float32, exact log-probability of each whole label.
        label_greedy: [L] bool, is every token of the label the most probable one?
        label_first: [L] int32, first token of each label.
        entropy: entropy of the full next-token distribution.
        nucleus_sizes: [4] int32, tokens in the smallest set that reaches `NUCLEUS_LEVELS`.
        nucleus_entropies: [4] float32, entropy of each nucleus, renormalised.
        lead_logprob: log-probability of the tokens that all labels begin with, which stand between
            the prompt and the answer position; 0 where there are none. The label log-probabilities
            are those after it.
        hidden: [layers, d] float16, the residual stream after every block at the answer position;
            None unless the run captures it (`engine.capture`).
    """

    topk_ids: NDArray[np.int32]
    topk_logprobs: NDArray[np.float32]
    label_logprobs: NDArray[np.float32]
    label_greedy: NDArray[np.bool_]
    label_first: NDArray[np.int32]
    entropy: float
    nucleus_sizes: NDArray[np.int32]
    nucleus_entropies: NDArray[np.float32]
    lead_logprob: float = 0.0
    hidden: NDArray[np.float16] | None = None

    @property
    def argmax(self) -> int:
        """The most probable next token."""
        return int(self.topk_ids[0])

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_json` gives back equal arrays."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: pack_array(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Readout:
        own: dict[str, Any] = {
            k: unpack_array(v) if isinstance(v, list) else v for k, v in record.items()
        }
        return cls(**own)


@dataclass(frozen=True)
class Reads:
    """Which log-probabilities make up which label, flat over a batch.

    Attributes:
        position: [R] row of the logits, ascending.
        token: [R] token read there.
        label: [R] the label it belongs to, counted through the whole batch.
        n_labels: [B] labels of each document.
        roots: [B] row of each document's answer position.
        starts: [B] first row of each document; `roots` where it is not given.
    """

    position: Sequence[int]
    token: Sequence[int]
    label: Sequence[int]
    n_labels: Sequence[int]
    roots: Sequence[int]
    starts: Sequence[int] = ()


class NotFinite(ValueError):
    """A document's logits are NaN or infinite; `.row` is its place in the batch."""

    def __init__(self, row: int) -> None:
        super().__init__(f"The logits of row {row} are not finite.")
        self.row = row


def read_batch(logits: torch.Tensor, reads: Reads, top_k: int) -> list[Readout]:
    """Turn the logits [n, V] of a batch's answer positions into one readout per document.

    Raises:
        NotFinite: some logits are NaN, or none is above -inf.
    """
    read, argmax, columns = [], [], []
    for rows in slices_of(logits):
        own, most, seen = _read_rows(logits, rows, reads, top_k)
        read.append(own)
        argmax.append(most)
        columns.append(seen)
    labels, greedy = _labels(torch.cat(read), torch.cat(argmax), reads)
    first = _first_tokens(reads)
    ids, logprobs_, entropy_, sizes_, entropies_ = (
        torch.cat(column).cpu().numpy() for column in zip(*columns, strict=True)
    )
    out, start = [], 0
    for row, n in enumerate(reads.n_labels):
        span = slice(start, start + n)
        start += n
        out.append(
            Readout(
                topk_ids=ids[row],
                topk_logprobs=logprobs_[row],
                label_logprobs=labels[span],
                label_greedy=greedy[span],
                label_first=first[span],
                entropy=float(entropy_[row]),
                nucleus_sizes=sizes_[row],
                nucleus_entropies=entropies_[row],
            )
        )
    return out


def slices_of(logits: torch.Tensor) -> list[range]:
    """Rows of the logits that are read together: on a CPU as many as its cache holds."""
    n, v = logits.shape
    step = max(1, _CACHE // v) if logits.device.type == "cpu" else n
    return [range(start, min(n, start + step)) for start in range(0, n, step)]


def _read_rows(
    logits: torch.Tensor, rows: range, reads: Reads, top_k: int
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Label reads and argmaxes of some rows, and all columns of those that are roots."""
    # The same function as the harness's `hf`, so that the same logits give the same numbers.
    logprobs = logits[rows.start : rows.stop].log_softmax(-1, dtype=torch.float32)
    values, ids = top_k_of(logprobs, min(top_k, logprobs.shape[1]))
    _check_finite(values[:, 0], rows, reads)
    low, high = (bisect_left(reads.position, edge) for edge in (rows.start, rows.stop))
    device = logits.device
    place = torch.tensor(reads.position[low:high], device=device, dtype=torch.long) - rows.start
    token = torch.tensor(reads.token[low:high], device=device, dtype=torch.long)
    own = [root - rows.start for root in reads.roots if root in rows]
    if len(own) < len(rows):
        roots = torch.tensor(own, device=device, dtype=torch.long)
        top, top_ids, full = values[roots], ids[roots], logprobs[roots]
    else:
        top, top_ids, full = values, ids, logprobs
    sizes, entropies = nuclei(full, top)
    columns = [top_ids.int(), top, entropy_of(full), sizes, entropies]
    return logprobs[place, token], ids[:, 0], columns


def top_k_of(logits: torch.Tensor, k: int, block: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """`logits.topk(k)` over the last axis of [n, V], several times faster for a large V.

    The k largest values lie in the k blocks with the largest maxima (ties aside, which topk
    breaks arbitrarily too), so only those blocks are searched.
    """
    n, v = logits.shape
    if v < 4 * k * block:
        values, ids = logits.topk(k, dim=-1)
        return values, ids
    whole = v - v % block
    blocks = logits[:, :whole].reshape(n, -1, block)
    chosen = blocks.amax(-1).topk(k, dim=-1).indices
    ids = (chosen[..., None] * block + torch.arange(block, device=logits.device)).flatten(1)
    tail = torch.arange(whole, v, device=logits.device).expand(n, -1)
    ids = torch.cat([ids, tail], dim=1)
    values, places = logits.gather(1, ids).topk(k, dim=-1)
    return values, ids.gather(1, places)


def entropy_of(logprobs: torch.Tensor) -> torch.Tensor:
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    if torch.isfinite(entropy).all():
        return entropy
    # 0 * -inf is NaN: a token that is ruled out adds nothing to the entropy.
    return -(logprobs.exp() * logprobs.clamp_min(-1e4)).sum(-1)


def _check_finite(peak: torch.Tensor, rows: range, reads: Reads) -> None:
    bad = (~torch.isfinite(peak)).nonzero().flatten()
    if len(bad):
        first = rows.start + int(bad[0])
        starts = reads.starts or reads.roots
        raise NotFinite(max(b for b, start in enumerate(starts) if start <= first))


def _labels(
    read: torch.Tensor, argmax: torch.Tensor, reads: Reads
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    hit = argmax.cpu().numpy()[reads.position] == np.asarray(reads.token)
    total = np.zeros(sum(reads.n_labels))
    misses = np.zeros(sum(reads.n_labels), dtype=np.int64)
    np.add.at(total, reads.label, read.cpu().double().numpy())
    np.add.at(misses, reads.label, ~hit)
    return total.astype(np.float32), misses == 0


def _first_tokens(reads: Reads) -> NDArray[np.int32]:
    first = np.zeros(sum(reads.n_labels), dtype=np.int32)
    # A label's first read comes first, so filling in reverse order leaves it standing.
    first[list(reversed(reads.label))] = list(reversed(reads.token))
    return first


def nuclei(logprobs: torch.Tensor, top_logprobs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes and entropies at every level: [B, 4] each.

    Most distributions keep 95 % of their mass in the stored tokens; of the others, no more tokens
    are sorted than hold it.
    """
    sizes, entropies = _nuclei_of_sorted(top_logprobs)
    flat = (top_logprobs.exp().sum(-1) < _ENOUGH).nonzero().flatten()
    for row in flat.tolist():
        heavy = _sorted(_heaviest(logprobs[row]))
        sizes[row], entropies[row] = (x[0] for x in _nuclei_of_sorted(heavy[None]))
    return sizes, entropies


def _heaviest(logprobs: torch.Tensor) -> torch.Tensor:
    """The tokens above some probability that hold more than the largest nucleus together."""
    for least in (1e-5, 1e-6, 0.01 / len(logprobs)):  # without the last, less than 1 % is left
        heavy = logprobs[logprobs > math.log(least)]
        if heavy.exp().sum() > _ENOUGH:
            return heavy
    return logprobs


def _sorted(values: torch.Tensor) -> torch.Tensor:
    """In descending order; numpy sorts floats several times faster than torch on a CPU."""
    if values.device.type != "cpu":
        return values.sort(descending=True).values
    return torch.from_numpy(-np.sort(-values.numpy()))


def _nuclei_of_sorted(logprobs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = logprobs.exp()
    before = p.cumsum(-1) - p
    information = (-p * logprobs.clamp_min(-1e4)).cumsum(-1)
    mass = before + p
    sizes, entropies = [], []
    for level in NUCLEUS_LEVELS:
        n = (before < level).sum(-1)
        inside, bits = (x.gather(1, n[:, None] - 1)[:, 0] for x in (mass, information))
        sizes.append(n)
        # H of p / m is (sum -p ln p) / m + ln m; rounding may leave -0.0 for one token.
        entropies.append((bits / inside + inside.log()).clamp_min(0.0))
    return torch.stack(sizes, -1).int(), torch.stack(entropies, -1)
