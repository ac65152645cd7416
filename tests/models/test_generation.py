"""Answers: stock `hf`'s texts, with traces that cover just what is shown."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM

from lm_eval_semsoft.engine.generate import Generator
from lm_eval_semsoft.engine.sampling import Sampling
from lm_eval_semsoft.engine.trace import Trace
from lm_eval_semsoft.models.generated import GeneratedText
from lm_eval_semsoft.models.generation import (
    Way,
    asks_of,
    key_of,
    stop_of,
    text_of,
    way_of,
)
from lm_eval_semsoft.models.label_scores import dump_response, load_response
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF
from lm_eval_semsoft.reports.generations import load_generations

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = "Read the comment and name the emotion that the writer feels. Answer with one word.\n"


def lm_of(tiny: Any, kind: Any = SemsoftHF, **arguments: Any) -> Any:
    return kind(tiny.model, tokenizer=tiny.tokenizer, **arguments)


def requests_for(
    contexts: Sequence[str], kwargs: dict[str, Any] | None = None, **more: Any
) -> list[Instance]:
    """One request a context, as a task called questions makes them."""
    given = {"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False, **(kwargs or {}), **more}
    return [
        Instance("generate_until", {"text": text}, (text, dict(given)), 0, ("questions", i, 1))
        for i, text in enumerate(contexts)
    ]


def contexts_of(comments: Sequence[str]) -> list[str]:
    return [HEAD * (i % 3 > 0) + f"Comment: {comment}\nEmotion:" for i, comment in
            enumerate(comments)]  # fmt: skip


def answers(lm: Any, requests: list[Instance]) -> list[Any]:
    return list(lm.generate_until(requests, disable_tqdm=True))


def stock(tiny: Any, requests: list[Instance], **arguments: Any) -> list[str]:
    """At batch size 1, where it does not run past stop strings for its neighbours' sake."""
    return answers(lm_of(tiny, HFLM, batch_size=1, **arguments), requests)


def frequent_piece(texts: Sequence[str], length: int) -> str:
    """A piece of text that stands inside many of them."""
    pieces = [t[i : i + length] for t in texts for i in range(2, len(t) - length)]
    return max(set(pieces), key=lambda piece: (pieces.count(piece), piece))


@pytest.fixture(scope="module")
def contexts(comments: tuple[str, ...]) -> list[str]:
    return contexts_of(comments[:6])


# -- the same texts ----------------------------------------------------------------------------


def test_texts_are_those_of_stock_hf(tiny: Any, contexts: list[str]) -> None:
    requests = requests_for(contexts)
    expected = stock(tiny, requests)
    assert all(expected)
    found = answers(lm_of(tiny, batch_size=4), requests)
    assert found == expected
    assert all(isinstance(text, GeneratedText) for text in found)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_stop_strings_cut_as_stock_does(
    name: str, length: int, tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    """Longer ones begin and end within tokens, and span several."""
    tiny = tiny_model(name)
    piece = frequent_piece(stock(tiny, requests_for(contexts, until=[])), length)
    requests = requests_for(contexts, until=[piece, "never"])
    expected = stock(tiny, requests)
    whole = stock(tiny, requests_for(contexts, until=[]))
    assert expected != whole
    assert answers(lm_of(tiny, batch_size=4), requests) == expected
    assert answers(lm_of(tiny), requests_for(contexts, until=piece)) == expected


def test_a_special_token_stops_too(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    """Its text is not shown, so only its token tells that it is there."""
    tiny = tiny_model("qwen3")
    texts = answers(lm_of(tiny), requests_for(contexts, max_gen_toks=8))
    many = [t for text in texts for t in set(text.trace.tokens[1:-1].tolist())]
    often = max(many, key=many.count)
    token = tiny.tokenizer.convert_ids_to_tokens(often)
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [token]})
    changed = type(tiny)(tiny.name, tiny.model, tokenizer)
    requests = requests_for(contexts, until=[token], max_gen_toks=8)
    found = answers(lm_of(changed, batch_size=3), requests)
    assert found == stock(changed, requests)
    assert min(len(text.trace) for text in found) < 8


@pytest.mark.parametrize("most", [{"max_gen_toks": 1}, {"max_new_tokens": 5}, {"max_tokens": 3}])
def test_answers_are_as_long_as_allowed(
    most: dict[str, int], tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    tiny = tiny_model("gpt2")
    requests = requests_for(contexts, until=[])
    for request in requests:
        del request.args[1]["max_gen_toks"]
        request.args[1].update(most)
    found = answers(lm_of(tiny, batch_size=4), requests)
    assert found == stock(tiny, requests)
    assert max(len(text.trace) for text in found) == next(iter(most.values()))


def test_the_harness_default_length(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    tiny = tiny_model("gpt2")
    requests = requests_for(contexts[:1])
    del requests[0].args[1]["max_gen_toks"]
    assert answers(lm_of(tiny), requests) == stock(tiny, requests)


def test_long_contexts_are_cut_from_the_left(
    tiny_model: Callable[[str], Any], contexts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tiny = tiny_model("llama")
    requests = requests_for([contexts[0] * 3, *contexts[1:4]])
    lengths = [len(tiny.tokenizer(r.args[0])["input_ids"]) for r in requests]
    assert lengths[0] > 60
    expected = stock(tiny, requests, max_length=76)
    assert answers(lm_of(tiny, max_length=76, batch_size=4), requests) == expected
    n_cut = sum(n > 60 for n in lengths)
    assert f"{n_cut} of 4 prompts leave no room for 16 new tokens" in caplog.text


@pytest.mark.parametrize("bos", [True, False, None])
def test_begin_token_and_chat_template(
    bos: bool | None, tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    tiny = tiny_model("llama")
    lm = lm_of(tiny, add_bos_token=bos, batch_size=4)
    chat = [lm.apply_chat_template([{"role": "user", "content": c}]) for c in comments[:4]]
    for given in (contexts_of(comments[:4]), chat):
        requests = requests_for(given)
        assert answers(lm, requests) == stock(tiny, requests, add_bos_token=bos)


def test_an_answer_may_be_empty(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    tiny = tiny_model("llama")
    first = stock(tiny, requests_for(contexts, max_gen_toks=1, until=[]))
    stop = max(first, key=len)
    found = answers(lm_of(tiny, batch_size=4), requests_for(contexts, until=[stop]))
    empty = found[first.index(stop)]
    assert empty == ""
    assert len(empty.trace) == 0
    assert empty.trace.topk_entropies.shape == (0, 5)


def test_a_tokenizer_without_an_end_token(
    fresh_tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    tiny = fresh_tiny_model("llama")
    expected = answers(lm_of(tiny), requests_for(contexts))
    tiny.tokenizer.eos_token = None
    assert tiny.tokenizer.eos_token_id is None
    assert answers(lm_of(tiny), requests_for(contexts)) == expected  # none of them has ended


def test_the_end_token_at_once(fresh_tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    tiny = fresh_tiny_model("gpt2")
    probe = lm_of(tiny)
    token = int(answers(probe, requests_for(contexts[:1]))[0].trace.tokens[0])
    tiny.model.generation_config.eos_token_id = [0, token]
    requests = requests_for(contexts)
    found = answers(lm_of(tiny, batch_size=4), requests)
    # The model's end tokens stop a row in stock hf, too; one that is no special token is shown.
    assert found == stock(tiny, requests)
    assert len(found[0].trace) == 1


@pytest.mark.parametrize("kind", [str, int])
def test_thoughts_are_cut_off(
    kind: type, tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    tiny = tiny_model("qwen3")
    traces = [text.trace for text in answers(lm_of(tiny), requests_for(contexts, until=[]))]
    many = [t for trace in traces for t in set(trace.tokens[2:-3].tolist())]
    texts = {t: tiny.tokenizer.decode([t]) for t in many}
    end = max((t for t in many if "\ufffd" not in texts[t]), key=many.count)
    think = end if kind is int else texts[end]
    requests = requests_for(contexts, until=[])
    expected = stock(tiny, requests, think_end_token=think)
    found = answers(lm_of(tiny, think_end_token=think, batch_size=4), requests)
    assert found == expected
    assert expected != stock(tiny, requests)
    for text in found:
        assert text.trace.ends[-1:].tolist() == [len(text)] * bool(text)


# -- what is left to stock ---------------------------------------------------------------------


def test_other_requests_go_to_stock(
    tiny_model: Callable[[str], Any], contexts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_model("llama")
    beams = requests_for(contexts[:3], num_beams=2)
    mixed = [*requests_for(contexts[3:6]), *beams]
    mixed = [mixed[i] for i in (3, 0, 4, 1, 2, 5)]
    expected = stock(tiny, mixed)
    found = answers(lm_of(tiny), mixed)
    assert found == expected
    assert [isinstance(text, GeneratedText) for text in found] == [False, True, False, True, True,
                                                                   False]  # fmt: skip
    for name in ("generate", "sample"):
        monkeypatch.setattr(Generator, name, lambda *a, **k: pytest.fail("not ours"))
    sampled = requests_for(contexts[:2], do_sample=True, temperature=0.7, min_p=0.1)
    torch.manual_seed(0)
    first = answers(lm_of(tiny), sampled)
    torch.manual_seed(0)
    assert first == stock(tiny, sampled)


def test_a_model_with_settings_of_its_own_goes_to_stock(
    fresh_tiny_model: Callable[[str], Any], contexts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tiny = fresh_tiny_model("llama")
    tiny.model.generation_config.repetition_penalty = 1.3
    requests = requests_for(contexts[:3])
    found = answers(lm_of(tiny), requests)
    assert found == stock(tiny, requests)
    assert not any(isinstance(text, GeneratedText) for text in found)
    assert "repetition_penalty=1.3" in caplog.text


# -- traces ------------------------------------------------------------------------------------


def test_traces_cover_what_is_shown(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    """Every token begins inside the text, and the tokens decode to it and little more."""
    for name in ("qwen3", "llama"):
        tiny = tiny_model(name)
        piece = frequent_piece(stock(tiny, requests_for(contexts, until=[])), 2)
        for text in answers(lm_of(tiny, batch_size=4), requests_for(contexts, until=[piece])):
            trace = text.trace
            tokens = trace.tokens.tolist()
            assert tiny.tokenizer.decode(tokens, skip_special_tokens=True).startswith(text)
            if tokens:
                but_one = tiny.tokenizer.decode(tokens[:-1], skip_special_tokens=True)
                assert len(but_one.rstrip("\ufffd")) <= len(text)
                assert trace.ends[-1] == len(text)
                assert (np.diff(trace.ends) >= 0).all()


def test_a_character_of_several_tokens(tiny_model: Callable[[str], Any]) -> None:
    tiny = tiny_model("qwen3")
    lm = lm_of(tiny)
    tokens = tiny.tokenizer("ok \U0001f600} no", add_special_tokens=False)["input_ids"]
    n = len(tokens)
    trace = Trace(
        np.array(tokens, np.int32), *[np.zeros(n, np.float32)] * 3, np.zeros((n, 5), np.float32),
        np.zeros((n, 4), np.int32), np.zeros((n, 4), np.float32),
        ends=np.array(_ends(tiny.tokenizer, tokens), np.int32), vocabulary=500,
    )  # fmt: skip
    text = text_of(lm, Way(("}",), 99), tokens, trace)
    assert text == "ok \U0001f600"
    assert tiny.tokenizer.decode(text.trace.tokens.tolist()) == text
    emoji = tiny.tokenizer("\U0001f600", add_special_tokens=False)["input_ids"]
    assert len(emoji) > 1
    # Until the character is whole, the text ends before it.
    assert text.trace.ends.tolist()[-len(emoji) :] == [3] * (len(emoji) - 1) + [4]


def _ends(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    whole = tokenizer.decode(tokens)
    out = []
    for t in range(len(tokens)):
        part = tokenizer.decode(tokens[: t + 1])
        out.append(len(part) if whole.startswith(part) else len(part.rstrip("\ufffd")))
    return out


def test_repeats_are_answered_once(
    tiny_model: Callable[[str], Any], contexts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_model("gpt2")
    asked: list[int] = []
    generate = Generator.generate

    def counted(self: Generator, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(len(prompts))
        return generate(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Generator, "generate", counted)
    requests = requests_for(contexts[:3])
    found = answers(lm_of(tiny), [requests[0], *requests, requests[2]])
    assert asked == [3]
    assert found == [found[1], *found[1:4], found[3]]


def test_generated_text_is_a_string_that_travels(
    tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    (text,) = answers(lm_of(tiny_model("gpt2")), requests_for(contexts[:1]))
    assert json.loads(json.dumps(text)) == text
    assert hash(text) == hash(str(text))
    for again in (pickle.loads(pickle.dumps(text)), load_response(dump_response(text))):
        assert again == text
        assert type(again) is GeneratedText
        for name, value in vars(text.trace).items():
            np.testing.assert_array_equal(getattr(again.trace, name), value)


# -- caches, failures --------------------------------------------------------------------------


def test_the_cache_continues_after_an_interruption(
    tiny_model: Callable[[str], Any],
    contexts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = tiny_model("llama")
    requests = requests_for(contexts)
    expected = answers(lm_of(tiny), requests)
    run, left = tiny.model.forward, [30]

    def forward(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return run(*args, **kwargs)

    monkeypatch.setattr(tiny.model, "forward", forward)
    path = str(tmp_path / "cache")
    with pytest.raises(KeyboardInterrupt):
        CachingLM(lm_of(tiny, batch_size=2), path).generate_until(requests)
    monkeypatch.setattr(tiny.model, "forward", run)

    asked: list[int] = []
    generate = Generator.generate

    def counted(self: Generator, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(len(prompts))
        return generate(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Generator, "generate", counted)
    again = CachingLM(lm_of(tiny, batch_size=2), path).generate_until(requests)
    assert again == expected
    assert 0 < asked[0] < len(requests)
    for text, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(text.trace.tokens, other.trace.tokens)
        np.testing.assert_allclose(text.trace.entropy, other.trace.entropy, atol=1e-4)


def test_broken_logits_name_the_document(
    fresh_tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    tiny = fresh_tiny_model("llama")
    with torch.no_grad():
        token = tiny.tokenizer("}", add_special_tokens=False)["input_ids"][-1]
        tiny.model.get_input_embeddings().weight[token] = torch.nan
    given = [contexts[0], contexts[1] + " }", contexts[2]]
    with pytest.raises(ValueError, match="document 1 of task questions are NaN or infinite"):
        answers(lm_of(tiny, batch_size=4), requests_for(given))


def test_no_room_and_no_prompt(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    tiny = tiny_model("qwen3")
    with pytest.raises(ValueError, match="document 0 of task questions leave no room"):
        answers(lm_of(tiny), requests_for(contexts, max_gen_toks=512))
    with pytest.raises(ValueError, match="document 1 of task questions encodes to no tokens"):
        answers(lm_of(tiny), requests_for([contexts[0], ""]))


# -- samples -----------------------------------------------------------------------------------

FLAT: dict[str, Any] = {"do_sample": True, "temperature": 3.0, "top_p": 0.95, "max_gen_toks": 8}


def repeated(requests: Sequence[Instance], n: int) -> list[Instance]:
    """As the harness clones them: the same object n times."""
    return [request for request in requests for _ in range(n)]


@pytest.fixture
def seeded() -> Iterator[None]:
    state = torch.random.get_rng_state()
    torch.manual_seed(1234)
    yield
    torch.random.set_rng_state(state)
    torch.manual_seed(0)


def seen(texts: Sequence[Any]) -> list[tuple[str, float, float]]:
    return [(str(t), round(t.logprob, 3), t.n_tokens) for t in texts]


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_samples_depend_on_the_seed_alone(
    name: str, tiny_model: Callable[[str], Any], contexts: list[str], seeded: None
) -> None:
    tiny = tiny_model(name)
    requests = requests_for(contexts[:4], FLAT)
    expected = answers(lm_of(tiny), repeated(requests, 5))
    assert len(set(expected)) > 15
    assert all(isinstance(text, GeneratedText) and text.trace is None for text in expected)
    assert all(1 <= text.n_tokens <= 8 for text in expected)
    assert all(text.mean_logprob == text.logprob / text.n_tokens < 0 for text in expected)
    for size, sharing in ((3, "on"), (16, "off")):
        lm = lm_of(tiny, batch_size=size, prefix_sharing=sharing)
        found = answers(lm, repeated(requests[::-1], 5))
        blocks = [found[i : i + 5] for i in range(0, 20, 5)]
        assert seen([text for block in blocks[::-1] for text in block]) == seen(expected)
    # Fewer of them, some of the documents, and a rank's padding with its last request.
    some = answers(lm_of(tiny), repeated([requests[2], requests[1], requests[1]], 3))
    assert seen(some[:3]) == seen(expected[10:13])
    assert seen(some[3:8]) == seen(expected[5:10])
    torch.manual_seed(99)
    others = answers(lm_of(tiny), repeated(requests, 5))
    assert sum(a == b for a, b in zip(expected, others, strict=True)) < 4


def test_what_a_sample_is_worth(
    tiny_model: Callable[[str], Any], contexts: list[str], seeded: None
) -> None:
    """The ending token counts, and the text ends before it; temperature and cuts do not count."""
    tiny = tiny_model("llama")
    lm = lm_of(tiny, batch_size=4)
    plain = answers(lm, repeated(requests_for(contexts[:3], FLAT, until=[]), 6))
    piece = frequent_piece(plain, 1)
    requests = repeated(requests_for(contexts[:3], FLAT, until=[piece]), 6)
    found = answers(lm, requests)
    assert min(text.n_tokens for text in found) < 8
    assert not any(piece in text for text in found)
    way = way_of(lm, requests[0].args[1])
    assert way is not None
    asks = asks_of(lm, way, list(enumerate(requests)))
    seeds = [key_of(lm, way, ask) for ask in asks]
    assert len(set(seeds)) == len(asks) == len(found)
    sampled = lm.generator.sample(
        [a.tokens for a in asks], seeds, way.sampling, way.max_tokens, stop_of(lm, way), 4
    )
    for i, tokens, _ in sampled:
        with torch.inference_mode():
            logits = tiny.model(torch.tensor([[*asks[i].tokens, *tokens]])).logits[0]
        logprobs = logits.double().log_softmax(-1)[len(asks[i].tokens) - 1 : -1]
        (place,) = asks[i].places
        expected = sum(float(logprobs[t, token]) for t, token in enumerate(tokens))
        assert found[place].logprob == pytest.approx(expected, abs=1e-4)
        assert found[place].n_tokens == len(tokens)
        assert (
            found[place] == tiny.tokenizer.decode(tokens, skip_special_tokens=True).split(piece)[0]
        )


def test_greedy_answers_are_worth_something_too(
    tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    tiny = tiny_model("qwen3")
    piece = frequent_piece(stock(tiny, requests_for(contexts, until=[])), 1)
    lm = lm_of(tiny, batch_size=4)
    for text in answers(lm, requests_for(contexts, until=[piece])):
        assert text.n_tokens >= max(1, len(text.trace))
        assert text.logprob <= text.trace.logprobs.sum() + 1e-4
    for text in answers(lm, requests_for(contexts, until=[])):
        assert text.n_tokens == len(text.trace) == 16
        assert text.logprob == pytest.approx(float(text.trace.logprobs.sum()), abs=1e-4)


def test_repeats_of_several_requests_of_a_document(
    tiny_model: Callable[[str], Any], contexts: list[str], seeded: None
) -> None:
    """Two sampled requests with one prompt in a document do not get the same samples."""
    tiny = tiny_model("llama")
    first, same = requests_for(contexts[:1], FLAT) * 2
    second = Instance("generate_until", same.doc, same.args, 1, ("questions", 0, 1))
    other = Instance("generate_until", same.doc, same.args, 0, ("questions", 9, 1))
    greedy = requests_for(contexts[:1])[0]
    mixed = [first, greedy, first, second, second, other, greedy]
    found = answers(lm_of(tiny), mixed)
    samples = [found[i] for i in (0, 2, 3, 4)]
    assert len(set(samples)) == 4
    assert found[5] == found[0]  # another document with this prompt shares its samples
    assert found[1] == found[6] == stock(tiny, [greedy])[0]
    assert found[1].trace is not None


def test_the_harness_cache_never_gives_samples(
    tiny_model: Callable[[str], Any], contexts: list[str], tmp_path: Path, seeded: None
) -> None:
    tiny = tiny_model("llama")
    requests = repeated(requests_for(contexts[:2], FLAT), 4)
    lm = CachingLM(lm_of(tiny), str(tmp_path / "cache"))
    first = lm.generate_until(requests)
    assert len(set(first)) > 5
    again = CachingLM(lm_of(tiny), str(tmp_path / "cache")).generate_until(requests)
    assert seen(again) == seen(first)


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        ({}, {}, (1.0, 0, 1.0)),
        ({"temperature": 0.5}, {}, (0.5, 0, 1.0)),
        ({}, {"temperature": 0.6, "top_k": 20, "top_p": 0.9}, (0.6, 20, 0.9)),
        ({"temperature": 1.0, "top_k": 0, "top_p": 1.0},
         {"temperature": 0.6, "top_k": 20, "top_p": 0.9}, (1.0, 0, 1.0)),
        ({"top_p": 0.7}, {"top_k": 64, "top_p": 0.95}, (1.0, 64, 0.7)),
        ({"temperature": 1.0, "top_p": 1.0}, {"top_k": 64, "top_p": 0.95}, (1.0, 0, 1.0)),
        ({"top_p": "0.7", "top_k": "20", "temperature": "2"}, {}, (2.0, 20, 0.7)),
    ],
)  # fmt: skip
def test_where_the_settings_come_from(
    asked: dict[str, Any],
    own: dict[str, Any],
    expected: tuple[float, int, float],
    fresh_tiny_model: Callable[[str], Any],
    contexts: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request; else the model's generation_config, unless the request is complete; else
    nothing is cut."""
    caplog.set_level("INFO")
    tiny = fresh_tiny_model("gpt2")
    for name, value in own.items():
        setattr(tiny.model.generation_config, name, value)
    lm = lm_of(tiny)
    requests = requests_for(contexts[:1], {"do_sample": True, **asked})
    way = way_of(lm, requests[0].args[1])
    assert way is not None
    assert way.sampling == Sampling(*expected)
    answers(lm, requests)
    (line,) = [r.message for r in caplog.records if r.message.startswith("Sampling with")]
    assert f"temperature {expected[0]:g}" in line
    complete = {"temperature", "top_p"} <= asked.keys()
    assert ("generation_config" in line) == (not complete and bool(own.keys() - asked.keys()))


def test_bad_settings_are_named(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    bads: tuple[dict[str, Any], ...] = (
        {"temperature": -1.0},
        {"top_p": 1.5},
        {"top_k": -3},
        {"top_k": "many"},
        {"top_k": 5.5},
    )
    for bad in bads:
        with pytest.raises(ValueError, match=f"{next(iter(bad))}="):
            answers(lm_of(tiny_model("gpt2")), requests_for(contexts[:1], {**FLAT, **bad}))


def test_a_model_that_cuts_samples_in_another_way_goes_to_stock(
    fresh_tiny_model: Callable[[str], Any], contexts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tiny = fresh_tiny_model("gpt2")
    tiny.model.generation_config.min_p = 0.3
    greedy, sampled = requests_for(contexts[:1]), requests_for(contexts[:1], FLAT)
    found = answers(lm_of(tiny), [*greedy, *sampled])
    assert [isinstance(text, GeneratedText) for text in found] == [True, False]
    assert "min_p=0.3" in caplog.text


def test_broken_logits_of_samples_name_the_document(
    fresh_tiny_model: Callable[[str], Any], contexts: list[str]
) -> None:
    tiny = fresh_tiny_model("llama")
    with torch.no_grad():
        token = tiny.tokenizer("}", add_special_tokens=False)["input_ids"][-1]
        tiny.model.get_input_embeddings().weight[token] = torch.nan
    given = [contexts[0], contexts[1] + " }", contexts[2]]
    with pytest.raises(ValueError, match="document 1 of task questions are NaN or infinite"):
        answers(lm_of(tiny, batch_size=4), repeated(requests_for(given, FLAT), 3))


def test_samples_are_stored_and_a_killed_run_goes_on(
    tiny_model: Callable[[str], Any],
    contexts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeded: None,
) -> None:
    tiny = tiny_model("llama")
    greedy = requests_for(contexts[:3])
    requests = [*repeated(requests_for(contexts[:3], FLAT), 4), *greedy]
    expected = answers(lm_of(tiny), requests)
    run, left = tiny.model.forward, [12]

    def forward(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return run(*args, **kwargs)

    lm = lm_of(tiny, readouts=tmp_path)
    assert lm.generator.able()
    monkeypatch.setattr(tiny.model, "forward", forward)
    with pytest.raises(KeyboardInterrupt):
        answers(lm, requests)
    monkeypatch.setattr(tiny.model, "forward", run)
    asked: list[int] = []
    sample = Generator.sample

    def counted(self: Generator, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(len(prompts))
        return sample(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Generator, "sample", counted)
    for _ in range(2):
        found = answers(lm_of(tiny, readouts=tmp_path), requests)
        assert seen(found) == seen(expected)
        assert [text.trace is None for text in found] == [True] * 12 + [False] * 3
    assert 0 < asked[0] < 12
    assert asked[1] == 0
    # Another seed, temperature or number of tokens is another answer; more samples go on.
    more = answers(lm_of(tiny, readouts=tmp_path), repeated(requests_for(contexts[:3], FLAT), 6))
    assert asked[2] == 6
    assert seen(more[:4] + more[6:10]) == seen(expected[:8])
    for other in ({"temperature": 2.5}, {"max_gen_toks": 7}, {"top_k": 9}):
        answers(lm_of(tiny, readouts=tmp_path), requests_for(contexts[:3], {**FLAT, **other}))
    torch.manual_seed(5)
    answers(lm_of(tiny, readouts=tmp_path), requests_for(contexts[:3], FLAT))
    assert asked[3:] == [3] * 4
    (stored,) = load_generations(tmp_path)  # the greedy ones
    assert list(stored.texts) == [str(text) for text in expected[12:]]


def test_a_sample_travels(tiny_model: Callable[[str], Any], contexts: list[str]) -> None:
    (text,) = answers(lm_of(tiny_model("gpt2")), requests_for(contexts[:1], FLAT))
    for again in (pickle.loads(pickle.dumps(text)), load_response(dump_response(text))):
        assert seen([again]) == seen([text])
        assert again.trace is None
    trace = answers(lm_of(tiny_model("gpt2")), requests_for(contexts[:1]))[0].trace
    before = load_response(json.dumps({"generated": ["old", trace.to_json()]}))
    assert before == "old"
    assert len(before.trace) == len(trace)
    assert math.isnan(before.logprob)
    assert math.isnan(before.mean_logprob)
