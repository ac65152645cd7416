"""Rewards against loops, hand-made cases and scikit-learn, and as TRL calls them."""

import math
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import log_loss

from csr_trainer import rewards
from csr_trainer.groups import PartialGroup
from csr_trainer.rewards import CSR, RLCR, RLVR, CalibrationOnly, RewardingDoubt, reward_named
from csr_trainer.schedule import Blocks, Schedule
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.judges import Judge, resolve

UNIT = st.floats(0, 1)


def by_loops(agree, right, eps):
    """The published sum, term by term, each term clipped at -ln eps."""
    n, out = len(right), []
    for j in range(n):
        total = 0.0
        for i in range(n):
            if i != j:
                p, y = agree[j][i], right[j]
                total += -y * math.log(max(p, eps)) - (1 - y) * math.log(max(1 - p, eps))
        out.append(-total / (n - 1) / -math.log(eps))
    return out


@st.composite
def groups(draw, hard=False, least=2):
    n = draw(st.integers(least, 8))
    values = st.sampled_from([0.0, 1.0]) if hard else UNIT
    table = draw(arrays(np.float64, (n, n), elements=values))
    right = draw(arrays(np.float64, n, elements=st.sampled_from([0.0, 1.0])))
    return np.triu(table) + np.triu(table, 1).T, right


# --- the calibration reward ----------------------------------------------------------------------


@given(groups(), st.floats(1e-9, 0.5))
def test_equals_the_published_sum(group, eps):
    agree, right = group
    got = rewards.calibration_reward(agree, right, eps)
    assert got == pytest.approx(by_loops(agree, right, eps), abs=1e-12)
    assert ((got >= -1) & (got <= 0)).all()


@given(groups(hard=True), st.floats(1e-9, 0.5))
def test_a_hard_judge_gives_the_share_of_mismatches_whatever_eps(group, eps):
    agree, right = group
    n = len(right)
    mismatches = [sum(agree[j, i] != right[j] for i in range(n) if i != j) for j in range(n)]
    got = rewards.calibration_reward(agree, right, eps)
    assert got == pytest.approx([-m / (n - 1) for m in mismatches], abs=1e-12)


@given(groups(), st.randoms(use_true_random=False))
def test_rollouts_may_come_in_any_order(group, random):
    agree, right = group
    order = list(range(len(right)))
    random.shuffle(order)
    got = rewards.calibration_reward(agree[np.ix_(order, order)], right[order])
    assert got == pytest.approx(rewards.calibration_reward(agree, right)[order], abs=1e-12)


@given(groups(), UNIT)
def test_agreement_with_itself_does_not_count(group, diagonal):
    agree, right = group
    other = agree.copy()
    np.fill_diagonal(other, diagonal)
    expected = rewards.calibration_reward(agree, right)
    assert rewards.calibration_reward(other, right).tolist() == expected.tolist()


def test_a_soft_judge_gives_the_mean_cross_entropy():
    agree = np.array([[1, 0.9, 0.2], [0.9, 1, 0.4], [0.2, 0.4, 1]])
    got = rewards.calibration_reward(agree, [1, 1, 0], eps=1e-4)
    pairs = [([1, 1], [0.9, 0.2]), ([1, 1], [0.9, 0.4]), ([0, 0], [0.2, 0.4])]
    losses = [log_loss(y, p, labels=[0, 1]) for y, p in pairs]
    assert got == pytest.approx(np.divide(losses, math.log(1e-4)))


def test_hand_made_groups():
    same, apart = np.ones((4, 4)), np.eye(4)
    reward = rewards.calibration_reward
    assert reward(same, [1, 1, 1, 1]).tolist() == [0, 0, 0, 0]  # sure and right
    assert reward(same, [0, 0, 0, 0]).tolist() == [-1, -1, -1, -1]  # sure and wrong
    assert reward(apart, [0, 0, 0, 0]).tolist() == [0, 0, 0, 0]  # unsure and wrong
    assert reward(apart, [1, 0, 0, 0]).tolist() == [-1, 0, 0, 0]  # right by luck


def test_unknown_answers_and_lone_rollouts():
    got = rewards.calibration_reward(np.eye(2), [math.nan, 0])
    assert math.isnan(got[0])
    assert got[1] == 0
    with pytest.warns(UndefinedMetricWarning, match="group of one"):
        assert rewards.calibration_reward([[1]], [1]).tolist() == [0]
    assert rewards.calibration_reward(np.zeros((0, 0)), []).tolist() == []


@pytest.mark.parametrize(
    ("agree", "right", "eps", "told"),
    [
        (np.ones((2, 3)), [1, 1], 1e-6, "shapes"),
        (np.ones((2, 2)), [1, 1, 1], 1e-6, "shapes"),
        ([[1, 2], [2, 1]], [1, 1], 1e-6, "0 to 1"),
        ([[1, math.nan], [math.nan, 1]], [1, 1], 1e-6, "0 to 1"),
        ([[1, 0], [0, 1]], [1, 2], 1e-6, "0 to 1"),
        ([[1, 0], [1, 1]], [1, 1], 1e-6, "symmetric"),
        (np.ones((2, 2)), [1, 1], 0.0, "eps=0.0"),
        (np.ones((2, 2)), [1, 1], 0.6, "eps=0.6"),
    ],
)
def test_bad_arguments_are_refused(agree, right, eps, told):
    with pytest.raises(ValueError, match=told):
        rewards.calibration_reward(agree, right, eps)


@given(groups(), st.floats(0, 10))
def test_csr_adds_the_weighted_reward(group, lam):
    agree, right = group
    expected = right + lam * np.array(by_loops(agree, right, 1e-6))
    assert rewards.csr(agree, right, lam) == pytest.approx(expected, abs=1e-9)
    assert rewards.csr(agree, right, 0).tolist() == rewards.rlvr(right).tolist()


def test_pairwise_asks_the_judge_once_about_each_pair():
    table = rewards.pairwise(resolve("f1:0.5"), "Who?", ["Jane Austen", "Austen", "Emma", "Emma."])
    assert np.array_equal(table, table.T)
    assert (table >= 0.5).astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 1, 1],
    ]


# --- told confidences ----------------------------------------------------------------------------


def test_rlcr_of_hand_made_replies():
    got = rewards.rlcr([1, 1, 1, 1, 0], [1, 1, 0, 0, 1], [1, 0.5, 0.5, 0, math.nan])
    assert got == pytest.approx([1.5, 1.375, 0.875, 1.0, 0.0])


def test_rlcr_is_best_at_the_true_probability():
    told = np.linspace(0, 1, 101)
    one = np.ones_like(told)
    expected = 0.3 * rewards.rlcr(one, one, told) + 0.7 * rewards.rlcr(one, 0 * one, told)
    assert told[np.argmax(expected)] == pytest.approx(0.3)


def test_rd_of_hand_made_replies():
    got = rewards.rd([1, 1, 1, 1, 0], [1, 0, 1, 0, 1], [1, 0, 0, 1, math.nan])
    low = math.log(0.001) / 2
    worst = 10 * (math.log(0.001) - low) / (math.log(0.999) - low)
    assert got == pytest.approx([12.5, 10, worst + 2.5, worst, -30])
    assert worst == pytest.approx(-10, abs=0.01)


def test_rd_is_best_at_the_true_probability():
    told = np.arange(11) / 10
    one = np.ones_like(told)
    expected = 0.7 * rewards.rd(one, one, told) + 0.3 * rewards.rd(one, 0 * one, told)
    assert told[np.argmax(expected)] == pytest.approx(0.7)


GOOD = "<think>a</think> <answer>Oslo</answer>\n<analysis>b</analysis><confidence>0.8</confidence>"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (GOOD, True),
        (f"\n {GOOD} \n", True),
        (f"Well: {GOOD}", False),
        (f"{GOOD} Bye", False),
        (GOOD + GOOD, False),
        (GOOD.replace("<think>a</think>", ""), False),
        (GOOD.replace("0.8", "high"), False),
        (GOOD.replace("0.8", "-3"), False),
        (GOOD.replace("Oslo", " "), False),
        (GOOD.replace("</answer>", "</answer> and"), False),
        ("<answer>Oslo</answer><think>a</think><analysis/><confidence>1</confidence>", False),
        ("", False),
    ],
)
def test_the_tags_must_be_there_once_and_in_order(text, good):
    assert rewards.well_formed_tags(text) is good


def test_a_long_bad_reply_takes_linear_time():
    assert not rewards.well_formed_tags("<think></think><answer>" * 30_000)


# --- texts ---------------------------------------------------------------------------------------


def test_texts_of_completions():
    text = rewards.completion_text
    assert text("Oslo") == "Oslo"
    assert text([{"role": "assistant", "content": "Oslo"}]) == "Oslo"
    assert text([{"content": "no"}, {"content": [{"type": "text", "text": "Oslo"}]}]) == "Oslo"
    assert text([{"role": "assistant", "content": None}]) == text([]) == ""
    assert rewards.cut(" Oslo\nQuestion: x", ("\n",)) == " Oslo"
    assert rewards.cut("a\nQuestion: b", ()) == "a\nQuestion: b"


# --- as TRL calls them ---------------------------------------------------------------------------


class Equal(Judge):
    """Answers mean the same if their first letters do; counts its calls."""

    def __init__(self):
        super().__init__("equal")
        self.calls = 0

    def score(self, pairs):
        self.calls += 1
        return [float(pair.a[0] == pair.b[0]) for pair in pairs]


def batch(texts, rows, golds=("Oslo",), **more):
    n = len(texts)
    return {
        "prompts": ["p"] * n,
        "completions": list(texts),
        "completion_ids": [[1]] * n,
        "row_id": list(rows),
        "question": ["Capital?"] * n,
        "answers": [list(golds)] * n,
        "trainer_state": SimpleNamespace(global_step=3, max_steps=8),
        "another_column": [0] * n,
        **more,
    }


class Log(dict):
    def __call__(self, name, value):
        assert name not in self
        self[name] = value


def test_csr_of_two_groups_with_the_same_question():
    """Groups are told apart by the row, not by the text of the question."""
    reward = CSR("exact", num_generations=2, schedule=Schedule("linear", 2.0), blocks=Blocks(2, 1))
    extra, metric = Log(), Log()
    given = batch(["Oslo", "Bergen", "Oslo", "oslo"], ["a", "a", "b", "b"])
    got = reward(**given, log_extra=extra, log_metric=metric)
    # Step 3 uses the rollouts of step 2: lambda = 2 · 2/8. "Oslo" of row a is alone with it.
    assert got == [1 - 0.5, 0, 1, 1]
    assert extra["r_cal"] == [-1, 0, 0, 0]
    assert extra["answer"] == ["Oslo", "Bergen", "Oslo", "oslo"]
    assert metric == {
        "csr/right": 0.75,
        "csr/r_cal": -0.25,
        "csr/agreement": 0.5,
        "csr/lambda": 0.5,
    }


@given(st.lists(st.sampled_from("abcdO"), min_size=12, max_size=12), st.permutations(range(12)))
def test_rewards_do_not_depend_on_the_order_of_rollouts(letters, order):
    reward = CSR(Equal(), num_generations=4)
    rows = np.repeat(["x", "y", "z"], 4)
    got = reward(**batch(letters, rows, golds=["O"]))
    moved = reward(**batch([letters[i] for i in order], rows[order], golds=["O"]))
    assert moved == pytest.approx([got[i] for i in order], abs=1e-12)


def test_all_groups_are_judged_in_one_batch():
    judge = Equal()
    rows = np.repeat(np.arange(10), 4)
    CSR(judge, num_generations=4)(**batch([f"{i % 7} x{i}" for i in range(40)], rows))
    assert judge.calls == 2  # pairs of rollouts; rollouts against right answers


def test_base_models_are_read_up_to_the_stop_string():
    texts = [" Oslo\nQuestion: and", " Bergen\nQ"]
    assert RLVR("exact", until=("\n",))(**batch(texts, "aa")) == [1, 0]
    assert RLVR("exact")(**batch(texts, "aa")) == [0, 0]


def test_chat_completions_are_messages():
    texts = [[{"role": "assistant", "content": text}] for text in ("Oslo", "Rome")]
    assert RLVR("exact")(**batch(texts, "aa")) == [1, 0]


def test_questions_without_an_answer_are_left_out():
    metric = Log()
    given = batch(["Oslo", "Oslo"], "aa", golds=())
    assert CSR("exact")(**given, log_metric=metric) == [None, None]
    assert metric.keys() == {"csr/agreement", "csr/lambda"}
    assert RLCR("exact")(**given) == RewardingDoubt("exact")(**given) == [None, None]


def test_soft_scores_are_used_only_where_asked():
    texts, hard, soft = ["Jane Austen", "Austen"], CSR("f1:0.5"), CSR("f1:0.5", soft=True)
    (score,) = resolve("f1:0.5").equivalents([("Capital?", *texts)])
    assert 0.5 < score < 1
    state = SimpleNamespace(global_step=1, max_steps=2)
    given = batch(texts, "aa", golds=["Jane Austen"], trainer_state=state)
    assert hard(**given) == [1, 1]
    expected = 1 + 0.5 * math.log(score) / -math.log(rewards.EPS)
    assert soft(**given) == pytest.approx([expected, expected])


def test_the_baselines_read_their_formats():
    texts = [GOOD, GOOD.replace("Oslo", "Rome"), "Oslo"]
    metric = Log()
    got = RLCR("exact")(**batch(texts, "aaa"), log_metric=metric)
    assert got == pytest.approx([0.5 + 0.5 + 0.5 * 0.96, 0.5 + 0.5 * 0.36, 0])
    assert metric["rlcr/format"] == pytest.approx(2 / 3)
    assert metric["rlcr/brier"] == pytest.approx((0.04 + 0.64) / 2)
    texts = ["Answer: Oslo, Confidence: 10", "Answer: Rome, Confidence: 0", "Oslo"]
    assert RewardingDoubt("exact")(**batch(texts, "aaa")) == pytest.approx([12.5, 10, -30])


def test_calibration_only_forgets_what_is_right():
    assert CalibrationOnly("exact")(**batch(["Oslo", "Rome"], "aa")) == [-1, 0]


def test_partial_groups_and_groups_of_one_are_refused():
    with pytest.raises(PartialGroup, match="row 'b' has 1 of the 3"):
        CSR("exact", num_generations=2)(**batch(["x"] * 3, "aab"))
    with pytest.raises(ValueError, match="num_generations=1 must be at least 2"):
        CSR("exact", num_generations=1)


@pytest.mark.parametrize("name", rewards.REWARDS)
def test_rewards_are_pickled_and_named(name):
    reward = reward_named(
        name, judge="exact", num_generations=2, schedule=Schedule("step"), until=("\n",)
    )
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward
    assert copy.__name__ == name
    given = batch(["Oslo", "Rome"], "aa")
    assert copy(**given) == reward(**given)


def test_reward_named_knows_its_names_and_options():
    with pytest.raises(ValueError, match="did you mean 'rlvr'"):
        reward_named("rvlr")
    with pytest.raises(ValueError, match="did you mean 'schedule'"):
        reward_named("rlvr", shedule=None)


def test_trl_passes_what_rewards_take():
    """TRL's own code calls the rewards of one process, prompts and columns as its data has them."""
    grpo = pytest.importorskip("trl.trainer.grpo_trainer")
    kinds = [CSR("exact", num_generations=2), RLVR("exact")]
    metric, extra = {}, {}
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", is_main_process=True),
        args=SimpleNamespace(report_to=[]),
        reward_funcs=kinds,
        reward_processing_classes=[None, None],
        reward_func_names=[kind.name for kind in kinds],
        state=SimpleNamespace(global_step=4, max_steps=8),
        environments=None,
        _has_async_funcs=False,
        _log_completion_extra=extra.__setitem__,
        _log_metric=metric.__setitem__,
    )
    inputs = [
        {"prompt": "p", "row_id": row, "question": "Capital?", "answers": ["Oslo"]}
        for row in "aabb"
    ]
    texts = ["Oslo", "Bergen", "Oslo", "Oslo"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = grpo.GRPOTrainer._calculate_rewards(trainer, inputs, ["p"] * 4, texts, [[1]] * 4)
    assert got.tolist() == [[0.5, 1], [0, 0], [1, 1], [1, 1]]
    assert metric["csr/lambda"] == 0.5
    assert extra["agreement"] == [0, 0, 1, 1]
