"""Shares, entropies, response times: the columns that all tasks with human data have."""

import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from lm_eval_semsoft.tasks import people
from lm_eval_semsoft.tasks.data import LoadedRows
from lm_eval_semsoft.tasks.people import TimeRule, time_rule

LOADED = LoadedRows([], "local", Path("x.jsonl"), "0")


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda s: sum(s) > 1e-3))
def test_entropy_is_scipys_over_the_logarithm_of_the_options(shares):
    expected = entropy(shares) / math.log(len(shares))
    found = people.entropy(people.normalised(shares))
    assert found == pytest.approx(expected, abs=1e-9)
    assert 0 <= found <= 1 + 1e-12


def test_entropy_at_its_edges():
    assert math.isnan(people.entropy([]))
    assert people.entropy([1.0]) == 0
    assert math.copysign(1, people.entropy([0.0, 1.0])) == 1  # never -0.0
    assert people.entropy([0.25] * 4) == pytest.approx(1)


def test_normalised():
    assert people.normalised([0.5, 0.25, 0.25, 0.22]) == pytest.approx(
        np.array([0.5, 0.25, 0.25, 0.22]) / 1.22
    )
    for bad in ([0, 0], [0.5, -0.1], [math.nan, 1], [math.inf, 1]):
        with pytest.raises(ValueError, match="must be numbers from 0"):
            people.normalised(bad)


def test_right_options():
    assert people.right_options(["a", "b", "c"], 1) == [1]
    assert people.right_options(["a", "b", "a"], 2) == [2, 0]


@pytest.mark.parametrize(
    ("trim", "low", "high"),
    [(None, 0, math.inf), ([500, None], 500, math.inf), ((None, 9e3), 0, 9e3), ([1, 2], 1, 2)],
)
def test_time_rule(trim, low, high):
    assert time_rule(True, trim) == TimeRule(True, low, high)


@pytest.mark.parametrize("trim", [[2, 1], [1, 1], [1], [1, 2, 3], 500, "1,2", [-1, 5], [True, 5]])
def test_bad_trim_times(trim):
    with pytest.raises(ValueError, match=r"trim_times=.* use \[low, high\] in milliseconds"):
        time_rule(False, trim)


def test_bad_log_times():
    with pytest.raises(ValueError, match="log_times='yes' is not known: use true or false"):
        time_rule("yes", None)


def test_times_are_trimmed_and_logged():
    rule = TimeRule(log=True, low=500, high=4000)
    assert rule.apply(500) == (math.log(500), False)
    assert rule.apply(4000)[1] is False
    assert all(math.isnan(rule.apply(ms)[0]) and rule.apply(ms)[1] for ms in (499, 4001))
    assert rule.apply(math.nan)[1] is False  # was unknown before


def test_a_time_of_0_has_no_logarithm():
    assert TimeRule().apply(0.0) == (0.0, False)
    value, gone = TimeRule(log=True).apply(0.0)
    assert math.isnan(value)
    assert gone


def test_finish_counts_what_is_left_out(caplog):
    rows = [
        people.document("a", "A?", options=["x", "y"], labels=[1], human_shares=[0.5, 0.5]),
        people.document("b", "B?", response_time=100.0, response_time_correct=2000.0),
    ]
    dropped = Counter({"broken": 2, "odd": 1, "never": 0})
    with caplog.at_level(logging.INFO, logger="lm_eval_semsoft"):
        test = people.finish("mine", rows, LOADED, dropped, TimeRule(low=500))["test"]
    assert test["dropped_documents"][:] == [3, 3]
    assert test["dropped_times"][:] == [1, 1]
    assert "mine: 2 documents; left out: 2 broken, 1 odd" in caplog.text
    assert test["human_entropy"][0] == pytest.approx(1)
    assert math.isnan(test["human_entropy"][1])
    assert test["label"][:] == [1, -1]
    assert math.isnan(test["response_time"][1])
    assert test["response_time_correct"][1] == 2000
    assert set(test.features) == set(people.FEATURES)


def test_nothing_left():
    with pytest.raises(ValueError, match=r"mine: no document of x\.jsonl is left; .* 4 broken"):
        people.finish("mine", [], LOADED, {"broken": 4})


def test_distinct():
    rows = [{"id": key} for key in ("a", "b", "a", "a", "a-2")]
    assert [row["id"] for row in people.distinct(rows)] == ["a", "b", "a-2", "a-3", "a-2-2"]
