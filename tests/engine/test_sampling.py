"""Drawn tokens: their distribution against the softmax, and what they depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lm_eval_semsoft.engine.forward import NaNLogits
from lm_eval_semsoft.engine.generate import Generator
from lm_eval_semsoft.engine.readout import NotFinite
from lm_eval_semsoft.engine.sampling import Sampling, draw, gumbels
from lm_eval_semsoft.engine.stop import Stop

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = "Read the comment and name the emotion that the writer feels. Answer with one word.\n"
Tokens = tuple[int, ...]
WAYS = (
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(top_k=5),
    Sampling(top_p=0.8),
    Sampling(temperature=1.5, top_k=20, top_p=0.9),
)
KINDS = ("gemma2", "qwen3", "opt", "bloom", "mamba")  # the last does not go through our loop
#: Some tiny models are so sure of themselves that at 1 they say the same in every sample.
FLAT = Sampling(temperature=4.0, top_k=100, top_p=0.95)


def prompts_of(tiny: Any, comments: Sequence[str]) -> list[Tokens]:
    """Two in three share a beginning that is long enough to be run by itself."""
    texts = [HEAD * 5 * (i % 3 > 0) + comment for i, comment in enumerate(comments)]
    return [tuple(tiny.tokenizer(text)["input_ids"]) for text in texts]


def generator_of(tiny: Any, **arguments: Any) -> Generator:
    return Generator(tiny.model, tiny.tokenizer.decode, **arguments)


def seeds_of(n: int, run: int = 0) -> list[bytes]:
    return [run.to_bytes(8, "big") + i.to_bytes(8, "big") for i in range(n)]


def cut(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """[V] probabilities, token by token."""
    logits = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        allowed = [i for i in order if logits[i] >= logits[order[sampling.top_k - 1]]]
    else:
        allowed = list(order)
    p = np.zeros(len(logits))
    p[allowed] = softmax(logits[allowed])
    kept, mass = np.zeros(len(logits)), 0.0
    for i in allowed:
        kept[i] = p[i]
        mass += p[i]
        if mass >= sampling.top_p:
            break
    return kept / kept.sum()


def check_frequencies(tokens: Sequence[int], p: np.ndarray) -> None:
    """Pearson's test, rare tokens (expected fewer than 5 times) together."""
    counts = np.bincount(tokens, minlength=len(p))
    assert not counts[p == 0].any()
    expected = p * len(tokens)
    often = expected >= 5
    seen, due = counts[often], expected[often]
    if (rest := expected[~often].sum()) > 1:
        seen, due = np.append(seen, counts[~often].sum()), np.append(due, rest)
    if len(due) == 1:
        return
    assert chisquare(seen, due * seen.sum() / due.sum()).pvalue > 1e-3


@torch.inference_mode()
def next_logits(model: Any, tokens: Sequence[int]) -> np.ndarray:
    return model(input_ids=torch.tensor([tokens])).logits[0, -1].double().numpy()


# -- one draw ----------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [1, 2, 5, 100, 1000])
def test_draws_follow_the_softmax(v: int) -> None:
    n = 20_000
    row = torch.randn(v, generator=torch.Generator().manual_seed(v)) * 2
    logits = row.expand(n, -1)
    tokens, logprobs = draw(logits, Sampling(), [(seed, 3) for seed in seeds_of(n, v)])
    check_frequencies(tokens, softmax(row.double().numpy()))
    expected = log_softmax(row.double().numpy())[tokens]
    np.testing.assert_allclose(logprobs[:, 0], expected, atol=1e-5)


def test_the_tokens_of_one_answer_are_independent() -> None:
    """Of 20,000 numbers in one answer, singly and in pairs of neighbours."""
    p = np.array([0.5, 0.3, 0.2])
    logits = torch.tensor(p).log().float().expand(20_000, -1)
    tokens, _ = draw(logits, Sampling(), [(b"s" * 16, t) for t in range(20_000)])
    check_frequencies(tokens, p)
    pairs = [3 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
    check_frequencies(pairs, np.outer(p, p).ravel())


@pytest.mark.parametrize("sampling", WAYS)
@pytest.mark.parametrize("v", [50, 3000, 70_000])
def test_the_support_is_that_of_transformers(sampling: Sampling, v: int) -> None:
    logits = torch.randn(3, v, generator=torch.Generator().manual_seed(v)) * 3
    logits[2] /= 30  # flat: the nucleus is larger than any top
    expected = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        expected = TopKLogitsWarper(sampling.top_k)(None, expected)
    if sampling.top_p < 1:
        expected = TopPLogitsWarper(sampling.top_p)(None, expected)
    found = sampling.scores(logits)
    # Where thousands of tokens are nearly as probable, sums in another order end a few apart.
    different = (torch.isfinite(found) != torch.isfinite(expected)).sum(-1)
    assert bool((different[:2] == 0).all())
    assert different[2] <= (v > 1000) * 5
    both = torch.isfinite(found) & torch.isfinite(expected)
    found, expected = (x - x.amax(-1, keepdim=True) for x in (found, expected))  # all that counts
    np.testing.assert_allclose(found[both], expected[both], atol=4e-6)  # of at most 40


def test_ties() -> None:
    """top_k keeps all that are as probable as the last; a nucleus no more than it needs."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    kept = torch.isfinite(Sampling(top_k=2).scores(logits))[0].tolist()
    assert kept == [False, True, True, True, True, False]
    even = torch.zeros(1, 8)
    assert torch.isfinite(Sampling(top_p=0.5).scores(even))[0].tolist() == [True] * 4 + [False] * 4
    assert torch.isfinite(Sampling(top_p=0.0).scores(even)).sum() == 1
    assert torch.isfinite(Sampling(top_k=99).scores(even)).all()


@pytest.mark.parametrize(
    "bad", [{"temperature": 0.0}, {"temperature": -1.0}, {"temperature": float("nan")},
            {"top_k": -1}, {"top_p": 1.2}, {"top_p": -0.1}]
)  # fmt: skip
def test_what_cannot_be_is_named(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))}="):
        Sampling(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", WAYS)
def test_broken_logits(broken: float, sampling: Sampling) -> None:
    logits = torch.zeros(3, 30)
    logits[1, 7] = broken
    with pytest.raises(NotFinite) as error:
        draw(logits, sampling, [(b"s" * 16, 0)] * 3)
    assert error.value.row == 1


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.zeros(2000, 30)
    logits[:, ::2] = float("-inf")
    for sampling in WAYS:
        tokens, _ = draw(logits, sampling, [(seed, 0) for seed in seeds_of(2000)])
        assert all(token % 2 for token in tokens)


@pytest.mark.parametrize("temperature", [1e-6, 1e-37, 1e-40, 1e-320])
@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.9}])
def test_near_a_temperature_of_0_tokens_are_greedy(temperature: float, cut: dict[str, Any]) -> None:
    logits = torch.randn((20, 300), generator=torch.Generator().manual_seed(0)) * 3
    logits[:, :10] = -torch.inf
    places = [(seed, 0) for seed in seeds_of(20)]
    tokens, logprobs = draw(logits, Sampling(temperature, **cut), places)
    assert tokens == logits.argmax(-1).tolist()
    assert np.isfinite(logprobs).all()


def test_noise_is_gumbel_and_never_the_same() -> None:
    noise = gumbels([(seed, t) for seed in seeds_of(50) for t in range(20)], 100)
    assert np.isfinite(noise).all()
    assert np.mean(noise) == pytest.approx(np.euler_gamma, abs=0.02)
    assert np.var(noise) == pytest.approx(np.pi**2 / 6, abs=0.04)
    assert len(np.unique(noise.astype(np.float64).sum(1))) == len(noise)
    np.testing.assert_array_equal(gumbels([(b"s" * 16, 4)], 7), gumbels([(b"s" * 16, 4)], 7))


def test_rounding_changes_hardly_any_draw() -> None:
    """Of a flat distribution over many tokens, with other noise in every logit."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 20_000, generator=rng) * 0.1
    places = [(seed, 0) for seed in seeds_of(400)]
    shaken = logits + torch.randn(logits.shape, generator=rng) * 1e-6
    assert draw(logits, Sampling(), places)[0] == draw(shaken, Sampling(), places)[0]


# -- the real path -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", WAYS)
def test_first_tokens_follow_the_cut_distribution(
    sampling: Sampling, tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    """20,000 samples of two prompts that share a prefix, many at once."""
    tiny = tiny_model("llama")
    given = prompts_of(tiny, comments)[1:3]
    prompts = given * 10_000
    found: dict[Tokens, list[int]] = {prompt: [] for prompt in given}
    sampled = generator_of(tiny).sample(
        prompts, seeds_of(len(prompts)), sampling, 1, Stop(), batch_size=4000
    )
    for index, tokens, _ in sampled:
        found[prompts[index]] += tokens
    for prompt, tokens in found.items():
        assert len(tokens) == 10_000
        assert len(set(tokens)) > 2
        check_frequencies(tokens, cut(next_logits(tiny.model, prompt), sampling))


@pytest.mark.parametrize("sharing", [True, False])
def test_second_tokens_follow_the_softmax_too(
    sharing: bool, tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    """After each of the most frequent first tokens, among rows of several lengths."""
    tiny = tiny_model("llama")
    given = prompts_of(tiny, comments)[:3]
    prompts = given * 4000
    generator = generator_of(tiny, prefix_sharing=sharing)
    found: dict[tuple[Tokens, int], list[int]] = {}
    for index, tokens, _ in generator.sample(
        prompts, seeds_of(len(prompts)), Sampling(temperature=0.7), 2, Stop(), batch_size=1000
    ):
        found.setdefault((prompts[index], tokens[0]), []).append(tokens[1])
    often = sorted(found.items(), key=lambda item: -len(item[1]))[:4]
    assert len(often[-1][1]) > 400
    for (prompt, first), second in often:
        logits = next_logits(tiny.model, (*prompt, first))
        check_frequencies(second, cut(logits, Sampling(temperature=0.7)))


def answers_of(
    generator: Generator,
    prompts: Sequence[Tokens],
    seeds: Sequence[bytes],
    stop: Stop,
    batch_size: int = 1,
    most: int = 12,
) -> dict[bytes, list[int]]:
    found = generator.sample(prompts, seeds, FLAT, most, stop, batch_size)
    return {seeds[i]: tokens for i, tokens, _ in found}


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_depends_on_its_prompt_and_seed_alone(
    name: str, tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    tiny = tiny_model(name)
    given = prompts_of(tiny, comments)[:5]
    prompts = [prompt for prompt in given for _ in range(4)]
    seeds = seeds_of(len(prompts))
    stop = Stop(frozenset(range(0, 480, 9)))  # so that answers leave at different times
    expected = answers_of(generator_of(tiny), prompts, seeds, stop)
    assert len({tuple(answer) for answer in expected.values()}) > 15
    assert len({len(answer) for answer in expected.values()}) > 2
    order = np.random.default_rng(0).permutation(len(prompts))
    for size, sharing in ((3, True), (16, False), (16, True)):
        generator = generator_of(tiny, prefix_sharing=sharing)
        mixed = [prompts[i] for i in order], [seeds[i] for i in order]
        assert answers_of(generator, *mixed, stop, size) == expected
    some = answers_of(generator_of(tiny), prompts[5:8], seeds[5:8], stop, 2)
    assert some == {seed: expected[seed] for seed in seeds[5:8]}
    others = answers_of(generator_of(tiny), prompts, seeds_of(20, run=1), stop)
    assert sum(a == b for a, b in zip(expected.values(), others.values(), strict=True)) < 5


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_logprobs_are_those_of_the_whole_distribution(
    name: str, tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    tiny = tiny_model(name)
    given = prompts_of(tiny, comments)[:3]
    prompts = [prompt for prompt in given for _ in range(3)]
    stop = Stop(frozenset(range(0, 480, 9)))
    ended = 0
    for i, tokens, logprobs in generator_of(tiny).sample(prompts, seeds_of(9), FLAT, 10, stop, 4):
        ids = torch.tensor([[*prompts[i], *tokens]])
        logits = tiny.model(input_ids=ids).logits[0, len(prompts[i]) - 1 : -1].double()
        expected = log_softmax(logits.numpy(), axis=-1)[range(len(tokens)), tokens]
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
        ended += tokens[-1] in stop.tokens
    assert ended > 2


def test_a_prompt_is_run_once(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At batch size 1, ten samples of each go on together."""
    tiny = tiny_model("qwen3")
    given = [tuple(tiny.tokenizer(comment)["input_ids"]) for comment in comments[:4]]
    prompts = [prompt for prompt in given for _ in range(10)]
    generator = generator_of(tiny)
    assert generator.able()
    run, shapes = tiny.model.forward, []

    def forward(**inputs: Any) -> Any:
        shapes.append(tuple(inputs["input_ids"].shape))
        return run(**inputs)

    monkeypatch.setattr(tiny.model, "forward", forward)
    found = list(generator.sample(prompts, seeds_of(40), Sampling(), 6, Stop()))
    assert len(found) == 40
    prefills = [shape for shape in shapes if shape[1] > 1]
    assert sorted(prefills) == sorted((1, len(prompt)) for prompt in given)
    assert [shape for shape in shapes if shape[1] == 1] == [(10, 1)] * 5 * 4
    # Where rows leave at different times, the next prompt's samples come one after the other.
    shapes.clear()
    stop = Stop(frozenset(range(0, 480, 5)))
    assert len(list(generator.sample(prompts, seeds_of(40), Sampling(), 20, stop))) == 40
    assert len([shape for shape in shapes if shape[1] > 1]) == 4
    assert max(rows for rows, _ in shapes) == 10


def test_a_lack_of_memory_parts_the_samples_of_a_prompt(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = tiny_model("llama")
    given = prompts_of(tiny, comments)[:4]
    prompts = [prompt for prompt in given for _ in range(6)]
    seeds = seeds_of(len(prompts))
    stop = Stop(frozenset(range(0, 480, 9)))
    expected = answers_of(generator_of(tiny), prompts, seeds, stop)
    generator = generator_of(tiny)
    assert generator.able()
    run, most = tiny.model.forward, [9, 5, 4, 2]

    def forward(**inputs: Any) -> Any:
        if len(most) > 1 and len(inputs["input_ids"]) > most[0]:
            most.pop(0)
            raise torch.OutOfMemoryError("a test")
        return run(**inputs)

    monkeypatch.setattr(tiny.model, "forward", forward)
    assert answers_of(generator, prompts, seeds, stop, 16) == expected
    assert len(most) < 4
    monkeypatch.setattr(
        tiny.model, "forward", lambda **_: (_ for _ in ()).throw(torch.OutOfMemoryError("none"))
    )
    with pytest.raises(torch.OutOfMemoryError):
        answers_of(generator, prompts, seeds, stop, 16)


def test_memory_that_lacks_once_changes_nothing(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the pass of a shared prefix, of prompts, or of the first tokens."""
    tiny = tiny_model("llama")
    prompts = [prompt for prompt in prompts_of(tiny, comments)[1:3] for _ in range(3)]
    seeds = seeds_of(len(prompts))
    expected = answers_of(generator_of(tiny), prompts, seeds, Stop(), most=5)
    run = tiny.model.forward
    widths: list[int] = []
    for fatal in range(5):
        generator, calls = generator_of(tiny), [0]
        assert generator.able()

        def forward(fatal: int = fatal, calls: list[int] = calls, **inputs: Any) -> Any:
            calls[0] += 1
            if calls[0] == fatal + 1:
                widths.append(inputs["input_ids"].shape[1])
                raise torch.OutOfMemoryError("a test")
            return run(**inputs)

        with monkeypatch.context() as patch:
            patch.setattr(tiny.model, "forward", forward)
            assert answers_of(generator, prompts, seeds, Stop(), 4, most=5) == expected
    assert widths[0] > widths[1] > widths[2] == 1


@pytest.mark.parametrize("name", ["qwen3", "mamba"])
def test_broken_logits_name_their_answer(name: str, fresh_tiny_model: Callable[[str], Any]) -> None:
    tiny = fresh_tiny_model(name)
    with torch.no_grad():
        tiny.model.get_input_embeddings().weight[12] = torch.nan
        if name == "qwen3":  # whose head is the same matrix
            tiny.model.lm_head.weight = torch.nn.Parameter(
                tiny.model.lm_head.weight.nan_to_num().clone()
            )
    prompts = [(9, 10, 11), (9, 10, 11), (9, 10, 12), (9, 10, 12)]
    with pytest.raises(NaNLogits) as error:
        list(generator_of(tiny).sample(prompts, seeds_of(4), Sampling(), 3, Stop(), 4))
    assert error.value.index == 2
