"""The passes: what may be packed, what is held in memory, and what happens when it runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lm_eval_semsoft.engine import forward
from lm_eval_semsoft.engine.forward import Engine, limits_for
from lm_eval_semsoft.engine.plan import Group, Limits, Prompt, batches
from lm_eval_semsoft.engine.readout import Readout

LABELS = ((5, 6, 7), (5, 8), (9,))


def prompts(n: int = 6, shared: int = 80) -> list[Prompt]:
    generator = torch.Generator().manual_seed(0)
    head = torch.randint(10, 400, (shared,), generator=generator).tolist()
    return [
        Prompt((*head, *torch.randint(10, 400, (3 + i,), generator=generator).tolist()), LABELS)
        for i in range(n)
    ]


def label_logprobs(engine: Engine, given: list[Prompt], batch_size: int = 2) -> np.ndarray:
    found = dict(engine.read(given, batch_size))
    return np.stack([found[i].label_logprobs for i in range(len(given))])


def test_many_leaves_are_run_in_several_passes(tiny_model: Callable[[str], Any]) -> None:
    model = tiny_model("llama").model
    engine = Engine(model, prefix_sharing=False)
    many = [Prompt((1, 2, 3), tuple((i, i + 1, i + 2) for i in range(20, 60)))]
    with torch.inference_mode():
        whole = engine._plain_pass(many).logits
        sliced = engine._plain_pass(many, most_tokens=12).logits
    torch.testing.assert_close(whole, sliced, atol=1e-4, rtol=0)


def test_rope_that_looks_at_the_longest_position_is_not_packed() -> None:
    """Phi-3's longrope, dynamic NTK: prefix keys would be turned by other frequencies."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=420, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    assert "longest position" in str(Engine(model)._why_not_packable())


def test_tokens_before_the_prompt_do_not_move_the_answer(
    fresh_tiny_model: Callable[[str], Any],
) -> None:
    """As prompt-tuned adapters do: hidden states of five virtual tokens come first."""
    tiny = fresh_tiny_model("llama")
    given = prompts(3)
    expected = label_logprobs(Engine(tiny.model), given)

    def with_virtual_tokens(_: Any, arguments: Any, output: Any) -> Any:
        hidden = output.last_hidden_state
        noise = torch.full_like(hidden[:, :5], 7.0)
        output.last_hidden_state = torch.cat([noise, hidden], dim=1)
        return output

    tiny.model.model.register_forward_hook(with_virtual_tokens)
    for sharing in (True, False):
        got = label_logprobs(Engine(tiny.model, prefix_sharing=sharing), given)
        np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("sharing", [True, False])
def test_lack_of_memory_halves_the_batch(
    sharing: bool,
    tiny_model: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, given = tiny_model("llama").model, prompts(9)
    expected = label_logprobs(Engine(model, sharing), given, 32)
    read_batch, sizes = forward.read_batch, []

    def tight(logits: Any, reads: Any, top_k: int) -> list[Readout]:
        sizes.append(len(reads.roots))
        if len(reads.roots) > 2:
            raise torch.OutOfMemoryError("pretended")
        return read_batch(logits, reads, top_k)

    monkeypatch.setattr(forward, "read_batch", tight)
    got = label_logprobs(Engine(model, sharing), given, 32)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert sizes[:3] == [9, 4, 2]
    assert max(sizes[3:]) <= 2  # later batches are not tried too large again
    assert caplog.text.count("Out of memory") == 2


def test_one_document_that_does_not_fit_is_an_error(
    tiny_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise torch.OutOfMemoryError("pretended")

    monkeypatch.setattr(forward, "read_batch", never)
    with pytest.raises(torch.OutOfMemoryError):
        list(Engine(tiny_model("llama").model).read(prompts(2), 4))


def test_long_prefixes_bound_the_batch() -> None:
    """Every document of a batch reads the keys of the whole prefix in every layer."""
    given = prompts(200, shared=4000)
    group = Group(4000, tuple(range(200)))
    limits = limits_for(given, 1)
    for batch in batches(given, group, limits):
        keys = sum(len(given[i].tokens) + given[i].trie.n_extra for i in batch)
        assert len(batch) == 1 or keys <= 4 * limits.tokens


def test_plain_batches_count_a_row_per_leaf() -> None:
    given = prompts(10, shared=10)
    leaves = len(given[0].trie.leaves)
    for batch in batches(given, Group(0, tuple(range(10))), Limits(120, 99), packed=False):
        widest = max(len(given[i].tokens) for i in batch) + 2
        assert len(batch) == 1 or len(batch) * leaves * widest <= 120


def test_unknown_attention_inputs_are_refused() -> None:
    q = torch.zeros(1, 2, 3, 4)
    layout = forward._layout_of([Prompt((1, 2, 3), ((1,),))], 0, {}, torch.device("cpu"))
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    with forward._packed(layout):
        forward.packed_attention(module, q, q, q, None)
        with pytest.raises(forward.NotPackable, match="mask of its own"):
            forward.packed_attention(module, q, q, q, torch.zeros(1, 1, 3, 3))
        with pytest.raises(forward.NotPackable, match="sinks"):
            forward.packed_attention(module, q, q, q, None, sinks=torch.zeros(2))


@pytest.mark.parametrize("rows", [700, 1024, 5000])  # vocabularies of less and more than a chunk
@pytest.mark.parametrize("bias", [True, False])
def test_a_half_precision_head_works_in_fp32(rows: int, bias: bool) -> None:
    head = torch.nn.Linear(48, rows, bias=bias).to(torch.bfloat16)
    hidden = torch.randn(2, 5, 48).to(torch.bfloat16)
    with torch.inference_mode(), forward.answers_only(head, 5, [0, 1, 1], [4, 2, 4]):
        logits = head(hidden)
    chosen = hidden[[0, 1, 1], [4, 2, 4]].double().numpy()
    expected = chosen @ head.weight.detach().double().numpy().T
    if bias:
        expected += head.bias.detach().double().numpy()
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(logits[0], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_self_check_tells_noise_from_mistakes(
    name: str,
    dtype: torch.dtype,
    fresh_tiny_model: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = fresh_tiny_model(name)
    tiny.model.to(dtype)
    assert Engine(tiny.model)._why_not_packable() is None
    build = forward._visibility

    def blind(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        visible, positions = build(*arguments)
        return torch.eye(visible.shape[1], dtype=torch.bool).expand_as(visible), positions

    monkeypatch.setattr(forward, "_visibility", blind)
    assert "differs by" in str(Engine(tiny.model)._why_not_packable())
