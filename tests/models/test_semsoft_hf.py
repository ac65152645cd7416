"""semsoft-hf against loops over an unbatched model, and what must not change its numbers."""

from __future__ import annotations

import json
import logging
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM

from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.models.label_scores import dump_response, load_response
from lm_eval_semsoft.models.pairs import PairEncoder, documents_of
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

HEAD = "Read the comment and name the emotion that the writer feels.\n\n"


def lm_of(tiny: Any, **arguments: Any) -> SemsoftHF:
    return SemsoftHF(tiny.model, tokenizer=tiny.tokenizer, **arguments)


def requests_for(
    comments: tuple[str, ...], labels: tuple[str, ...], task: str = "emotions"
) -> list[Instance]:
    return [
        Instance("loglikelihood", {"text": text}, (f"{HEAD}{text}\nEmotion:", f" {label}"), i,
                 (task, number, 1))
        for number, text in enumerate(comments)
        for i, label in enumerate(labels)
    ]  # fmt: skip


def scores(lm: SemsoftHF, requests: list[Instance]) -> list[float]:
    return [score[0] for score in lm.loglikelihood(requests, disable_tqdm=True)]


# -- the numbers -------------------------------------------------------------------------------


def next_logprobs(tiny: Any, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = tiny.model(torch.tensor([tokens])).logits[0, -1]
    return logits.double().log_softmax(-1).numpy()


def brute_force(tiny: Any, comments: tuple[str, ...], labels: tuple[str, ...]) -> list[float]:
    """log S by docs/method.md: space centered, tau .3, K 20, anchors as spelled, rivals on."""
    encode = tiny.tokenizer.encode
    e = tiny.model.get_output_embeddings().weight.detach().double().numpy()
    phi = e - e.mean(0)
    phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    spelled = []
    for label in labels:
        context = encode(HEAD + "x\nEmotion:")
        spelled.append(encode(f"{HEAD}x\nEmotion: {label}")[len(context) :])
    first_pieces = {s[0] for s in spelled if len(s) > 1}
    out = []
    for text in comments:
        context = encode(f"{HEAD}{text}\nEmotion:")
        logp = next_logprobs(tiny, context)
        for tokens in spelled:
            own = logp[tokens[0]]
            for j in range(1, len(tokens)):
                own += next_logprobs(tiny, context + tokens[:j])[tokens[j]]
            anchor = phi[tokens[0]] if len(tokens) == 1 else phi[tokens].mean(0)
            anchor = anchor / np.linalg.norm(anchor)
            total = math.exp(own)
            for v in np.argsort(-logp)[:20]:
                if v != tokens[0] and v not in first_pieces:
                    total += math.exp(logp[v]) * max(0.0, phi[v] @ anchor - 0.3) / 0.7
            out.append(math.log(total))
    return out


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "qwen3", "bloom"])
def test_semantic_scores_equal_brute_force(
    name: str, tiny_model: Callable[[str], Any], comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    tiny = tiny_model(name)
    lm = lm_of(tiny, space="centered", tau=0.3, top_k=20, anchors="spelled", rival_votes="on")
    got = lm.loglikelihood(requests_for(comments, labels), disable_tqdm=True)
    expected = brute_force(tiny, comments, labels)
    np.testing.assert_allclose([s[0] for s in got], expected, atol=2e-4)
    assert any(s[0] > s.constrained + 0.01 for s in got)  # somebody did vote


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "gemma2", "gemma3", "qwen3", "mistral", "mixtral"]
)
def test_these_models_are_packed(name: str, tiny_model: Callable[[str], Any]) -> None:
    """Otherwise the tests of the packed pass would pass without running it."""
    assert Engine(tiny_model(name).model)._why_not_packable() is None


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_these_models_are_not(
    name: str,
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    scores(lm_of(tiny_model(name)), requests_for(comments[:1], labels))
    assert "runs without shared prefixes (slower, same numbers)" in caplog.text


def test_attention_is_given_back(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    tiny = tiny_model("llama")
    before = tiny.model.config._attn_implementation
    scores(lm_of(tiny), requests_for(comments[:2], labels))
    assert tiny.model.config._attn_implementation == before
    assert not tiny.model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize("name", ["gemma3", "mamba"])
def test_batch_size_order_and_shard_change_nothing(
    name: str, tiny_model: Callable[[str], Any], comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    tiny = tiny_model(name)
    requests = requests_for(comments, labels)
    expected = scores(lm_of(tiny), requests)
    for batch_size in (3, 32, "auto"):
        got = scores(lm_of(tiny, batch_size=batch_size), requests)
        np.testing.assert_allclose(got, expected, atol=1e-4)
    order = random.Random(0).sample(range(len(requests)), len(requests))
    shuffled = scores(lm_of(tiny), [requests[i] for i in order])
    np.testing.assert_allclose(shuffled, [expected[i] for i in order], atol=1e-4)
    n = len(labels)
    shards = [requests[i * n : (i + 1) * n] for i in range(len(comments))]
    alone = [s for shard in shards for s in scores(lm_of(tiny), shard)]
    np.testing.assert_allclose(alone, expected, atol=1e-4)


def test_half_precision_stays_near(
    fresh_tiny_model: Callable[[str], Any], comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    """The head works in fp32, so scores are not multiples of a bf16 step."""
    requests = requests_for(comments, labels)
    exact = np.array(scores(lm_of(fresh_tiny_model("llama")), requests))
    tiny = fresh_tiny_model("llama")
    tiny.model.bfloat16()
    near = np.array(scores(lm_of(tiny), requests))
    assert np.median(np.abs(near - exact)) < 0.2
    assert len(np.unique(near)) > 0.9 * len(np.unique(exact))


# -- what comes back ---------------------------------------------------------------------------


def test_label_score_is_a_pair_that_knows_more(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    lm = lm_of(tiny_model("llama"))
    got = lm.loglikelihood(requests_for(comments[:2], labels), disable_tqdm=True)
    log_s, greedy = got[0]
    assert isinstance(log_s, float)
    assert isinstance(greedy, bool)
    assert [s.readout is not None for s in got] == ([True] + [False] * (len(labels) - 1)) * 2
    readout = got[0].readout
    np.testing.assert_allclose(
        readout.label_logprobs, [s.constrained for s in got[: len(labels)]], atol=1e-6
    )
    for back in (pickle.loads(pickle.dumps(got[0])), load_response(dump_response(got[0]))):
        assert back == got[0]
        assert back.constrained == got[0].constrained
        assert back.readout.entropy == readout.entropy
        np.testing.assert_array_equal(back.readout.topk_ids, readout.topk_ids)


def test_responses_of_other_kinds_survive_the_cache() -> None:
    for value in ("text", -1.5, (-1.5, True), ["a"]):
        assert load_response(dump_response(value)) == value


def test_model_info_says_how_the_scores_were_made(
    fresh_tiny_model: Callable[[str], Any],
) -> None:
    def info(tiny: Any, **arguments: Any) -> dict[str, Any]:
        return json.loads(json.dumps(lm_of(tiny, **arguments).get_model_info()["semsoft"]))

    tiny = fresh_tiny_model("llama")
    first = info(tiny)
    assert {"scoring", "space", "tau", "top_k", "anchors", "rival_votes", "version"} <= set(first)
    assert info(tiny) == first
    assert info(tiny, tau=0.5)["fingerprint"] != first["fingerprint"]
    with torch.no_grad():
        tiny.model.get_output_embeddings().weight.mul_(1.01)
    assert info(tiny)["fingerprint"] != first["fingerprint"]


# -- kernels where they make sense -------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (("A", "B", "C"), "option letters or numbers"),
        (("1", "2", "10"), "option letters or numbers"),
        (("yes", "no"), "yes/no answers"),
        (("the game was cancelled today", "it is what it is"), "whole phrases"),
    ],
)
def test_identity_kernel_is_chosen_and_said_once(
    labels: tuple[str, ...],
    reason: str,
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    lm = lm_of(tiny_model("llama"))
    got = lm.loglikelihood(requests_for(comments, labels), disable_tqdm=True)
    assert all(s[0] == s.constrained for s in got)
    assert caplog.text.count(f"identity kernel (constrained scoring): {reason}") == 1


def test_choices_of_their_own_get_the_identity_kernel(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    """Other options in every document, or options written into the document."""
    words = ["joy", "anger", "fear", "love", "game", "cake", "day", "song", "car"]
    ragged = [
        Instance("loglikelihood", {"text": text}, (text, f" {words[(number + i) % 9]}"), i,
                 ("quiz", number, 1))
        for number, text in enumerate(comments)
        for i in range(2 + number % 2)
    ]  # fmt: skip
    lm = lm_of(tiny_model("llama"))
    assert all(s[0] == s.constrained for s in lm.loglikelihood(ragged, disable_tqdm=True))
    doc = {"question": comments[0], "choices": {"text": ["joy", "anger"], "label": ["A", "B"]}}
    own = [
        Instance("loglikelihood", doc, (comments[0], f" {c}"), i, ("arc", 0, 1))
        for i, c in enumerate(doc["choices"]["text"])  # type: ignore[index]
    ]
    assert all(s[0] == s.constrained for s in lm.loglikelihood(own, disable_tqdm=True))


def test_labels_that_also_stand_in_every_row_are_still_fixed(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    """Many files repeat the same choices in each row."""
    requests = requests_for(comments, labels)
    for request in requests:
        request.doc["choices"] = list(labels)
    lm = lm_of(tiny_model("llama"), tau=-0.5)
    assert any(s[0] != s.constrained for s in lm.loglikelihood(requests, disable_tqdm=True))


def test_one_continuation_per_document_is_no_label_set(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    """As lambada has it: perplexity must not be computed from neighbours' votes."""
    lm = lm_of(tiny_model("llama"), tau=-0.5)
    for n in (1, 3):
        got = lm.loglikelihood(requests_for(comments[:n], ("joy",)), disable_tqdm=True)
        assert all(s[0] == s.constrained for s in got)


def test_a_repeated_label_is_refused_in_any_document(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...]
) -> None:
    lm = lm_of(tiny_model("llama"))
    for bad in (0, 1):
        twice = [("joy", "anger", "joy") if i == bad else ("joy", "anger") for i in (0, 1)]
        requests = [
            request
            for text, own in zip(comments, twice, strict=False)
            for request in requests_for((text,), own)
        ]
        for i, request in enumerate(requests):
            request.doc_id = int(i >= (3 if bad == 0 else 2))
        with pytest.raises(ValueError, match="'joy' stands 2 times"):
            lm.loglikelihood(requests, disable_tqdm=True)


def test_tensor_parallel_is_refused(tiny_model: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="tp_plan='auto' is not supported"):
        lm_of(tiny_model("llama"), tp_plan="auto")


def test_cut_prompts_are_counted_exactly(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    tiny = tiny_model("llama")
    requests = requests_for(comments[:3], ("disgust", "disapproval"))
    lengths = [len(tiny.tokenizer.encode(r.args[0])) for r in requests[::2]]
    longest_label = 1 + max(len(tiny.tokenizer.encode(f" {w}")) for w in ("disgust", "disapproval"))
    lm_of(tiny, max_length=max(lengths) + longest_label).loglikelihood(requests)
    assert "were cut from the left" not in caplog.text
    lm_of(tiny, max_length=min(lengths)).loglikelihood(requests)
    assert "3 of 3 prompts were longer" in caplog.text


def test_forced_cosine_kernel_warns(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    lm = lm_of(tiny_model("llama"), kernel="cosine", tau=-0.5, rival_votes="on")
    got = lm.loglikelihood(requests_for(comments, ("A", "B")), disable_tqdm=True)
    assert any(s[0] != s.constrained for s in got)
    assert caplog.text.count("forced on option letters or numbers") == 1


# -- requests ----------------------------------------------------------------------------------


def test_repeats_and_padding_copies_fall_together(
    comments: tuple[str, ...], labels: tuple[str, ...]
) -> None:
    requests = requests_for(comments[:2], labels)
    documents = documents_of([*requests, *requests[:3], requests[-1], requests[-1]])
    assert [d.continuations for d in documents] == [tuple(f" {c}" for c in labels)] * 2
    assert documents[1].places[f" {labels[-1]}"][-2:] == [len(requests) + 3, len(requests) + 4]


texts = st.text(st.sampled_from("abc thejoy\n\t.,!?😀é\u00a0\u2028'\"<>|_▁10"), max_size=40).map(
    lambda t: "x" + t
)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_pairs_are_encoded_as_the_harness_does(name: str, tiny_model: Callable[[str], Any]) -> None:
    lm = lm_of(tiny_model(name))
    encoder = PairEncoder(lm)
    endings = ["\nEmotion:", " is", ":", "\n\n", " ", "", "\nA: joy"]

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(texts, st.sampled_from(endings), st.lists(texts, min_size=1, max_size=3))
    def check(text: str, ending: str, words: list[str]) -> None:
        context = text + ending
        continuations = [f" {w}" for w in words] + words
        expected = [lm._encode_pair(context, c) for c in continuations]
        got = encoder(context, continuations)
        assert got == [(tuple(c), tuple(t)) for c, t in expected]

    check()
    assert encoder._local  # the shortcut was in use to the end
    assert any(v is not None for v in encoder._extended.values())


# -- the harness's cache -----------------------------------------------------------------------


class _Interrupted(Exception):
    pass


def cached(lm: SemsoftHF, path: Any, requests: list[Instance]) -> list[Any]:
    return CachingLM(lm, str(path)).loglikelihood(requests)


def test_cache_serves_only_its_own_scores(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny, requests, path = tiny_model("llama"), requests_for(comments, labels), tmp_path / "db"
    first = cached(lm_of(tiny), path, requests)
    other = cached(lm_of(tiny, tau=0.2), path, requests)
    assert [s[0] for s in other] == scores(lm_of(tiny, tau=0.2), requests)
    assert [s[0] for s in cached(lm_of(tiny_model("qwen3")), path, requests)] != first
    monkeypatch.setattr(Engine, "read", lambda *a, **k: pytest.fail("the model was run again"))
    again = cached(lm_of(tiny), path, requests)
    assert again == first
    assert [s.constrained for s in again] == [s.constrained for s in first]


@pytest.mark.parametrize("kept", [1, 5, 17])
def test_cache_continues_after_an_interruption(
    kept: int,
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Any,
) -> None:
    """Also when a document was half-written: its other labels still know the whole label set."""
    tiny, requests = tiny_model("gemma3"), requests_for(comments, labels)
    expected = scores(lm_of(tiny), requests)
    lm = lm_of(tiny)
    caching = CachingLM(lm, str(tmp_path / "db"))
    add, done = lm.cache_hook.add_partial, []

    def add_some(*arguments: Any) -> None:
        if len(done) == kept:
            raise _Interrupted
        done.append(arguments)
        add(*arguments)

    lm.cache_hook.add_partial = add_some  # type: ignore[method-assign]
    with pytest.raises(_Interrupted):
        caching.loglikelihood(requests)
    caching.dbdict.close()
    resumed = cached(lm_of(tiny), tmp_path / "db", requests)
    np.testing.assert_allclose([s[0] for s in resumed], expected, atol=1e-5)
