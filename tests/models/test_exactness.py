"""`scoring=constrained` against the harness's own `hf` model, request by request.

Two oracles: stock `HFLM`, and (for stock itself) one forward pass per request, written out here.
All in fp32 on tiny models whose distributions are peaked; the packaged real models come last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.models.huggingface import HFLM

from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4  # against stock hf
NOISE = 5e-5  # between two runs of ours: fp32 sums in another order, over up to ~20 tokens

Answer = tuple[float, bool]
Doc = tuple["str | Sequence[str]", Sequence[str]]

INTRO = "Read the comment and name the emotion that the writer feels.\n"


# ------------------------------------------------------------------ running both


def ours(tiny: Any, scoring: str = "constrained", batch_size: int = 4, **kwargs: Any) -> SemsoftHF:
    return SemsoftHF(
        pretrained=tiny.model,
        tokenizer=tiny.tokenizer,
        scoring=scoring,
        batch_size=batch_size,
        **kwargs,
    )


def stock(tiny: Any, **kwargs: Any) -> HFLM:
    return HFLM(pretrained=tiny.model, tokenizer=tiny.tokenizer, batch_size=4, **kwargs)


def scores(lm: HFLM, requests: Sequence[Any]) -> list[Answer]:
    answers = [(value, greedy) for value, greedy in lm.loglikelihood(requests, disable_tqdm=True)]
    assert len(answers) == len(requests)
    return answers


def assert_same(
    got: Sequence[Answer], expected: Sequence[Answer], requests: Sequence[Any], tolerance: float
) -> None:
    """Values within the tolerance and is_greedy equal; a failure names the worst request."""
    worst = max(range(len(expected)), key=lambda i: abs(got[i][0] - expected[i][0]), default=None)
    if worst is None:
        assert not got
        return
    where = f"{requests[worst].args!r}: {got[worst]} against {expected[worst]}"
    assert abs(got[worst][0] - expected[worst][0]) <= tolerance, where
    flags = [i for i in range(len(expected)) if bool(got[i][1]) != bool(expected[i][1])]
    assert not flags, [(requests[i].args, got[i], expected[i]) for i in flags[:3]]


def check(tiny: Any, requests: Sequence[Any], **kwargs: Any) -> None:
    limits = {k: v for k, v in kwargs.items() if k in ("max_length", "add_bos_token")}
    expected = scores(stock(tiny, **limits), requests)
    assert_same(scores(ours(tiny, **kwargs), requests), expected, requests, TOLERANCE)


# ------------------------------------------------------------------ kinds of documents


def prompts(comments: Sequence[str]) -> list[str]:
    return [f"{INTRO}Comment: {comment}\nEmotion:" for comment in comments]


def long_prompt(comments: Sequence[str], n_comments: int) -> str:
    shots = [f"Comment: {comments[i % len(comments)]}\nEmotion: joy\n\n" for i in range(n_comments)]
    return INTRO + "".join(shots) + f"Comment: {comments[0]}\nEmotion:"


def n_tokens(tiny: Any, text: str) -> int:
    return len(tiny.tokenizer.encode(text))


def greedy_text(tiny: Any, context: str, steps: int) -> str:
    """The model's own continuation, as text; "" if it does not survive re-encoding."""
    ids = tiny.tokenizer.encode(context)
    whole = list(ids)
    for _ in range(steps):
        with torch.no_grad():
            whole.append(int(tiny.model(torch.tensor([whole])).logits[0, -1].argmax()))
    text = tiny.tokenizer.decode(whole[len(ids) :])
    survives = bool(text.strip()) and tiny.tokenizer.encode(context + text) == whole
    return text if survives else ""


def chat(lm: HFLM, comments: Sequence[str]) -> list[str]:
    return [
        lm.apply_chat_template([{"role": "user", "content": f"{INTRO}{comment}"}])
        for comment in comments
    ]


def scenario(name: str, tiny: Any, comments: Sequence[str], labels: Sequence[str]) -> list[Doc]:
    """The documents of one scenario (see the keys)."""
    spaced = [" " + label for label in labels]
    texts = prompts(comments)
    four = texts[:4]
    every: dict[str, Callable[[], list[Doc]]] = {
        "label set": lambda: [(text, spaced) for text in texts],
        "one label each": lambda: [(t, [spaced[i]]) for i, t in enumerate(texts)],
        "one-token labels": lambda: [(t, [" joy", " anger", " fear", " love"]) for t in texts],
        "shared first tokens": lambda: [
            (t, [" dishonest", " disapproval", " dis", " disgust"]) for t in four
        ],
        "a label begins another": lambda: [(t, [" joy", " joyful", " joyfulness"]) for t in four],
        "no delimiter": lambda: [(t + "\n", list(labels)) for t in four],
        "ragged choices": lambda: [(t, spaced[i : 2 * i + 2]) for i, t in enumerate(four)],
        "sentences": lambda: [
            (t, [" " + c for c in comments[i : i + 3]]) for i, t in enumerate(four)
        ],
        "several contexts": lambda: [
            ([f"{INTRO}{who} said that" for who in ("My father", "Nobody", "I")], [" " + comment])
            for comment in comments[:4]
        ],
        "no context": lambda: [("", spaced), ("", list(labels)), (texts[0], spaced)],
        "trailing spaces": lambda: (
            [(t + " " * (i % 3), spaced) for i, t in enumerate(four)]
            + [(t + " ", list(labels)) for t in four]
            + [(t + " \n ", list(labels)) for t in four]
        ),
        "glued to the context": lambda: [
            (text, [c for c in own if n_tokens(tiny, text + c) > n_tokens(tiny, text)])
            for text, own in {
                "The feeling is jo": ["yful", "ker", " fear"],
                "The feeling is dis": ["gust and dismay", "approval"],
                "The feeling is d": ["isgust and dismay", "o no"],
            }.items()
        ],
        "BOS written out": lambda: [(tiny.bos + t, spaced) for t in four],
        "one prompt begins another": lambda: [
            (text, spaced) for text in ("Comment:", "Comment: lol", "Comment: lol no\nEmotion:")
        ],
        "one-word prompts": lambda: [(t, spaced) for t in ("I", "joy", "lol")],
        "long prompts": lambda: [(long_prompt(comments, n), spaced[:6]) for n in (1, 3, 5)],
        "unicode": lambda: [
            (f"{INTRO}Comment: {text}\nEmotion:", [" joy", " 😀", " café", "\n", " 漢字"])
            for text in (
                "😀😀 \U0001f469\u200d\U0001f467",
                "e\u0301 naïve",
                "漢字かな",
                "\x00\x7f\ufffd",
            )
        ],
    }
    return every[name]()


SCENARIOS = (
    "label set", "one label each", "one-token labels", "shared first tokens",
    "a label begins another", "no delimiter", "ragged choices", "sentences", "several contexts",
    "no context", "trailing spaces", "glued to the context", "BOS written out",
    "one prompt begins another", "one-word prompts", "long prompts", "unicode",
)  # fmt: skip


@pytest.fixture(scope="module")
def mixture(
    tiny: Any, comments: Sequence[str], labels: Sequence[str], make_requests: Callable[..., Any]
) -> tuple[list[Any], list[Answer]]:
    """All scenarios in one call, as the harness sends several tasks; and stock's answers."""
    requests = []
    for name in SCENARIOS:
        docs = scenario(name, tiny, comments, labels)
        requests += make_requests(name, docs, repeats=2 if name == "one-token labels" else 1)
    return requests, scores(stock(tiny), requests)


# ------------------------------------------------------------------ the oracle itself


def one_by_one(tiny: Any, requests: Sequence[Any]) -> list[Answer]:
    """Stock's numbers the slow way: every request by itself, one forward pass, no grouping."""
    lm = stock(tiny)
    answers = []
    for request in requests:
        context, continuation = request.args
        if context:
            before, own = lm._encode_pair(context, continuation)
        else:
            before = [lm.prefix_token_id]
            own = lm.tok_encode(continuation, add_special_tokens=False)
        with torch.no_grad():
            logits = tiny.model(torch.tensor([before + own])).logits[0]
        logprobs = logits.double().log_softmax(-1)[len(before) - 1 : -1]
        value = sum(float(logprobs[i, token]) for i, token in enumerate(own))
        answers.append((value, logprobs.argmax(-1).tolist() == own))
    return answers


def test_stock_equals_one_pass_per_request(tiny: Any, mixture: Any) -> None:
    requests, expected = mixture
    sample = random.Random(0).sample(range(len(requests)), 60)
    chosen = [requests[i] for i in sample]
    assert_same([expected[i] for i in sample], one_by_one(tiny, chosen), chosen, TOLERANCE)


def test_labels_are_what_the_scenarios_say(tiny: Any, labels: Sequence[str]) -> None:
    """Otherwise the scenarios below would not test what they promise."""
    tokens = {
        label: tiny.tokenizer.encode(" " + label, add_special_tokens=False)
        for label in (*labels, "dishonest", "joyfulness")
    }
    assert all(len(tokens[label]) == 1 for label in ("joy", "anger", "fear", "love"))
    assert len(tokens["optimism"]) > 3
    assert len(tokens["disapproval"]) > 2
    assert tokens["disapproval"][0] == tokens["dishonest"][0]
    assert tokens["joyful"][:1] == tokens["joy"]
    assert tokens["joyfulness"][: len(tokens["joyful"])] == tokens["joyful"]


def test_a_wrong_window_would_be_seen(
    tiny_model: Any, fresh_tiny_model: Any, comments: Sequence[str]
) -> None:
    """The tiny sliding-window models do change their answers with the window."""
    for name in ("mistral", "gemma2", "gemma3"):
        right, wrong = tiny_model(name), fresh_tiny_model(name)
        assert right.sliding
        wrong.model.config.sliding_window = 400
        for module in wrong.model.modules():
            if hasattr(module, "sliding_window") and module.sliding_window:
                module.sliding_window = 400
        ids = torch.tensor([right.tokenizer.encode(long_prompt(comments, 1))])
        with torch.no_grad():
            difference = right.model(ids).logits[0, -1] - wrong.model(ids).logits[0, -1]
        assert difference.abs().max() > 0.1, name


# ------------------------------------------------------------------ scenario by scenario


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("architecture", ["gpt2", "gemma3", "mamba"])
def test_scenario(
    tiny_model: Any,
    architecture: str,
    name: str,
    comments: Any,
    labels: Any,
    make_requests: Callable[..., Any],
) -> None:
    """Each by itself on three models; test_everything_at_once has them all on all models."""
    tiny = tiny_model(architecture)
    check(tiny, make_requests(name, scenario(name, tiny, comments, labels)))


@pytest.mark.parametrize(
    ("batch_size", "sharing"), [(1, "on"), (7, "on"), (32, "on"), (1, "off"), (7, "off")]
)
def test_everything_at_once(tiny: Any, mixture: Any, batch_size: int, sharing: str) -> None:
    requests, expected = mixture
    lm = ours(tiny, batch_size=batch_size, prefix_sharing=sharing)
    assert_same(scores(lm, requests), expected, requests, TOLERANCE)


def test_greedy_flags(tiny: Any, comments: Any, make_requests: Callable[..., Any]) -> None:
    """Continuations that the model itself would write, and the same with another end."""
    docs = []
    for text in [*prompts(comments[:5]), "Comment:", "I", *comments[:4]]:
        own = [t for steps in (1, 2, 3) if (t := greedy_text(tiny, text, steps))]
        docs += [(text, [*own, *(t + " joy" for t in own), " joy"])] if own else []
    requests = make_requests("greedy", docs)
    expected = scores(stock(tiny), requests)
    assert sum(greedy for _, greedy in expected) >= 2
    for sharing in ("on", "off"):
        got = scores(ours(tiny, prefix_sharing=sharing), requests)
        assert_same(got, expected, requests, TOLERANCE)


def test_chat_template(tiny: Any, comments: Any, labels: Any, make_requests: Any) -> None:
    """Under a template the labels follow without a space; some templates write BOS themselves."""
    contexts = chat(stock(tiny), comments)
    assert contexts == chat(ours(tiny), comments)
    check(tiny, make_requests("chat", [(context, list(labels)) for context in contexts]))


@pytest.mark.parametrize("add_bos_token", [True, False])
def test_bos_forced_on_and_off(
    tiny_model: Any, comments: Any, labels: Any, make_requests: Any, add_bos_token: bool
) -> None:
    docs = [(text, [" " + label for label in labels]) for text in [*prompts(comments), ""]]
    for name in ("llama", "gpt2"):
        check(tiny_model(name), make_requests("bos", docs), add_bos_token=add_bos_token)


def truncation(
    tiny: Any, comments: Any, labels: Any, make_requests: Any, spare: int, sharing: str
) -> None:
    """A context of the first prompt's length plus `spare` tokens; labels of 1 to 8 tokens."""
    texts = prompts(comments[:3])
    max_length = n_tokens(tiny, texts[0]) + spare
    docs = [(text, [" " + label for label in labels]) for text in texts]
    check(
        tiny,
        make_requests("cut", docs),
        max_length=max_length,
        prefix_sharing=sharing,
        batch_size=7,
    )


@pytest.mark.parametrize("spare", [-30, -9, -8, -7, -5, -2, -1, 0, 1, 7, 8])
@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_left_truncation_around_the_limit(
    tiny_model: Any, architecture: str, comments: Any, labels: Any, make_requests: Any, spare: int
) -> None:
    truncation(tiny_model(architecture), comments, labels, make_requests, spare, "on")


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_left_truncation(
    tiny: Any, comments: Any, labels: Any, make_requests: Any, sharing: str
) -> None:
    truncation(tiny, comments, labels, make_requests, -5, sharing)


def test_truncation_to_the_label_alone(tiny: Any, make_requests: Any) -> None:
    """One token of context is left: max_length is the label's own length."""
    label = " disapproval"
    max_length = len(tiny.tokenizer.encode(label, add_special_tokens=False))
    requests = make_requests("cut", [("I can't believe you did that", [label, " joy"])])
    check(tiny, requests, max_length=max_length)


def test_a_label_that_begins_with_the_prefix_token(tiny: Any, make_requests: Any) -> None:
    """Without a context the harness takes such a label's first token as the context."""
    prefix = tiny.tokenizer.bos_token or tiny.tokenizer.eos_token
    check(tiny, make_requests("prefix", [("", [prefix + "joy", " joy", prefix + "joyful"])]))


# ------------------------------------------------------------------ invariances


SEMANTIC: dict[str, Any] = {
    "scoring": "semantic",
    "kernel": "cosine",
    "space": "centered",
    "tau": "q0.9",
    "top_k": 50,
}


@pytest.fixture
def emotion_requests(comments: Any, labels: Any, make_requests: Any) -> list[Any]:
    docs = [(text, [" " + label for label in labels]) for text in prompts(comments)]
    return make_requests("emotions", docs)


def test_order_of_requests(tiny: Any, mixture: Any) -> None:
    requests, expected = mixture
    order = list(range(len(requests)))
    random.Random(0).shuffle(order)
    shuffled = [requests[i] for i in order]
    got = scores(ours(tiny), shuffled)
    assert_same(got, [expected[i] for i in order], shuffled, TOLERANCE)


def test_order_of_requests_semantic(tiny: Any, emotion_requests: list[Any]) -> None:
    order = list(range(len(emotion_requests)))
    random.Random(2).shuffle(order)
    first = scores(ours(tiny, **SEMANTIC), emotion_requests)
    shuffled = [emotion_requests[i] for i in order]
    second = scores(ours(tiny, **SEMANTIC), shuffled)
    assert_same(second, [first[i] for i in order], shuffled, NOISE)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_batch_size_semantic(tiny: Any, emotion_requests: list[Any], batch_size: int) -> None:
    expected = scores(ours(tiny, batch_size=3, **SEMANTIC), emotion_requests)
    for sharing in ("on", "off"):
        lm = ours(tiny, batch_size=batch_size, prefix_sharing=sharing, **SEMANTIC)
        assert_same(scores(lm, emotion_requests), expected, emotion_requests, NOISE)


@pytest.mark.parametrize("scoring", ["constrained", "semantic"])
def test_shards(tiny: Any, emotion_requests: list[Any], scoring: str) -> None:
    """Documents dealt out to ranks, the last rank's padded with copies of its last request."""
    kwargs = SEMANTIC if scoring == "semantic" else {}
    expected = scores(ours(tiny, **kwargs), emotion_requests)
    for rank in range(3):
        places = [i for i, r in enumerate(emotion_requests) if r.doc_id % 3 == rank]
        shard = [emotion_requests[i] for i in places]
        padded = shard + 4 * shard[-1:]
        wanted = [expected[i] for i in places] + 4 * [expected[places[-1]]]
        assert_same(scores(ours(tiny, **kwargs), padded), wanted, padded, NOISE)


@pytest.mark.parametrize("scoring", ["constrained", "semantic"])
def test_repeats_change_nothing(
    tiny: Any, comments: Any, labels: Any, make_requests: Any, scoring: str
) -> None:
    kwargs = SEMANTIC if scoring == "semantic" else {}
    docs = [(text, [" " + label for label in labels]) for text in prompts(comments[:3])]
    once, thrice = make_requests("emotions", docs), make_requests("emotions", docs, repeats=3)
    expected = [answer for answer in scores(ours(tiny, **kwargs), once) for _ in range(3)]
    got = scores(ours(tiny, **kwargs), thrice)
    assert_same(got, expected, thrice, NOISE)
    assert [got[i] for i in range(0, len(got), 3)] == [got[i] for i in range(1, len(got), 3)]


def test_same_prompt_in_two_tasks(
    tiny: Any, comments: Any, labels: Any, make_requests: Any
) -> None:
    """Grouping must not mix tasks, whose label sets may differ."""
    text = prompts(comments)[0]
    requests = make_requests("a", [(text, [" joy", " fear"])]) + make_requests(
        "b", [(text, [" " + label for label in labels])]
    )
    check(tiny, requests)
    apart = [
        answer
        for task in ("a", "b")
        for answer in scores(ours(tiny, **SEMANTIC), [r for r in requests if r.task_name == task])
    ]
    assert_same(scores(ours(tiny, **SEMANTIC), requests), apart, requests, NOISE)


def test_one_model_object_many_calls(tiny: Any, emotion_requests: list[Any], mixture: Any) -> None:
    """Nothing is left over from an earlier call (caches of prompts, of keys and values)."""
    requests, expected = mixture
    lm = ours(tiny)
    first = scores(lm, emotion_requests)
    assert_same(scores(lm, requests), expected, requests, TOLERANCE)
    assert_same(scores(lm, emotion_requests), first, emotion_requests, NOISE)


def test_no_requests(tiny: Any) -> None:
    assert ours(tiny).loglikelihood([], disable_tqdm=True) == []


@pytest.mark.parametrize("scoring", ["semantic", "constrained"])
def test_label_scores_carry_the_exact_probability(
    tiny: Any, emotion_requests: list[Any], scoring: str
) -> None:
    """Whatever the scoring, `.constrained` is stock's log-likelihood."""
    expected = scores(stock(tiny), emotion_requests)
    kwargs = SEMANTIC if scoring == "semantic" else {}
    answers = ours(tiny, **kwargs).loglikelihood(emotion_requests, disable_tqdm=True)
    got = [(answer.constrained, answer[1]) for answer in answers]
    assert_same(got, expected, emotion_requests, TOLERANCE)
    first_of_document = {r.doc_id: i for i, r in reversed(list(enumerate(emotion_requests)))}
    for i, answer in enumerate(answers):
        carries = answer.readout is not None
        assert carries == (i in first_of_document.values())
    if scoring == "constrained":
        assert [answer[0] for answer in answers] == [answer.constrained for answer in answers]
    else:
        assert any(answer[0] > answer.constrained for answer in answers)


# ------------------------------------------------------------------ tokens, at random

_PIECES = st.sampled_from(
    ["joy", "ful", "dis", "gust", " ", "  ", "\n", "\n\n", ":", "Comment:", " the", "I", "'t", "ß",
     "😀", "漢", "\u0301", "\t", "▁", "<", "0", "12", " fear"]
)  # fmt: skip
_TEXT = st.lists(_PIECES, min_size=1, max_size=12).map("".join)


@cache
def _models_for_tokens() -> dict[str, HFLM]:
    return {}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(contexts=st.lists(_TEXT, min_size=1, max_size=4), tail=_TEXT, continuations=st.lists(
    _TEXT, min_size=1, max_size=4, unique=True
))  # fmt: skip
def test_pairs_are_tokenised_as_the_harness_does(
    tiny_model: Any, name: str, contexts: list[str], tail: str, continuations: list[str]
) -> None:
    """Whatever shortcut is taken, the tokens are those of `HFLM._encode_pair`."""
    from lm_eval_semsoft.models.pairs import PairEncoder

    lms = _models_for_tokens()
    lm = lms.setdefault(name, stock(tiny_model(name)))
    encode = PairEncoder(lm)
    for context in contexts:
        text = context + tail
        if not text.strip():
            continue
        expected = [lm._encode_pair(text, continuation) for continuation in continuations]
        got = [(list(c), list(t)) for c, t in encode(text, continuations)]
        assert got == [(list(c), list(t)) for c, t in expected], (text, continuations)


# ------------------------------------------------------------------ the packaged models


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_packaged_model(
    name: str, comments: Any, labels: Any, make_requests: Callable[..., Any]
) -> None:
    """A few documents in fp32, plain and (where there is one) under the chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lm_eval_semsoft.models import demo

    if demo.DEMO_MODELS[name].gguf_parts() is None:
        pytest.skip(f"{name} is not installed")
    path = demo.resolve("demo:" + name)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)

    def build(cls: type[HFLM], **kwargs: Any) -> HFLM:
        return cls(pretrained=model, tokenizer=tokenizer, batch_size=4, **kwargs)

    reference = build(HFLM)
    docs: list[Doc] = [(t, [" " + label for label in labels[:6]]) for t in prompts(comments[:2])]
    docs += [("", [" joy", " disapproval"]), (prompts(comments)[3] + " ", ["joy", "disapproval"])]
    docs += [(prompts(comments)[0], [" " + comments[1], " " + comments[2]])]
    requests = make_requests("plain", docs)
    if tokenizer.chat_template:
        contexts = chat(reference, comments[:2])
        requests += make_requests("chat", [(c, list(labels)[:6]) for c in contexts])
    expected = scores(reference, requests)
    for kwargs in ({"prefix_sharing": "on"}, {"prefix_sharing": "off"}):
        got = scores(build(SemsoftHF, scoring="constrained", **kwargs), requests)
        assert_same(got, expected, requests, TOLERANCE)
