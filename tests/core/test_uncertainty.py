"""Measures of doubt against loops over whole distributions, and scipy's entropy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from lm_eval_semsoft.core import uncertainty
from lm_eval_semsoft.core.uncertainty import (
    NUCLEUS_LEVELS,
    TOP_KS,
    answer_measures,
    bracketed,
    entropy,
    normalised,
    option_logprobs,
    option_measures,
    perplexity,
    token_measures,
    top_k_entropy,
)

V = 300
logit_lists = st.lists(
    st.floats(-50, 50, width=32) | st.just(-math.inf), min_size=1, max_size=12
).filter(lambda x: max(x) > -math.inf)


def distributions(*shape, v=V, seed=0):
    """Log-probabilities [*shape, V], from flat to sharp."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.1, 6, (*shape, 1))
    return special.log_softmax(scale * rng.normal(size=(*shape, v)), axis=-1)


def by_hand(logprobs):
    """Every measure of one full distribution, token by token."""
    p = sorted((math.exp(x) for x in logprobs), reverse=True)

    def nats(part):
        return stats.entropy(np.array(part) / sum(part))

    found = {"top1": 1 - p[0], "entropy": nats(p), "entropy_norm": nats(p) / math.log(len(p))}
    for k in (5, 10, 25, 50, 100):
        k_found = min(k, len(p))
        found[f"top{k}_entropy"] = nats(p[:k])
        found[f"top{k}_entropy_norm"] = nats(p[:k]) / math.log(k_found)
    for percent in (50, 75, 90, 95):
        nucleus, mass = [], 0.0
        for one in p:
            if mass < percent / 100:
                nucleus.append(one)
            mass += one
        n = len(nucleus)
        found[f"nucleus{percent}_entropy"] = nats(nucleus)
        found[f"nucleus{percent}_entropy_norm"] = nats(nucleus) / math.log(n) if n > 1 else 0.0
        found[f"nucleus{percent}_size"] = n
    return found


def measured(logprobs, stored):
    """The same by the module, of [..., V]; nuclei are a readout's, so they come from the loop."""
    flat = logprobs.reshape(-1, logprobs.shape[-1])
    loops = [by_hand(row) for row in flat]

    def column(end):
        table = [[one[f"nucleus{round(100 * p)}_{end}"] for p in NUCLEUS_LEVELS] for one in loops]
        return np.reshape(table, (*logprobs.shape[:-1], len(NUCLEUS_LEVELS)))

    top = -np.sort(-logprobs, axis=-1)[..., :stored]
    got = token_measures(
        top, entropy(logprobs), column("size"), column("entropy"), logprobs.shape[-1]
    )
    return got, loops


@pytest.mark.parametrize("shape", [(7,), (3, 4), ()])
@pytest.mark.parametrize("v", [V, 12])
def test_token_measures_are_those_of_a_loop_over_the_vocabulary(shape, v):
    logprobs = distributions(*shape, v=v)
    got, loops = measured(logprobs, stored=v)
    assert got.keys() == loops[0].keys()
    for name, values in got.items():
        assert values.shape == shape
        expected = np.reshape([one[name] for one in loops], shape)
        np.testing.assert_allclose(values, expected, atol=1e-12, err_msg=name)


def test_what_is_not_stored_is_nan_and_no_guess():
    got, loops = measured(distributions(4), stored=30)
    missing = {name for name, values in got.items() if np.isnan(values).any()}
    assert missing == {f"top{k}_entropy{end}" for k in (50, 100) for end in ("", "_norm")}
    np.testing.assert_allclose(
        got["top25_entropy"], [one["top25_entropy"] for one in loops], atol=1e-12
    )


@given(logit_lists)
def test_entropy_is_scipys_of_the_softmax(logits):
    got = entropy(logits)
    assert got == pytest.approx(stats.entropy(special.softmax(logits)), abs=1e-9)
    assert 0 <= got <= math.log(len(logits)) + 1e-12
    assert entropy(np.float32(logits) + 7) == pytest.approx(float(got), abs=1e-4)


@given(logit_lists, st.randoms(use_true_random=False))
def test_entropy_knows_no_order_and_grows_when_probabilities_are_mixed(logits, random):
    mixed = list(logits)
    random.shuffle(mixed)
    assert entropy(mixed) == pytest.approx(float(entropy(logits)), abs=1e-9)
    halves = np.logaddexp(special.log_softmax(logits), special.log_softmax(mixed)) - math.log(2)
    assert entropy(halves) >= entropy(logits) - 1e-9


@given(st.lists(st.floats(-30, 0, width=32), min_size=2, max_size=20), st.data())
def test_the_top_k_are_the_first_k(logprobs, data):
    top = sorted(logprobs, reverse=True)
    k = data.draw(st.integers(1, len(top)))
    p = np.exp(np.float64(top[:k]))
    assert top_k_entropy(top, k) == pytest.approx(stats.entropy(p / p.sum()), abs=1e-9)
    assert 0 <= normalised(top_k_entropy(top, k), k) <= 1 + 1e-12


def test_entropy_along_an_axis():
    logprobs = distributions(3, 5)
    np.testing.assert_allclose(
        entropy(logprobs, axis=1), entropy(np.swapaxes(logprobs, 1, 2)), atol=1e-12
    )


def test_entropy_of_certainty_and_of_nothing():
    assert entropy([0.0, -np.inf, -np.inf]) == 0
    assert entropy([-900.0, -900.0]) == pytest.approx(math.log(2))
    for nothing in ([], [-np.inf, -np.inf], [0.0, np.nan]):
        assert np.isnan(entropy(nothing))
    assert entropy(np.empty((3, 0))).shape == (3,)


def test_normalised_by_one_is_zero():
    np.testing.assert_array_equal(normalised([0.3, 0.0, math.log(4)], [1, 0, 4]), [0, 0, 1])
    assert np.isnan(normalised(np.nan, 5))


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=10))
def test_perplexity_is_the_inverse_geometric_mean(logprobs):
    expected = 1 / stats.gmean(np.exp(logprobs))
    assert perplexity(logprobs) == pytest.approx(expected, rel=1e-9)


def test_perplexity_of_nothing():
    assert np.isnan(perplexity([]))
    assert perplexity([[0.0, 0.0], [-1.0, -3.0]]) == pytest.approx([1, math.exp(2)])


def test_doubt_is_exact_near_certainty():
    assert uncertainty.doubt(-1e-20) == pytest.approx(1e-20)
    assert uncertainty.doubt([0.0, -np.inf, 1e-9]) == pytest.approx([0, 1, 0])


# ------------------------------------------------------------------ options


def test_options_sum_over_the_tokens_that_spell_them():
    logprobs = distributions(6, 2)
    ids = np.argsort(-logprobs, axis=-1)
    variants = [[3, 7, 7, 250], [1], [299, 0]]
    got = option_logprobs(ids, np.take_along_axis(logprobs, ids, -1), variants)
    for place in np.ndindex(6, 2):
        p = np.exp(logprobs[place])
        expected = [p[3] + p[7] + p[250], p[1], p[299] + p[0]]
        np.testing.assert_allclose(np.exp(got[place]), expected, rtol=1e-9)


def test_an_option_that_is_not_stored_has_its_exact_probability():
    ids, logs = [[5, 2, 9]], np.log([[0.5, 0.2, 0.1]])
    got = option_logprobs(ids, logs, [[5, 9], [2, 77], [88]])
    np.testing.assert_allclose(np.exp(got), [[0.6, 0.2, 0.0]])
    got = option_logprobs(ids, logs, [[5, 9], [2, 77], [88]], exact=np.log([[0.5, 0.21, 0.01]]))
    np.testing.assert_allclose(np.exp(got), [[0.6, 0.21, 0.01]])


def test_option_measures():
    p = np.array([[0.4, 0.2, 0.1, 0.1], [0.5, 0.25, 0.25, 0.0]])
    with np.errstate(divide="ignore"):
        got = option_measures(np.log(p))
    expected = [stats.entropy(row) for row in p]
    np.testing.assert_allclose(got["option_entropy"], expected)
    np.testing.assert_allclose(
        got["option_entropy_norm"], [expected[0] / math.log(4), expected[1] / math.log(3)]
    )
    np.testing.assert_allclose(got["option_top1"], [0.6, 0.5])
    assert set(option_measures(p, variants=True)) == {
        "option_entropy_variants", "option_entropy_variants_norm", "option_top1_variants",
    }  # fmt: skip


def test_no_option_is_no_certainty():
    got = option_measures([[-np.inf, -np.inf], [-np.inf, -1.0]])
    np.testing.assert_array_equal(got["option_entropy_norm"], [np.nan, 0])
    assert np.isnan(option_measures(np.empty((2, 0)))["option_top1"]).all()


# ------------------------------------------------------------------ answers


@pytest.mark.parametrize(
    ("pieces", "inside"),
    [
        (["The", " Beatles", "}.", "\n", "What"], [1, 1, 0, 0, 0]),
        (["The", " Beat", "les}"], [1, 1, 1]),
        (["It", " is {", "A", "u", "}", "!"], [0, 0, 1, 1, 0, 0]),
        (["It", " is {A", "u", "}"], [0, 1, 1, 0]),
        (["no", " bracket"], [1, 1]),
        (["}", "late"], [0, 0]),
        (["a", "}", "{", "b", "}"], [1, 0, 0, 0, 0]),
        (["{", "}"], [0, 0]),
        ([], []),
    ],
)
def test_tokens_inside_the_first_brackets(pieces, inside):
    ends = np.cumsum([len(piece) for piece in pieces], dtype=int)
    np.testing.assert_array_equal(bracketed("".join(pieces), ends), np.array(inside, dtype=bool))


def test_an_answer_is_the_mean_of_its_tokens():
    logprobs = distributions(5)
    measures, loops = measured(logprobs, stored=V)
    own = np.random.default_rng(1).uniform(-3, 0, 5)
    got = answer_measures(own, measures, "abc}e", [1, 2, 3, 4, 5])
    for prefix, tokens in {"fr": range(5), "bfr": range(3), "first": range(1)}.items():
        for name in measures:
            expected = np.mean([loops[t][name] for t in tokens])
            if name.startswith("nucleus") and name.endswith("_norm"):
                stem = name.removesuffix("_entropy_norm")
                unsure = [loops[t] for t in tokens if loops[t][f"{stem}_size"] > 1]
                room = sum(math.log(one[f"{stem}_size"]) for one in unsure)
                total = sum(one[f"{stem}_entropy"] for one in unsure)
                expected = total / room if unsure else 0.0
            assert got[f"{prefix}_{name}"] == pytest.approx(expected, abs=1e-12), name
    assert got["fr_perplexity"] == pytest.approx(math.exp(-own.mean()))
    assert got["bfr_perplexity"] == pytest.approx(math.exp(-own[:3].mean()))
    assert len(got) == 3 * len(measures) + 2


def test_an_answer_without_tokens_is_nan():
    empty = {name: x[:0] for name, x in measured(distributions(2), stored=V)[0].items()}
    assert all(math.isnan(x) for x in answer_measures([], empty, "", []).values())
    one = {name: x[:1] for name, x in measured(distributions(2), stored=V)[0].items()}
    got = answer_measures([-0.5], one, "}", [1])
    assert all(math.isnan(x) == name.startswith("bfr_") for name, x in got.items())


def test_float32_is_enough():
    logprobs = distributions(50)
    got, _ = measured(logprobs.astype(np.float32), stored=V)
    exact, _ = measured(logprobs, stored=V)
    assert all(values.dtype == np.float64 for values in got.values())
    for k in TOP_KS:
        name = f"top{k}_entropy"
        np.testing.assert_allclose(got[name], exact[name], atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_k_entropy([0.0, -1.0], 3), "k=3 is not allowed: 2 tokens are stored"),
        (lambda: top_k_entropy([0.0, -1.0], 0), "k=0"),
        (lambda: option_logprobs([1, 2], [0.5], [[1]]), r"shape \[2\] but topk_logprobs \[1\]"),
        (lambda: option_logprobs([1], [0.5], [[1]], exact=[1, 2]), r"exact has the shape \[2\]"),
        (
            lambda: token_measures(np.zeros((3, 9)), np.zeros(2), 0, 0, 9),
            r"entropy has the shape \[2\]; it must be \[3\]",
        ),
        (
            lambda: token_measures(np.zeros((3, 9)), np.zeros(3), np.zeros((3, 4)), 0, 9),
            r"nucleus_entropies has the shape \[\]; it must be \[3, 4\]",
        ),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
