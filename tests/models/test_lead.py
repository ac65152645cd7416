"""Labels that all begin with the same tokens: the answer position is where they part.

A chat template that ends in a line break makes that the first token of every label (the harness
moves trailing white space from the prompt to the continuation). Next to it, p is about 1 and
nobody votes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.engine.plan import Prompt, shared_lead
from lm_eval_semsoft.models.label_scores import LabelScore
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

ARCHITECTURES = ("gpt2", "gemma3", "mamba")  # packed and plain passes


def next_logprobs(tiny: Any, tokens: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = tiny.model(torch.tensor([list(tokens)])).logits[0, -1]
    return logits.double().log_softmax(-1).numpy()


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_readout_is_that_of_the_prompt_with_the_lead(
    tiny_model: Callable[[str], Any], name: str, batch_size: int, one_thread: None
) -> None:
    """Against reading prompt + lead as a prompt of its own, beside prompts without a lead."""
    tiny = tiny_model(name)
    context, lead = (5, 9, 11, 7), (21, 22)
    rest = ((30,), (31, 32), (31, 33))
    leading = Prompt(context, tuple((*lead, *own) for own in rest), len(lead))
    plain = [Prompt((*context, *lead), rest), Prompt(context, rest), Prompt((5, 9, 4), rest)]
    found = dict(Engine(tiny.model).read([leading, *plain], batch_size, 50))
    ours, theirs = found[0], found[1]
    np.testing.assert_allclose(ours.topk_logprobs, theirs.topk_logprobs, atol=1e-4)
    np.testing.assert_allclose(ours.label_logprobs, theirs.label_logprobs, atol=1e-4)
    assert ours.label_first.tolist() == [own[0] for own in rest]
    assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-4)
    expected = next_logprobs(tiny, context)[lead[0]]
    expected += next_logprobs(tiny, (*context, lead[0]))[lead[1]]
    assert ours.lead_logprob == pytest.approx(expected, abs=1e-4)
    assert theirs.lead_logprob == 0
    # greedy only if the lead is, too
    best = [int(next_logprobs(tiny, context).argmax())]
    best.append(int(next_logprobs(tiny, [*context, *best]).argmax()))
    for first in (best[0], (best[0] + 1) % 100):
        prompt = Prompt(context, ((first, best[1]), (first, best[1] + 1)), 1)
        ((_, readout),) = Engine(tiny.model).read([prompt])
        assert readout.label_greedy.tolist() == [first == best[0], False]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_trailing_line_break_changes_nothing_but_a_constant(
    tiny_model: Callable[[str], Any],
    make_requests: Any,
    labels: tuple[str, ...],
    comments: tuple[str, ...],
    name: str,
    one_thread: None,
) -> None:
    """Semantic scores after "…\\n" are those of the prompt that holds the line break."""
    tiny = tiny_model(name)
    lm = SemsoftHF(tiny.model, tokenizer=tiny.tokenizer, space="centered", tau=0.1)
    docs = [(f"{comment}\nassistant\n", list(labels)) for comment in comments[:4]]
    found = lm.loglikelihood(make_requests("chat", docs), disable_tqdm=True)
    by_document = [found[i : i + len(labels)] for i in range(0, len(found), len(labels))]
    for (context, _), scores in zip(docs, by_document, strict=True):
        assert all(isinstance(score, LabelScore) for score in scores)
        readout = scores[0].readout
        assert readout is not None
        whole = lm.tok_encode(context + labels[0])
        before = lm.tok_encode(context.rstrip())
        n_lead = len(lm.tok_encode(context)) - len(before)
        if n_lead < 1 or whole[: len(before) + n_lead] != lm.tok_encode(context):
            pytest.skip("this tokenizer merges the line break with what follows")
        logp = next_logprobs(tiny, whole[: len(before) + n_lead])
        np.testing.assert_allclose(readout.topk_logprobs[:20], np.sort(logp)[::-1][:20], atol=1e-4)
        total = sum(math.exp(score.constrained - readout.lead_logprob) for score in scores)
        assert total == pytest.approx(np.exp(readout.label_logprobs.astype(float)).sum(), rel=1e-5)
        assert any(score[0] > score.constrained + 1e-6 for score in scores)  # somebody voted


def test_some_labels_of_a_set_are_read_where_all_would_be(
    tiny_model: Callable[[str], Any], make_requests: Any, labels: tuple[str, ...], one_thread: None
) -> None:
    """What is left of an interrupted document has the same answer position."""
    tiny = tiny_model("gpt2")
    lm = SemsoftHF(tiny.model, tokenizer=tiny.tokenizer, space="centered", tau=0.1)
    docs = [(f"{text}\nassistant\n", list(labels)) for text in ("one", "two")]
    whole = make_requests("chat", docs)
    first, rest = whole[: len(labels)], whole[len(labels) :]
    expected = lm.loglikelihood(whole, disable_tqdm=True)[len(labels) + 2]
    found = lm.loglikelihood([*first, rest[2]], disable_tqdm=True)[-1]
    assert found == pytest.approx(tuple(expected), abs=1e-4)


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple)


@given(st.lists(tokens, min_size=1, max_size=5))
def test_shared_lead(labels: list[tuple[int, ...]]) -> None:
    n = shared_lead(labels)
    assert len({label[:n] for label in labels}) == 1
    assert all(len(label) > n for label in labels)
    if len(labels) > 1:
        longer = {label[: n + 1] for label in labels}
        assert len(longer) > 1 or any(len(label) == n + 1 for label in labels)
    prompt = Prompt((1,), tuple(labels))
    assert replace(prompt, lead=n).lead == n


def test_a_wrong_lead_is_refused() -> None:
    with pytest.raises(ValueError, match="do not all begin with the same 1 tokens"):
        Prompt((1,), ((2, 3), (4, 3)), 1)
    with pytest.raises(ValueError, match="do not all begin"):
        Prompt((1,), ((2,), (2, 3)), 1)
