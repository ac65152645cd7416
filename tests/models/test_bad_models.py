"""Bad models, arguments, labels, documents: one clear sentence, before any model time is spent."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

pytestmark = pytest.mark.usefixtures("one_thread")

SEMANTIC: dict[str, Any] = {"space": "centered", "tau": "q0.9", "kernel": "cosine"}


def build(tiny: Any, **kwargs: Any) -> SemsoftHF:
    kwargs.setdefault("tokenizer", tiny.tokenizer)
    return SemsoftHF(pretrained=tiny.model, batch_size=4, **kwargs)


@contextlib.contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The block raises a ValueError: short, on one line, and naming every one of `parts`."""
    with pytest.raises(ValueError, match=r"\w+") as error:
        yield
    message = str(error.value)
    assert "\n" not in message, message
    assert len(message) < 400, message
    for part in parts:
        assert part.lower() in message.lower(), f"{part!r} is not in: {message}"


def forbid_forward(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on running the model is an error of its own."""

    def forward(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the model was run before its input was checked")

    monkeypatch.setattr(model, "forward", forward)


@pytest.fixture
def llama(tiny_model: Callable[[str], Any]) -> Any:
    return tiny_model("llama")


@pytest.fixture
def ask(
    make_requests: Callable[..., list[Any]], comments: Sequence[str]
) -> Callable[..., list[Any]]:
    """`ask(labels)`: every comment with these labels, as one task called emotions."""

    def requests(labels: Sequence[str], contexts: Sequence[str] | None = None) -> list[Any]:
        texts = contexts or [f"Comment: {comment}\nEmotion:" for comment in comments]
        return make_requests("emotions", [(text, labels) for text in texts])

    return requests


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("argument", "given", "nearest"),
    [
        ("scoring", "semantc", "semantic"),
        ("scoring", "constraint", "constrained"),
        ("space", "centred", "centered"),
        ("space", "whiten", "whitened"),
        ("anchors", "variant", "variants"),
        ("anchors", "speled", "spelled"),
        ("rival_votes", "onn", "on"),
        ("preset", "papr", "paper"),
        ("kernel", "cosin", "cosine"),
        ("kernel", "identiy", "identity"),
        ("prefix_sharing", "offf", "off"),
    ],
)
def test_unknown_value_names_the_nearest(
    llama: Any, argument: str, given: str, nearest: str
) -> None:
    with refused(argument, given, f"did you mean {nearest!r}"):
        build(llama, **{argument: given})


@pytest.mark.parametrize("argument", ["scoring", "space", "anchors", "rival_votes", "preset"])
def test_value_that_is_near_nothing(llama: Any, argument: str) -> None:
    with refused(argument, "12345"):
        build(llama, **{argument: "12345"})


@pytest.mark.parametrize("space", ["pc:0", "pc:-1", "pc:x", "pc:", "pc", "pc:1.5", ""])
def test_bad_space(llama: Any, space: str) -> None:
    with refused("space", space):
        build(llama, space=space)


@pytest.mark.parametrize("tau", [1.5, 1.0, -1.01, float("nan"), "q2", "q1", "q-0.1", "q", "high"])
def test_bad_tau(llama: Any, tau: float | str) -> None:
    with refused("tau", str(tau), "[-1, 1)"):
        build(llama, tau=tau)


@pytest.mark.parametrize("tau", [-1.0, 0, 0.8, "0.8", "q0.5", "q0.999", "q0"])
def test_good_tau(llama: Any, tau: float | str) -> None:
    build(llama, tau=tau)


@pytest.mark.parametrize("top_k", [0, -5, 2.5, "many", True])
def test_bad_top_k(llama: Any, top_k: object) -> None:
    with refused("top_k", str(top_k), "at least 1"):
        build(llama, top_k=top_k)


def test_top_k_above_the_vocabulary(llama: Any, ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Clipped, and said so; the numbers are those of K = vocabulary."""
    requests = ask([" joy", " fear", " disapproval"])
    n_vocabulary = llama.model.config.vocab_size
    with caplog.at_level(logging.INFO, logger="lm_eval_semsoft"):
        got = build(llama, top_k=10**7, **SEMANTIC).loglikelihood(requests, disable_tqdm=True)
    expected = build(llama, top_k=n_vocabulary, **SEMANTIC).loglikelihood(
        requests, disable_tqdm=True
    )
    assert [tuple(g) for g in got] == [tuple(e) for e in expected]
    notes = [r.getMessage() for r in caplog.records if "top_k" in r.getMessage()]
    assert len(notes) == 1
    assert str(n_vocabulary) in notes[0]


def test_unknown_demo_model() -> None:
    with refused("pretrained", "demo:gemma3-270m", "did you mean 'demo:gemma-3-270m'"):
        SemsoftHF(pretrained="demo:gemma3-270m")


# ------------------------------------------------------------------ models


def test_encoder_decoder(llama: Any) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=len(llama.tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    with refused("encoder-decoder", "--model hf"):
        SemsoftHF(pretrained=T5ForConditionalGeneration(config), tokenizer=llama.tokenizer)


def test_model_without_output_embeddings(
    llama: Any, ask: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The body of a model: it has hidden states, but no lm_head."""
    with refused("output embeddings", "LlamaModel"):
        lm = SemsoftHF(pretrained=llama.model.model, tokenizer=llama.tokenizer)
        lm.loglikelihood(ask([" joy", " fear"]), disable_tqdm=True)


@pytest.mark.parametrize("scoring", ["semantic", "constrained"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weight_everywhere(
    fresh_tiny_model: Any, ask: Any, scoring: str, value: float
) -> None:
    broken = fresh_tiny_model("llama")
    with torch.no_grad():
        broken.model.lm_head.weight[5, 7] = value
    with refused("document", "emotions", "NaN"):
        build(broken, scoring=scoring).loglikelihood(ask([" joy", " fear"]), disable_tqdm=True)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma3", "mamba"])
@pytest.mark.parametrize("sharing", ["on", "off"])
def test_nan_names_the_right_document(
    fresh_tiny_model: Any, ask: Any, comments: Sequence[str], architecture: str, sharing: str
) -> None:
    """A broken embedding row hurts only the document with that token, wherever it is batched."""
    broken = fresh_tiny_model(architecture)
    (bad,) = broken.tokenizer.encode(" display", add_special_tokens=False)[-1:]
    texts = [f"Comment: {comment}\nEmotion:" for comment in comments]
    texts[5] = "Comment: a useful display\nEmotion:"
    holders = [i for i, text in enumerate(texts) if bad in broken.tokenizer.encode(text)]
    assert holders == [5]
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[bad] = float("nan")
        head = broken.model.get_output_embeddings()
        if head.weight is broken.model.get_input_embeddings().weight:
            untied = torch.nan_to_num(head.weight.clone())
            head.weight = torch.nn.Parameter(untied)
            broken.model.config.tie_word_embeddings = False
    with refused("document 5 ", "emotions"):
        lm = build(broken, scoring="constrained", prefix_sharing=sharing)
        lm.loglikelihood(ask([" joy", " disapproval"], texts), disable_tqdm=True)


def test_nan_inside_a_label(fresh_tiny_model: Any, ask: Any) -> None:
    """The prompt is fine, the second token of a label is not."""
    broken = fresh_tiny_model("llama")
    piece = broken.tokenizer.encode(" disapproval", add_special_tokens=False)[0]
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[piece] = float("nan")
    with refused("document", "emotions"):
        build(broken, scoring="constrained").loglikelihood(
            ask([" joy", " disapproval"]), disable_tqdm=True
        )


# ------------------------------------------------------------------ labels


@pytest.mark.parametrize("label", ["", " ", "   ", "\n"])
def test_empty_labels(llama: Any, ask: Any, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build(llama, **SEMANTIC)
    forbid_forward(llama.model, monkeypatch)
    with refused("label", repr(label.strip())):
        lm.loglikelihood(ask([" joy", label, " fear"]), disable_tqdm=True)


def test_duplicated_labels(llama: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build(llama, **SEMANTIC)
    forbid_forward(llama.model, monkeypatch)
    with refused("label", "joy", "emotions"):
        lm.loglikelihood(ask([" joy", " fear", " joy"]), disable_tqdm=True)


def test_labels_that_are_the_same_tokens(
    llama: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that lowercases maps Joy and joy to the same tokens."""
    tokenizer = _with_normalizer(llama.tokenizer, lambda n: n.Sequence([n.Lowercase(), _spaces(n)]))
    lm = build(llama, tokenizer=tokenizer, **SEMANTIC)
    forbid_forward(llama.model, monkeypatch)
    with refused("label", "'joy'", "'Joy'", "token"):
        lm.loglikelihood(ask([" joy", " fear", " Joy"]), disable_tqdm=True)


@pytest.mark.parametrize("scoring", ["semantic", "constrained"])
def test_label_that_encodes_to_nothing(
    llama: Any, ask: Any, scoring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero-width space that the tokenizer drops."""
    drop = "\u200b"
    tokenizer = _with_normalizer(
        llama.tokenizer, lambda n: n.Sequence([n.Replace(drop, ""), _spaces(n)])
    )
    lm = build(llama, tokenizer=tokenizer, scoring=scoring)
    forbid_forward(llama.model, monkeypatch)
    with refused("label", repr(drop)):
        lm.loglikelihood(ask([" joy", drop]), disable_tqdm=True)


@pytest.mark.parametrize("scoring", ["semantic", "constrained"])
def test_label_that_melts_into_the_context(llama: Any, ask: Any, scoring: str) -> None:
    """`jo` + `y` has as few tokens as `jo` alone, so none is left for the label."""
    context = "The feeling is jo"
    whole, alone = (len(llama.tokenizer.encode(t)) for t in (context + "y", context))
    assert whole <= alone
    with refused("label", "'y'", "emotions"):
        build(llama, scoring=scoring).loglikelihood(ask(["y", "yful"], [context]))


def test_label_longer_than_the_context(llama: Any, ask: Any) -> None:
    with refused("label", "6", "emotions"):
        build(llama, max_length=6).loglikelihood(ask([" joy", " disapproval of optimism"]))


def test_repeated_choices_are_fine_when_constrained(llama: Any, ask: Any) -> None:
    """Questions with options of their own do repeat one; stock hf scores them, and so do we."""
    requests = ask([" joy", " fear", " joy", "\n"])
    got = build(llama, scoring="constrained").loglikelihood(requests, disable_tqdm=True)
    expected = HFLM(pretrained=llama.model, tokenizer=llama.tokenizer, batch_size=4).loglikelihood(
        requests, disable_tqdm=True
    )
    assert [g[0] for g in got] == pytest.approx([e[0] for e in expected], abs=1e-4)


def test_labels_without_any_neighbour(llama: Any, ask: Any) -> None:
    """tau just below 1: nobody votes, and the score is the label's own probability."""
    requests = ask([" joy", " fear", " disapproval", " 😀"])
    kwargs = {**SEMANTIC, "tau": 0.999999, "anchors": "spelled"}
    for answer in build(llama, **kwargs).loglikelihood(requests, disable_tqdm=True):
        assert answer[0] == pytest.approx(answer.constrained, abs=1e-6)


def _spaces(normalizers: Any) -> Any:
    return normalizers.Replace(" ", "▁")


def _with_normalizer(tokenizer: Any, make: Callable[[Any], Any]) -> Any:
    """A copy of a tokenizer with another normalizer."""
    from tokenizers import Tokenizer, normalizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.normalizer = make(normalizers)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


# ------------------------------------------------------------------ documents


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3"])
def test_ten_thousand_words(
    tiny_model: Any, ask: Any, architecture: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut from the left as stock hf does; counted and said once, not once per label."""
    tiny = tiny_model(architecture)
    words = " ".join(f"word{i} and joy" for i in range(3334))
    contexts = ["Comment: lol no\nEmotion:", f"Comment: {words}\nEmotion:", f"{words} Emotion:"]
    requests = ask([" joy", " fear", " disapproval", " optimism"], contexts)
    stock = HFLM(pretrained=tiny.model, tokenizer=tiny.tokenizer, batch_size=4)
    expected = stock.loglikelihood(requests, disable_tqdm=True)
    caplog.clear()
    lm = build(tiny, scoring="constrained")
    with caplog.at_level(logging.INFO, logger="lm_eval_semsoft"):
        got = lm.loglikelihood(requests, disable_tqdm=True)
    assert [g[0] for g in got] == pytest.approx([e[0] for e in expected], abs=1e-4)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    said = [m for m in said if "left" in m]
    assert len(said) == 1, said
    assert re.search(r"\b2 of 3\b", said[0])
    assert str(lm.max_length) in said[0]


def test_context_of_spaces_only(tiny_model: Any, ask: Any) -> None:
    """With BOS that is a context; without, nothing is left to read."""
    requests = ask([" joy", " fear"], ["  "])
    with_bos = tiny_model("llama")
    stock = HFLM(pretrained=with_bos.model, tokenizer=with_bos.tokenizer, batch_size=4)
    expected = stock.loglikelihood(requests, disable_tqdm=True)
    got = build(with_bos, scoring="constrained").loglikelihood(requests, disable_tqdm=True)
    assert [g[0] for g in got] == pytest.approx([e[0] for e in expected], abs=1e-4)
    with refused("document 0 ", "emotions"):
        build(tiny_model("gpt2"), scoring="constrained").loglikelihood(requests)


@pytest.mark.parametrize("scoring", ["semantic", "constrained"])
def test_emoji(llama: Any, ask: Any, scoring: str) -> None:
    contexts = ["Comment: 😀😀👩‍👩‍👧\nEmotion:", "😀", "\ud83d".encode("utf-8", "replace").decode()]
    requests = ask([" joy", " 😀", " 😡"], contexts)
    kwargs = SEMANTIC if scoring == "semantic" else {}
    for value, _ in build(llama, scoring=scoring, **kwargs).loglikelihood(requests):
        assert -1e4 < value <= 0.5
