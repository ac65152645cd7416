"""The plan against brute force: tries, shared prefixes, batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_semsoft.engine.plan import Group, Limits, Prompt, Trie, batches, group_by_prefix

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
label_sets = st.lists(tokens, min_size=1, max_size=6).map(tuple)


def test_trie_of_shared_first_tokens() -> None:
    trie = Trie.of([(5,), (1, 2), (1, 3, 4), (5, 6)])
    assert trie.tokens == (-1, 1, 3, 5)  # answer position, dis-, dis-app-, joy-
    assert trie.parents == (-1, 0, 1, 0)
    assert trie.depths == (0, 1, 2, 1)
    assert trie.n_extra == 3
    assert [read for read in trie.reads if read[0] == 2] == [(2, 0, 1), (2, 1, 3), (2, 2, 4)]


@given(label_sets)
def test_reads_spell_every_label(labels: tuple[tuple[int, ...], ...]) -> None:
    trie = Trie.of(labels)
    for label, expected in enumerate(labels):
        reads = [(node, token) for own, node, token in trie.reads if own == label]
        assert tuple(token for _, token in reads) == expected
        assert [trie.path(node) for node, _ in reads] == [
            expected[:i] for i in range(len(expected))
        ]
    assert len(trie.tokens) == len({label[:i] for label in labels for i in range(len(label))})


def saved(groups: list[Group], overhead: int) -> int:
    return sum(g.prefix * (len(g.members) - 1) - overhead for g in groups if g.prefix)


def saved_by_one_prefix(rows: list[tuple[int, ...]], overhead: int) -> int:
    limit = min(map(len, rows)) - 1
    prefix = next((i for i in range(limit) if len({r[i] for r in rows}) > 1), limit)
    return max(0, prefix * (len(rows) - 1) - overhead)


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_prefixes_are_shared_and_save_no_less_than_one_prefix(
    rows: list[tuple[int, ...]], overhead: int
) -> None:
    prompts = [Prompt(row, ((0,),)) for row in rows]
    groups = group_by_prefix(prompts, overhead)
    assert sorted(i for g in groups for i in g.members) == list(range(len(prompts)))
    for group in groups:
        heads = {prompts[i].tokens[: group.prefix] for i in group.members}
        assert len(heads) == 1
        assert all(len(prompts[i].tokens) > group.prefix for i in group.members)
    assert saved(groups, overhead) >= saved_by_one_prefix(rows, overhead)


def test_tasks_with_their_own_instructions_get_their_own_prefixes() -> None:
    prompts = [Prompt((task,) * 200 + (i, 9), ((0,),)) for task in (1, 2) for i in range(5)]
    groups = group_by_prefix(prompts)
    assert sorted((g.prefix, len(g.members)) for g in groups) == [(200, 5), (200, 5)]


def test_subjects_with_examples_of_their_own_under_one_instruction() -> None:
    """Each subject's long prefix saves more than the short instruction that all share."""
    prompts = [
        Prompt((7,) * 20 + (subject,) * 300 + (i, 9), ((0,),))
        for subject in (1, 2, 3)
        for i in range(4)
    ]
    groups = group_by_prefix([*prompts, Prompt((8, 8), ((0,),))])
    assert sorted((g.prefix, len(g.members)) for g in groups) == [(0, 1), *[(320, 4)] * 3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 40))
def test_batches_respect_their_limits(lengths: list[int], limit: int) -> None:
    prompts = [Prompt(tuple(range(n)), ((0,), (1, 2))) for n in lengths]
    group = Group(0, tuple(range(len(prompts))))
    cut = list(batches(prompts, group, Limits(tokens=limit, answers=6)))
    assert sorted(i for batch in cut for i in batch) == list(range(len(prompts)))
    for batch in cut:
        widest = max(len(prompts[i].tokens) + prompts[i].trie.n_extra for i in batch)
        assert len(batch) == 1 or (widest * len(batch) <= limit and 2 * len(batch) <= 6)
    widths = [len(prompts[batch[0]].tokens) for batch in cut]
    assert widths == sorted(widths, reverse=True)


def test_empty_prompts_and_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Prompt((), ((1,),))
    with pytest.raises(ValueError, match="at least one token"):
        Prompt((1,), ((1,), ()))


def test_no_prompts_are_no_groups() -> None:
    assert group_by_prefix([]) == []
