"""lambda(t) against its formula, and blocks against a loop over forward-backward passes."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csr_trainer.schedule import KINDS, Blocks, Schedule, progress_of

SHARES = st.floats(0, 1)


def state(step, steps):
    return SimpleNamespace(global_step=step, max_steps=steps)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("linear", [0, 0.75, 1.5, 2.25, 3]),
        ("constant", [3, 3, 3, 3, 3]),
        ("cosine", [0, 1.5 * (1 - math.sqrt(0.5)), 1.5, 1.5 * (1 + math.sqrt(0.5)), 3]),
        ("step", [0, 0, 3, 3, 3]),
    ],
)
def test_values_at_the_quarters(kind, values):
    assert [Schedule(kind, 3.0)(i / 4) for i in range(5)] == pytest.approx(values)


def test_begin_and_end_bound_the_rise():
    schedule = Schedule("linear", 2.0, begin=0.2, end=0.6)
    assert [schedule(p) for p in (0, 0.2, 0.3, 0.4, 0.6, 1)] == pytest.approx([0, 0, 0.5, 1, 2, 2])


@given(st.sampled_from(KINDS), st.floats(0, 100), SHARES, SHARES, SHARES, SHARES)
def test_never_decreases_and_stays_within_bounds(kind, top, p, q, begin, end):
    if begin == end:
        end = begin + 1 if begin == 0 else begin
        begin = 0.0
    schedule = Schedule(kind, top, min(begin, end), min(1.0, max(begin, end)))
    low, high = schedule(min(p, q)), schedule(max(p, q))
    assert 0 <= low <= high <= top


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": "quadratic"}, "schedule='quadratic'"),
        ({"lambda_max": -1.0}, "lambda_max=-1.0"),
        ({"lambda_max": math.nan}, "lambda_max=nan"),
        ({"lambda_max": math.inf}, "lambda_max=inf"),
        ({"begin": 0.5, "end": 0.5}, "begin=0.5"),
        ({"end": 1.5}, "end=1.5"),
    ],
)
def test_bad_schedules_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        Schedule(**options)


def passes_of_a_run(passes, accumulation, steps):
    """(optimiser step, step in which its rollouts were made) of every pass, as TRL loops."""
    made = None
    for number in range(steps * accumulation):
        step = number // accumulation
        if number % passes == 0:
            made = step
        yield step, made


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 20))
def test_start_is_the_step_that_made_the_last_rollouts_of_a_step(passes, accumulation, steps):
    blocks = Blocks(passes, accumulation)
    last = dict(passes_of_a_run(passes, accumulation, steps))  # the last pass of each step
    assert [blocks.start(step) for step in range(steps)] == list(last.values())


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 20))
def test_lambda_is_the_same_for_a_whole_block(length, accumulation, steps):
    """Blocks of whole optimiser steps: whichever of them asks, lambda is that of the first."""
    blocks, schedule = Blocks(length * accumulation, accumulation), Schedule("linear", 2.0)
    for step, made in passes_of_a_run(length * accumulation, accumulation, steps):
        got = schedule(progress_of(state(step, steps), blocks))
        assert made == step // length * length
        assert got == pytest.approx(2.0 * made / steps)


def test_progress_before_training_and_at_its_end():
    assert progress_of(None) == progress_of(state(0, 0)) == progress_of(state(0, 10)) == 0
    assert progress_of(state(10, 10)) == 1


def test_blocks_of_a_config():
    args = SimpleNamespace(steps_per_generation=8, num_iterations=2, gradient_accumulation_steps=4)
    assert Blocks.of(args) == Blocks(passes=16, accumulation=4)
    with pytest.raises(ValueError, match="accumulation=0"):
        Blocks(1, 0)
