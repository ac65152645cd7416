"""The loop: the model's own greedy tokens, and measures as a loop over whole passes gives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import entropy as scipy_entropy

from lm_eval_semsoft.core.uncertainty import NUCLEUS_LEVELS, TOP_KS
from lm_eval_semsoft.engine.forward import NaNLogits
from lm_eval_semsoft.engine.generate import Generator
from lm_eval_semsoft.engine.stop import Stop
from lm_eval_semsoft.engine.trace import Trace, settled

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = "Read the comment and name the emotion that the writer feels. Answer with one word.\n"
Tokens = tuple[int, ...]


def prompts_of(tiny: Any, comments: Sequence[str]) -> list[Tokens]:
    """Two in three share a beginning; their lengths differ."""
    texts = [HEAD * (i % 3 > 0) + comment for i, comment in enumerate(comments)]
    return [tuple(tiny.tokenizer(text)["input_ids"]) for text in texts]


def generator_of(tiny: Any, **arguments: Any) -> Generator:
    return Generator(tiny.model, tiny.tokenizer.decode, **arguments)


def end_of(tiny: Any) -> Stop:
    return Stop(frozenset([tiny.model.generation_config.eos_token_id]))


def greedy(model: Any, prompt: Tokens, n: int) -> list[int]:
    given = torch.tensor([prompt])
    out = model.generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=n,
        do_sample=False,
        pad_token_id=0,
    )
    return [int(token) for token in out[0, len(prompt) :]]


def nucleus(logprobs: np.ndarray, level: float) -> tuple[int, float]:
    """Token by token, until the level is reached."""
    ordered = np.sort(np.exp(logprobs))[::-1]
    size, mass = 0, 0.0
    while mass < level:
        mass += ordered[size]
        size += 1
    return size, float(scipy_entropy(ordered[:size]))


@torch.inference_mode()
def check_measures(model: Any, prompt: Tokens, trace: Trace) -> None:
    """Against the full-vocabulary log-softmax of one whole pass of the unbatched model."""
    ids = torch.tensor([[*prompt, *trace.tokens.tolist()]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double().numpy()
    for t, logprobs in enumerate(log_softmax(logits, axis=-1)):
        ordered = np.sort(logprobs)[::-1]
        assert trace.logprobs[t] == pytest.approx(logprobs[trace.tokens[t]], abs=1e-4)
        assert trace.top_logprobs[t] == pytest.approx(ordered[0], abs=1e-4)
        assert trace.entropy[t] == pytest.approx(scipy_entropy(np.exp(logprobs)), abs=1e-4)
        for i, k in enumerate(TOP_KS):
            expected = scipy_entropy(np.exp(ordered[:k]))
            assert trace.topk_entropies[t, i] == pytest.approx(expected, abs=1e-4)
        for i, level in enumerate(NUCLEUS_LEVELS):
            size, entropy = nucleus(logprobs, level)
            assert trace.nucleus_sizes[t, i] == size
            assert trace.nucleus_entropies[t, i] == pytest.approx(entropy, abs=1e-4)
    assert trace.vocabulary == logits.shape[1]


@pytest.mark.parametrize("sharing", [True, False])
def test_tokens_are_the_models_own_in_batches_of_any_size(
    tiny: Any, comments: tuple[str, ...], sharing: bool
) -> None:
    """More tokens than the sliding models' window of 16 holds, too."""
    given = prompts_of(tiny, comments)[:7]
    expected = [greedy(tiny.model, prompt, 24) for prompt in given]
    generator = generator_of(tiny, prefix_sharing=sharing)
    assert generator.able() == (tiny.name != "mamba")
    for size in (1, 3, 64):
        done: list[int] = []
        found = {
            i: tokens
            for i, tokens, _ in generator.generate(
                given, 24, end_of(tiny), size, done.append, measured=False
            )
        }
        assert [found[i] for i in range(len(given))] == expected
        assert sum(done) == len(given)


def test_measures_are_those_of_whole_passes(tiny: Any, comments: tuple[str, ...]) -> None:
    given = prompts_of(tiny, comments)[:5]
    for size in (1, 3):
        for i, tokens, trace in generator_of(tiny).generate(given, 6, end_of(tiny), size):
            assert trace is not None
            assert trace.tokens.tolist() == tokens
            check_measures(tiny.model, given[i], trace)


def test_order_and_neighbours_change_nothing(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    tiny = tiny_model("gemma3")
    given = prompts_of(tiny, comments)
    alone = [next(generator_of(tiny).generate([p], 12, end_of(tiny))) for p in given]
    order = np.random.default_rng(0).permutation(len(given))
    shuffled = generator_of(tiny).generate([given[i] for i in order], 12, end_of(tiny), 4)
    for place, tokens, trace in shuffled:
        _, expected, other = alone[order[place]]
        assert tokens == expected
        assert trace is not None
        assert other is not None
        np.testing.assert_allclose(trace.entropy, other.entropy, atol=1e-4)
        np.testing.assert_allclose(trace.logprobs, other.logprobs, atol=1e-4)


def test_rows_are_as_long_as_they_must(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    """Answers that end at once make room; others go on to the last token allowed."""
    tiny = tiny_model("llama")
    given = prompts_of(tiny, comments)
    whole = [greedy(tiny.model, prompt, 30) for prompt in given]
    ends = frozenset(answer[0] for answer in whole[:3]) | {answer[-1] for answer in whole}
    lasts = [next((i for i, t in enumerate(answer) if t in ends), 29) for answer in whole]
    assert len(set(lasts)) > 2
    expected = [answer[: last + 1] for answer, last in zip(whole, lasts, strict=True)]
    found = {i: t for i, t, _ in generator_of(tiny).generate(given, 30, Stop(ends), 3)}
    assert [found[i] for i in range(len(given))] == expected


def test_long_prompts_that_grow_past_the_room(tiny_model: Callable[[str], Any]) -> None:
    """The longest prompt comes last, when shorter ones are already being answered."""
    tiny = tiny_model("gemma3")
    rng = np.random.default_rng(1)
    given = [tuple(map(int, rng.integers(10, 400, n))) for n in (30, 25, 20, 300, 90, 9)]
    given[3:5] = [given[0][:10] + given[3], given[0][:10] + given[4]]
    expected = [greedy(tiny.model, prompt, 80) for prompt in given]
    generator = generator_of(tiny)
    found = {i: t for i, t, _ in generator.generate(given, 80, end_of(tiny), 2)}
    assert [found[i] for i in range(len(given))] == expected


def test_a_lack_of_memory_makes_batches_smaller(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_model("llama")
    given = prompts_of(tiny, comments)
    expected = [greedy(tiny.model, prompt, 12) for prompt in given]
    generator = generator_of(tiny)
    assert generator.able()
    run, most = tiny.model.forward, [6, 4, 3, 2]

    def forward(**inputs: Any) -> Any:
        if len(most) > 1 and len(inputs["input_ids"]) > most[0]:
            most.pop(0)
            raise torch.OutOfMemoryError("a test")
        return run(**inputs)

    monkeypatch.setattr(tiny.model, "forward", forward)
    found = {i: t for i, t, _ in generator.generate(given, 12, end_of(tiny), 8)}
    assert [found[i] for i in range(len(given))] == expected
    assert len(most) < 4


@pytest.mark.parametrize("name", ["qwen3", "mamba"])
def test_broken_logits_name_their_prompt(name: str, fresh_tiny_model: Callable[[str], Any]) -> None:
    tiny = fresh_tiny_model(name)
    given = [(9, 10, 11), (9, 10, 12), (9, 10, 13)]
    with torch.no_grad():
        tiny.model.get_input_embeddings().weight[12] = torch.nan
        if name == "qwen3":  # whose head is the same matrix
            tiny.model.lm_head.weight = torch.nn.Parameter(
                tiny.model.lm_head.weight.nan_to_num().clone()
            )
    for measured in (True, False):
        with pytest.raises(NaNLogits) as error:
            list(generator_of(tiny).generate(given, 3, Stop(), 3, measured=measured))
        assert error.value.index == 1


def test_traces_are_json(tiny_model: Callable[[str], Any]) -> None:
    tiny = tiny_model("gpt2")
    ((_, _, trace),) = generator_of(tiny).generate([(5, 6, 7)], 5, Stop())
    assert trace is not None
    again = Trace.from_json(json.loads(json.dumps(trace.to_json())))
    for name, value in vars(trace).items():
        np.testing.assert_array_equal(getattr(again, name), value)
        assert np.asarray(getattr(again, name)).dtype == np.asarray(value).dtype


# -- where tokens end --------------------------------------------------------------------------


def common(a: str, b: str) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@pytest.mark.parametrize("name", ["qwen3", "llama"])
@pytest.mark.parametrize(
    "text",
    ["", "joy", "The feeling is joy. \U0001f600\U0001f600} naïve \u4f60\u597d} the end of it all",
     "\ufffd\ufffd a real replacement character \ufffd" * 3, "   spaces   and\n\nlines  " * 4],
)  # fmt: skip
def test_tokens_end_where_the_text_is_settled(
    name: str, text: str, tiny_model: Callable[[str], Any]
) -> None:
    tokenizer = tiny_model(name).tokenizer
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer.decode(tokens)
    expected = [common(tokenizer.decode(tokens[: t + 1]), whole) for t in range(len(tokens))]
    found = settled(tokens, tokenizer.decode).tolist()
    assert found == list(np.maximum.accumulate(np.array(expected, dtype=int)))
    assert found[-1:] == [len(whole)] * bool(tokens)


def test_random_tokens_end_where_the_text_is_settled(tiny_model: Callable[[str], Any]) -> None:
    """Most of these are pieces of characters that never come to an end."""
    rng = np.random.default_rng(0)
    for name in ("qwen3", "llama"):
        tokenizer = tiny_model(name).tokenizer
        for _ in range(20):
            tokens = rng.integers(0, len(tokenizer), 40).tolist()
            whole = tokenizer.decode(tokens)
            texts = [tokenizer.decode(tokens[: t + 1]) for t in range(40)]
            expected = np.maximum.accumulate([common(text, whole) for text in texts])
            np.testing.assert_array_equal(settled(tokens, tokenizer.decode), expected)


def test_a_decoder_that_looks_far_back_is_read_whole() -> None:
    def decode(tokens: Sequence[int]) -> str:
        return "".join("ab"[(sum(tokens[:i]) + t) % 2] for i, t in enumerate(tokens))

    tokens = np.random.default_rng(0).integers(0, 5, 40).tolist()
    np.testing.assert_array_equal(settled(tokens, decode), range(1, 41))


def test_a_cut_keeps_the_tokens_that_reach_into_it() -> None:
    n = 5
    trace = Trace(
        tokens=np.arange(n, dtype=np.int32),
        logprobs=np.zeros(n, np.float32),
        top_logprobs=np.zeros(n, np.float32),
        entropy=np.zeros(n, np.float32),
        topk_entropies=np.zeros((n, 5), np.float32),
        nucleus_sizes=np.zeros((n, 4), np.int32),
        nucleus_entropies=np.zeros((n, 4), np.float32),
        ends=np.array([3, 3, 6, 8, 8], dtype=np.int32),
        vocabulary=10,
    )
    cut = trace.cut(0, 5)  # the second token settles nothing, the third reaches beyond the end
    assert cut.tokens.tolist() == [0, 1, 2]
    assert cut.ends.tolist() == [3, 3, 5]
    assert trace.cut(4, 7).tokens.tolist() == [2, 3]
    assert trace.cut(4, 7).ends.tolist() == [2, 3]
    assert len(trace.cut(0, 0)) == 0
    assert trace.cut(0, 8).tokens.tolist() == [0, 1, 2, 3]
