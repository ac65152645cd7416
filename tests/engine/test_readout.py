"""Readouts against loops over the full distribution."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import entropy as scipy_entropy

from lm_eval_semsoft.engine.readout import (
    NUCLEUS_LEVELS,
    NotFinite,
    Readout,
    Reads,
    read_batch,
    top_k_of,
)

READS = Reads(
    position=[0, 0, 1, 2, 2, 3],
    token=[4, 6, 7, 4, 6, 7],
    label=[0, 1, 1, 2, 3, 3],
    n_labels=[2, 2],
    roots=[0, 2],
)


def logits(v: int = 50, scale: float = 3.0, n: int = 4) -> torch.Tensor:
    return torch.randn(n, v, generator=torch.Generator().manual_seed(1)) * scale


def brute_nucleus(logp: np.ndarray, level: float) -> tuple[int, float]:
    p = np.sort(np.exp(logp))[::-1]
    kept, mass = [], 0.0
    for value in p:
        if mass >= level:
            break
        kept.append(value)
        mass += value
    return len(kept), float(scipy_entropy(kept))


@pytest.mark.parametrize("scale", [0.01, 3.0, 30.0])
@pytest.mark.parametrize("top_k", [3, 50])
def test_readout_equals_loops(scale: float, top_k: int) -> None:
    x = logits(scale=scale)
    logp = log_softmax(x.double().numpy(), axis=-1)
    got = read_batch(x, READS, top_k)
    for row, root in enumerate(READS.roots):
        readout, full = got[row], logp[root]
        order = np.argsort(-full)[:top_k]
        assert readout.topk_ids.tolist() == order.tolist()
        np.testing.assert_allclose(readout.topk_logprobs, full[order], atol=1e-4)
        assert readout.entropy == pytest.approx(scipy_entropy(np.exp(full)), abs=1e-4)
        for i, level in enumerate(NUCLEUS_LEVELS):
            size, nats = brute_nucleus(full, level)
            assert abs(readout.nucleus_sizes[i] - size) <= (1 if scale < 0.1 else 0)
            assert readout.nucleus_entropies[i] == pytest.approx(nats, abs=2e-2)
        expected = [full[4], full[6] + logp[root + 1][7]]
        np.testing.assert_allclose(readout.label_logprobs, expected, atol=1e-4)
        assert readout.label_first.tolist() == [4, 6]
        assert readout.argmax == int(full.argmax())


def test_greedy_needs_every_token_to_be_the_most_probable() -> None:
    x = torch.zeros(4, 10)
    x[0, 6] = x[1, 7] = x[2, 6] = x[3, 8] = 5.0
    first, second = read_batch(x, READS, 5)
    assert first.label_greedy.tolist() == [False, True]
    assert second.label_greedy.tolist() == [False, False]


@pytest.mark.parametrize("v", [1000, 1003])
@pytest.mark.parametrize("k", [1, 7, 15])
def test_blockwise_top_k_equals_topk(v: int, k: int) -> None:
    x = torch.randn(6, v, generator=torch.Generator().manual_seed(k))
    x[0, :] = x[0, 0]  # all ties
    x[1, -1] = 9.0  # in the tail beyond the last whole block
    values, ids = top_k_of(x, k)
    torch.testing.assert_close(values, x.topk(k).values)
    torch.testing.assert_close(x.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_ruled_out_tokens_are_no_trouble() -> None:
    x = logits()
    x[:, 10:] = float("-inf")
    for readout in read_batch(x, READS, 50):
        assert np.isfinite(readout.entropy)
        assert np.isfinite(readout.nucleus_entropies).all()
        assert readout.nucleus_sizes.max() <= 10


@pytest.mark.parametrize(("row", "document"), [(0, 0), (1, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_logits_name_their_document(row: int, document: int, value: float) -> None:
    x = logits()
    x[row, 3] = value
    with pytest.raises(NotFinite) as error:
        read_batch(x, READS, 5)
    assert error.value.row == document


def test_json_round_trip() -> None:
    readout = read_batch(logits(), READS, 5)[0]
    back = Readout.from_json(json.loads(json.dumps(readout.to_json())))
    for name, value in vars(readout).items():
        np.testing.assert_array_equal(getattr(back, name), value)
        if isinstance(value, np.ndarray):
            assert getattr(back, name).dtype == value.dtype
