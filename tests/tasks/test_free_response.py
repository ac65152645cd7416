"""`coane_oe`: prompts, what counts as right, and measures from a trace."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from lm_eval.api.registry import get_filter
from scipy.stats import spearmanr

from lm_eval_semsoft.tasks import alignment_metrics, free_response, metrics, people
from lm_eval_semsoft.tasks.free_response import (
    bracketed_text,
    is_exact,
    is_right,
    normalised_words,
    process_results,
)

pytestmark = pytest.mark.usefixtures("quick")
VOCABULARY = 50


@dataclass(frozen=True)
class Trace:
    """The fields of a semsoft model's trace."""

    tokens: np.ndarray
    logprobs: np.ndarray
    top_logprobs: np.ndarray
    entropy: np.ndarray
    topk_entropies: np.ndarray
    nucleus_sizes: np.ndarray
    nucleus_entropies: np.ndarray
    ends: np.ndarray
    vocabulary: int


class Text(str):
    """A generated text that carries its trace."""

    trace: Trace


def generated(words, rng):
    """A text of these tokens, with invented probabilities."""
    n = len(words)
    text = Text("".join(words))
    text.trace = Trace(
        tokens=np.arange(n, dtype=np.int32),
        logprobs=-rng.uniform(0, 3, n).astype(np.float32),
        top_logprobs=-rng.uniform(0, 1, n).astype(np.float32),
        entropy=rng.uniform(0, 3, n).astype(np.float32),
        topk_entropies=rng.uniform(0, 1, (n, 5)).astype(np.float32),
        nucleus_sizes=np.full((n, 4), 3, dtype=np.int32),
        nucleus_entropies=rng.uniform(0, 1, (n, 4)).astype(np.float32),
        ends=np.cumsum([len(w) for w in words], dtype=np.int32),
        vocabulary=VOCABULARY,
    )
    return text


def document(i, answer="Paris", **known):
    row = people.document(f"d{i:03}", "?", answers=[answer], **known)
    return {**row, "published_data": 1, "dropped_documents": 0, "dropped_times": 0}


# --- prompts -------------------------------------------------------------------------------------


def test_base_prompt(embedded, load_task, prompts):
    task = load_task("coane_oe")
    prompt, (arguments,) = prompts(task)[0]
    request = free_response.REQUEST
    assert prompt == (
        f"Question: What is the chemical symbol for gold?\n{request}\n"
        "Answer: The chemical symbol for gold is {Au}.\n\n"
        f"Question: In what year did the First World War end?\n{request}\nAnswer: {{1918}}.\n\n"
        f"Question: What do bees collect from flowers to make honey?\n{request}\nAnswer: {{"
    )
    assert arguments["max_gen_toks"] == 150
    assert arguments["do_sample"] is False
    assert "}" not in arguments["until"]


def test_chat_prompt(embedded, load_task, prompts):
    task = load_task("coane_oe")
    prompt, _ = prompts(task, chat=True)[0]
    assert prompt == (
        f"<system>{free_response.Task.instruction}"
        "<user>Question: What is the chemical symbol for gold?"
        "<assistant>The chemical symbol for gold is {Au}."
        "<user>Question: In what year did the First World War end?<assistant>{1918}."
        "<user>Question: What do bees collect from flowers to make honey?<assistant>{"
    )
    assert prompts(task)[0][0].endswith("\nAnswer: {")  # a base model's again


# --- what counts as right ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("Paris}. It is big.", "Paris"),
        (" Paris }", "Paris"),
        ("The capital is {Paris}.", "Paris"),
        ("Paris\nIt is big", "Paris"),
        ("\nParis", "Paris"),
        ("Paris} or {Rome}", "Paris"),
        ("}", ""),
        ("", ""),
        ("no {Paris", "Paris"),
    ],
)
def test_bracketed_text(text, inside):
    assert bracketed_text(text) == inside


@pytest.mark.parametrize(
    ("given", "answer", "exact", "right"),
    [
        ("The Beatles", "Beatles", True, True),
        ("the city of PARIS", "Paris", False, True),
        ("Comăneci!", "Comaneci", True, True),
        ("OConnor", "O'Connor", True, True),
        ("St Gregory", "St. Gregory", True, True),
        ("Mason Dixon line", "Mason-Dixon Line", True, True),
        ("Parisian", "Paris", False, False),
        ("Rome", "Paris", False, False),
        ("", "Paris", False, False),
        ("...", "!!!", False, False),  # nothing is not nothing
        ("New York", "New York Dolls", False, False),
    ],
)
def test_right_answers(given, answer, exact, right):
    assert is_exact(given, [answer]) is exact
    assert is_right(given, ["something else", answer]) is right


def test_articles_and_punctuation():
    assert normalised_words("The  Sun, an OX & a cat.") == ["sun", "ox", "cat"]


# --- measures ------------------------------------------------------------------------------------


def test_measures_are_means_over_their_tokens():
    text = generated([" Par", "is", "}", ".", " Big"], np.random.default_rng(0))
    found = free_response.doubts(text)
    trace, inside = text.trace, slice(0, 2)  # the tokens that begin before the bracket
    doubt = 1 - np.exp(trace.top_logprobs)
    assert found["fr_entropy"] == pytest.approx(trace.entropy.mean(), rel=1e-6)
    assert found["bfr_entropy"] == pytest.approx(trace.entropy[inside].mean(), rel=1e-6)
    assert found["first_entropy"] == pytest.approx(trace.entropy[0], rel=1e-6)
    assert found["bfr_top1"] == pytest.approx(doubt[inside].mean(), rel=1e-6)
    assert found["fr_perplexity"] == pytest.approx(math.exp(-trace.logprobs.mean()), rel=1e-6)
    expected = math.exp(-trace.logprobs[inside].mean())
    assert found["bfr_perplexity"] == pytest.approx(expected, rel=1e-6)


def test_metrics_of_a_run():
    rng = np.random.default_rng(1)
    docs, texts, payloads = [], [], []
    for i in range(30):
        docs.append(
            document(
                i,
                human_accuracy=float(rng.uniform()),
                response_time=float(rng.uniform(5e3, 2e4)),
                response_time_correct=math.nan if i < 3 else float(rng.uniform(5e3, 2e4)),
            )
        )
        texts.append(generated([" Paris" if i % 2 else " Rome", "}", "."], rng))
        payloads.append(process_results(docs[i], [texts[i]]))
    column = {name: [p[name] for p in payloads] for name in payloads[0]}
    assert metrics.mean(column["accuracy"]) == metrics.mean(column["exact_match"]) == 0.5
    entropies = [t.trace.entropy.mean() for t in texts]
    errors = [1 - d["human_accuracy"] for d in docs]
    assert alignment_metrics.spearman(column["spearman_error_fr_entropy"]) == pytest.approx(
        spearmanr(entropies, errors).statistic, abs=1e-9
    )
    first = [t.trace.entropy[0] for t in texts][3:]
    times = [d["response_time_correct"] for d in docs][3:]
    assert alignment_metrics.spearman(column["spearman_rt_correct_first_entropy"]) == pytest.approx(
        spearmanr(first, times).statistic, abs=1e-9
    )
    assert 0 < free_response.ece(column["ece"]) < 1
    assert 0 < free_response.ece_sweep(column["ece_sweep"]) < 1
    assert free_response.ece_stderr(column["ece"]) > 0


def test_a_plain_string_has_an_accuracy_only():
    payloads = [process_results(document(i, human_accuracy=0.1), ["Paris}."]) for i in range(12)]
    column = {name: [p[name] for p in payloads] for name in payloads[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.mean(column["accuracy"]) == 1
        assert math.isnan(free_response.ece(column["ece"]))
        assert math.isnan(free_response.ece_sweep_stderr(column["ece_sweep"]))
        assert math.isnan(alignment_metrics.spearman(column["spearman_rt_fr_entropy"]))


def test_an_empty_answer_is_wrong_and_of_unknown_doubt():
    text = generated([], np.random.default_rng(0))
    payload = process_results(document(0), [text])
    assert payload["accuracy"] == 0
    assert math.isnan(payload["ece"][0])
    full = [process_results(document(i), [generated(["Paris"], np.random.default_rng(i))])
            for i in range(1, 5)]  # fmt: skip
    assert not math.isnan(free_response.ece([payload["ece"], *(p["ece"] for p in full)]))


def test_the_harness_keeps_the_subclass():
    text = generated(["a"], np.random.default_rng(0))
    (kept,) = get_filter("take_first")().apply([[text]], [{}])
    assert kept is text
