"""Whole groups: in one process, and split over two."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csr_trainer.groups import Gathered, PartialGroup, fitting, gather, whole_groups
from csr_trainer.rewards import CSR

ROOT = Path(__file__).parents[2]


@given(st.lists(st.sampled_from("abcd"), max_size=24), st.integers(1, 4))
def test_groups_are_a_partition_in_groups_of_one_row(rows, size):
    if any(n % size for n in Counter(rows).values()):
        with pytest.raises(PartialGroup):
            whole_groups(rows, size)
        return
    groups = whole_groups(rows, size)
    assert sorted(place for group in groups for place in group) == list(range(len(rows)))
    for group in groups:
        assert len(group) == size
        assert len({rows[place] for place in group}) == 1
        assert group == sorted(group)
    assert groups == sorted(groups)


def test_without_a_size_every_row_is_a_group():
    assert whole_groups(["a", "b", "a", "c"]) == [[0, 2], [1], [3]]
    assert whole_groups([]) == []


def test_a_row_that_comes_twice_as_often_gives_two_groups():
    """As TRL: rollouts are consecutive, G at a time."""
    assert whole_groups(["a", "a", "b", "b", "a", "a"], 2) == [[0, 1], [2, 3], [4, 5]]


def test_the_refusal_has_numbers_that_work():
    with pytest.raises(PartialGroup) as caught:
        whole_groups(["a"] * 6 + ["b"] * 3, 6, processes=4)
    message = str(caught.value)
    assert "num_generations=6" in message
    assert "row 'b' has 3 of the 9 rollouts of 4 process(es)" in message
    assert "any multiple of 3" in message


@given(st.integers(1, 64), st.integers(1, 16))
def test_the_least_number_that_fits(size, processes):
    least = int(fitting(size, processes).split("any multiple of ")[1].split(";")[0])
    assert least * processes % size == 0
    assert all(n * processes % size for n in range(1, least))


def test_one_process_gathers_its_own():
    assert gather(["x", "y"]) == Gathered(["x", "y"], slice(0, 2), 1)


# --- two processes -------------------------------------------------------------------------------


def one_process(case):
    """Rewards of the same rollouts in one process, cut into the parts of the processes."""
    flat = [rollout for part in case["rollouts"] for rollout in part]
    rewards = CSR("exact", num_generations=case["size"])(
        prompts=["p"] * len(flat),
        completions=[text for _, text in flat],
        row_id=[row for row, _ in flat],
        question=["Capital?"] * len(flat),
        answers=[["Oslo"]] * len(flat),
    )
    ends = [sum(map(len, case["rollouts"][: i + 1])) for i in range(len(case["rollouts"]))]
    return [
        rewards[end - len(part) : end] for end, part in zip(ends, case["rollouts"], strict=True)
    ]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """`two(cases)` -> [process][case] of what `process.py` found, in one start of both."""

    def run(cases):
        folder = tmp_path_factory.mktemp("processes")
        (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("process.py")),
                    *(str(rank), "2", str(folder / "meeting"), str(folder / "cases.json")),
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outputs = [process.communicate(timeout=300) for process in started]
        finally:
            for process in started:
                process.kill()
        for process, (_, errors) in zip(started, outputs, strict=True):
            assert process.returncode == 0, errors
        return [json.loads(out.splitlines()[-1]) for out, _ in outputs]

    return run


def test_two_processes_reward_as_one(two):
    draw = random.Random(5)
    words = ["Oslo", "Bergen", "oslo", "Rome", ""]

    def rollouts(rows, size):
        return [[row, draw.choice(words)] for row in rows for _ in range(size)]

    whole, split, uneven = rollouts("abcd", 4), rollouts("abc", 4), rollouts("ab", 3)
    cases = [
        {"size": 4, "rollouts": [whole[:8], whole[8:]]},  # groups as they should be
        {"size": 4, "rollouts": [split[:6], split[6:]]},  # row b is split
        {"size": 6, "rollouts": [[["a", w] for w in words[:3]], [["a", w] for w in words[1:4]]]},
        {"size": 3, "rollouts": [uneven[:1], uneven[1:]]},  # and processes differ in length
        {"size": 4, "rollouts": [split[:4], split[4:-1]]},  # a rollout is missing
    ]
    found = two(cases)
    for number, case in enumerate(cases[:-1]):
        expected = one_process(case)
        assert [own[number]["rewards"] for own in found] == expected
        assert [len(own[number]["r_cal"]) for own in found] == [len(part) for part in expected]
    for own in found:  # both say so, and nobody waits for the other
        assert "row 'c' has 3 of the 11 rollouts of 2 process(es)" in own[-1]["error"]
        assert "any multiple of 2;" in own[-1]["error"]
