"""Captured activations are those of an unbatched model that returns all hidden states."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lm_eval_semsoft.engine.capture import Capture, decoder_blocks
from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.engine.plan import Prompt

LABELS = ((5, 6, 7), (5, 8), (9,))
AFTER_LEAD = ((4, 6, 7), (4, 8), (4, 9, 10))


def prompts() -> list[Prompt]:
    """Of several lengths, with a shared beginning; one has its answer after a lead."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randint(10, 400, (70,), generator=generator).tolist()
    made = []
    for i in range(5):
        own = torch.randint(10, 400, (2 + 3 * i,), generator=generator).tolist()
        made.append(Prompt((*head, *own), LABELS))
    return [*made, Prompt(made[0].tokens, AFTER_LEAD, lead=1)]


def whole(model: Any, prompt: Prompt) -> list[np.ndarray]:
    """Hidden states of one prompt alone after every block, the last one after the final norm."""
    tokens = [*prompt.tokens, *prompt.labels[0][: prompt.lead]]
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    if "Mamba" in type(model).__name__:  # after every block, and the last one normed once more
        states = (None, *states[:-2], states[-1])
    return [state[0, -1].float().numpy() for state in states[1:]]


def normed(model: Any, hidden: np.ndarray) -> np.ndarray:
    """What transformers gives for the last block: its output after the final norm."""
    inner = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    for name in ("norm", "ln_f", "final_layer_norm", "norm_f"):
        if (norm := getattr(inner, name, None)) is not None:
            with torch.inference_mode():
                return np.asarray(norm(torch.tensor(hidden)[None]))[0]
    raise AssertionError(f"no final norm in {type(inner).__name__}")


@pytest.mark.parametrize("sharing", [True, False])
def test_activations_equal_those_of_the_unbatched_model(tiny: Any, sharing: bool) -> None:
    engine = Engine(tiny.model, prefix_sharing=sharing, capture=True)
    given = prompts()
    found = dict(engine.read(given, batch_size=4))
    for i, prompt in enumerate(given):
        hidden = found[i].hidden
        assert hidden is not None
        assert hidden.dtype == np.float16
        *layers, last = whole(tiny.model, prompt)
        own = hidden.astype(np.float32)
        assert own.shape == (len(layers) + 1, len(last))
        ours = [*own[:-1], normed(tiny.model, own[-1])]
        for mine, theirs in zip(ours, [*layers, last], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())


def test_capturing_does_not_change_a_readout(tiny: Any) -> None:
    given = prompts()
    plain, captured = (dict(Engine(tiny.model, capture=c).read(given, 4)) for c in (False, True))
    for i in plain:
        assert plain[i].hidden is None
        np.testing.assert_array_equal(plain[i].topk_logprobs, captured[i].topk_logprobs)
        np.testing.assert_array_equal(plain[i].label_logprobs, captured[i].label_logprobs)


def test_rows_of_one_prompt_in_several_passes(tiny_model: Callable[[str], Any]) -> None:
    model = tiny_model("llama").model
    engine = Engine(model, prefix_sharing=False, capture=True)
    many = [Prompt((1, 2, 3), tuple((i, i + 1, i + 2) for i in range(20, 60))), *prompts()[:2]]
    with torch.inference_mode():
        once, sliced = engine._plain_pass(many).hidden, engine._plain_pass(many, 160).hidden
    assert once is not None
    assert sliced is not None
    assert once.shape == (3, *engine.capture.shape)
    torch.testing.assert_close(once.float(), sliced.float(), rtol=2e-3, atol=2e-3)


def test_only_the_answer_position_is_kept(tiny_model: Callable[[str], Any]) -> None:
    """However long the prompt is, a readout's activations own their memory, and it is small."""
    engine = Engine(tiny_model("llama").model, capture=True)
    (readout,) = dict(engine.read([prompts()[-2]])).values()
    layers, width = engine.capture.shape
    assert readout.hidden.base is None
    assert readout.hidden.nbytes == 2 * layers * width


def test_no_hook_is_left_behind(tiny_model: Callable[[str], Any]) -> None:
    model = tiny_model("gpt2").model
    before = [dict(block._forward_hooks) for block in decoder_blocks(model)]
    list(Engine(model, capture=True).read(prompts(), 2))
    assert before == [dict(block._forward_hooks) for block in decoder_blocks(model)]


def test_what_float16_cannot_hold_is_clipped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    block = nn.Identity()
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=2)
    model = SimpleNamespace(config=config, get_decoder=lambda: nn.ModuleList([block]))
    kept = {0: torch.tensor([[1e6, -1.5], [-1e9, 0.0]])}
    with caplog.at_level(logging.WARNING):
        keeper = Capture(model)
        stacked = keeper.stacked(kept)
        keeper.stacked(kept)
    assert caplog.text.count("larger than float16") == 1
    assert stacked.tolist() == [[[65504.0, -1.5]], [[-65504.0, 0.0]]]


def test_a_model_without_blocks_is_refused() -> None:
    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=7, hidden_size=2))
    with pytest.raises(ValueError, match="7 blocks of SimpleNamespace cannot be found"):
        Capture(model)
