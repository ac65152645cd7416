"""What logits tell about the next token, as numbers: the columns of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_semsoft.core.uncertainty import NUCLEUS_LEVELS, TOP_KS

from .readout import NotFinite, entropy_of, nuclei, slices_of, top_k_of
from .trace import Decode, Trace, settled

Measures = NDArray[np.float32]
# Logits [n, V], and which token (answer, number) each row is for -> the token of each, and what
# the rows tell.
Pick = Callable[[torch.Tensor, Sequence[tuple[int, int]]], tuple[list[int], Measures | None]]

_K, _N = len(TOP_KS), len(NUCLEUS_LEVELS)


def choose(logits: torch.Tensor, measured: bool = True) -> tuple[list[int], Measures | None]:
    """The most probable token of each row of the logits [n, V], and what the rows tell.

    The measures are [n, 3 + K + 2 N] float32: the log-probabilities of the chosen and of the most
    probable token, entropy, top-k entropies, nucleus entropies and sizes; None if not `measured`.

    Raises:
        NotFinite: some logits of a row are NaN, or none is above -inf.
    """
    if not measured:
        peak, ids = logits.max(-1)
        _check(peak, 0)
        return ids.tolist(), None
    ids, columns = logits.argmax(-1), []
    for rows in slices_of(logits):
        own = slice(rows.start, rows.stop)
        columns.append(_measure(logits[own], ids[own], rows.start))
    return ids.tolist(), torch.cat(columns).cpu().numpy()


def _measure(logits: torch.Tensor, ids: torch.Tensor, first: int) -> torch.Tensor:
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    top = top_k_of(logprobs, min(TOP_KS[-1], logprobs.shape[1]))[0]
    _check(top[:, 0], first)
    sizes, entropies = nuclei(logprobs, top)
    columns = [logprobs.gather(1, ids[:, None]), top[:, :1], entropy_of(logprobs)[:, None],
               _top_k_entropies(top), entropies, sizes]  # fmt: skip
    return torch.cat(columns, dim=1)


def _check(peak: torch.Tensor, first: int) -> None:
    bad = (~torch.isfinite(peak)).nonzero().flatten()
    if len(bad):
        raise NotFinite(first + int(bad[0]))


def _top_k_entropies(top: torch.Tensor) -> torch.Tensor:
    """[n, 5] from the largest log-probabilities [n, K], in order: renormalised entropies."""
    p = top.exp()
    last = torch.tensor([min(k, top.shape[1]) - 1 for k in TOP_KS], device=top.device)
    mass = p.cumsum(-1)[:, last]
    information = (-p * top.clamp_min(-1e4)).cumsum(-1)[:, last]
    # H of p / m is (sum -p ln p) / m + ln m; rounding may leave -0.0 for one token.
    return (information / mass + mass.log()).clamp_min(0.0)


def trace_of(
    tokens: Sequence[int], measures: Sequence[Measures], vocabulary: int, decode: Decode
) -> Trace:
    """A trace from the rows [3 + K + 2 N] of its tokens, as `choose` gives them."""
    table = np.array(measures, dtype=np.float32).reshape(len(tokens), 3 + _K + 2 * _N)
    own, top, entropy, *parts = np.split(table, (1, 2, 3, 3 + _K, 3 + _K + _N), axis=1)
    return Trace(
        tokens=np.array(tokens, dtype=np.int32),
        logprobs=own[:, 0],
        top_logprobs=top[:, 0],
        entropy=entropy[:, 0],
        topk_entropies=parts[0],
        nucleus_entropies=parts[1],
        nucleus_sizes=parts[2].astype(np.int32),
        ends=settled(tokens, decode),
        vocabulary=vocabulary,
    )
