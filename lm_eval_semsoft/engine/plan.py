"""Which tokens are run together: shared prefixes, label tries, batches.

The plan is pure bookkeeping on token ids, so that it can be tested without a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

Tokens = tuple[int, ...]

# What a prefix pass and batches of its own cost, in tokens, where small passes are cheap.
GROUP_OVERHEAD = 64
# Keys and values that a batch may read for each new token that it may run: bounds the memory of
# long shared prefixes, which every document of a batch sees.
_KEYS_PER_TOKEN = 4


@dataclass(frozen=True)
class Prompt:
    """One answer position: the tokens before it and the label continuations to score there.

    Attributes:
        tokens: the prompt, at least one token.
        labels: [L] the tokens of each label, at least one token each.
        lead: how many tokens all labels begin with before they part. The answer position is after
            them: where a chat template ends in a line break, say, the harness makes that the
            first token of every label.

    Raises:
        ValueError: no tokens, or labels that do not share their lead.
    """

    tokens: Tokens
    labels: tuple[Tokens, ...]
    lead: int = 0

    def __post_init__(self) -> None:
        if not self.tokens or not all(self.labels):
            raise ValueError("A prompt and each of its labels need at least one token.")
        if self.lead and (
            len({label[: self.lead] for label in self.labels}) > 1
            or min(map(len, self.labels)) <= self.lead
        ):
            raise ValueError(f"The labels do not all begin with the same {self.lead} tokens.")

    @cached_property
    def trie(self) -> Trie:
        return _trie(self.labels)


def shared_lead(labels: Sequence[Tokens]) -> int:
    """How many tokens several labels begin with, always leaving each at least one of its own."""
    if len(labels) < 2:
        return 0
    most = min(map(len, labels)) - 1
    first = labels[0]
    return next(
        (i for i in range(most) if any(label[i] != first[i] for label in labels)), max(most, 0)
    )


@dataclass(frozen=True)
class Trie:
    """The inner nodes of a label set's trie: every place where a label's next token is read.

    Node 0 is the end of the prompt; node i > 0 is an extra token after its parent. The first
    label's nodes come first, so after a lead of m tokens, which all labels share, stands node m.

    Attributes:
        tokens: [n] the token of each node (-1 for node 0).
        parents: [n] parent node (-1 for node 0); parents come before their children.
        depths: [n] number of label tokens up to and including the node.
        reads: (label, node, token) triples, by node and so from a label's first token to its
            last: log P(label) is the sum of log p(token | node).
    """

    tokens: Tokens
    parents: Tokens
    depths: Tokens
    reads: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, labels: Sequence[Tokens]) -> Trie:
        nodes: dict[Tokens, int] = {(): 0}
        parents, reads = [-1], []
        for label, tokens in enumerate(labels):
            for depth, token in enumerate(tokens):
                path = tokens[:depth]
                if path not in nodes:
                    parents.append(nodes[path[:-1]])
                    nodes[path] = len(nodes)
                reads.append((label, nodes[path], token))
        last = tuple(path[-1] if path else -1 for path in nodes)
        reads.sort(key=lambda read: read[1])
        return cls(last, tuple(parents), tuple(map(len, nodes)), tuple(reads))

    @property
    def n_extra(self) -> int:
        """Tokens that must be run after the prompt's own."""
        return len(self.tokens) - 1

    @cached_property
    def leaves(self) -> Tokens:
        """Nodes without children."""
        inner = set(self.parents)
        return tuple(node for node in range(len(self.tokens)) if node not in inner)

    @cached_property
    def ancestry(self) -> tuple[tuple[int, ...], ...]:
        """For each extra node i >= 1, the extra nodes that it sees: itself and its ancestors."""
        seen: list[tuple[int, ...]] = [()]
        for node in range(1, len(self.tokens)):
            seen.append((*seen[self.parents[node]], node))
        return tuple(seen[1:])

    def path(self, node: int) -> Tokens:
        """Label tokens from the answer position down to a node."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tuple(reversed(tokens))


@lru_cache(maxsize=1024)
def _trie(labels: tuple[Tokens, ...]) -> Trie:
    """One trie for all prompts with the same labels."""
    return Trie.of(labels)


@dataclass(frozen=True)
class Group:
    """Prompts (by index) whose first `prefix` tokens are the same and are run once."""

    prefix: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """What may be in flight at once.

    Attributes:
        tokens: new tokens of a batch (padding included).
        answers: answer positions of a batch (rows of V logits).
    """

    tokens: int
    answers: int


def group_by_prefix(prompts: Sequence[Prompt], overhead: int = GROUP_OVERHEAD) -> list[Group]:
    """A flat set of shared prefixes that saves many tokens (greedy, bottom-up).

    In lexicographic order the prompts that share m tokens are neighbours, so the candidates are
    the nested intervals of the longest-common-prefix array. Going up from the leaves, a child
    leaves its parent's group when it saves more by itself. What shares nothing worth while ends
    in one group without a prefix. A group must save more than `overhead` tokens.
    """
    if not prompts:
        return []
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].tokens)
    best = _best_grouping(_shared_lengths([prompts[i].tokens for i in order]), overhead)
    groups = [Group(n, tuple(order[i] for i in members)) for n, members in best.groups]
    alone = tuple(order[i] for i in best.free)
    return groups + ([Group(0, alone)] if alone else [])


def _shared_lengths(ordered: Sequence[Tokens]) -> list[int]:
    """Shared length of neighbours; the last prompt token is never shared: it must be run."""
    lengths = []
    for a, b in pairwise(ordered):
        limit = min(len(a), len(b)) - 1
        n = 0
        while n < limit and a[n] == b[n]:
            n += 1
        lengths.append(n)
    return lengths


@dataclass
class _Best:
    """A good grouping of some neighbours.

    Attributes:
        free: those in no group.
        saved: tokens saved by the groups.
        groups: (prefix, members) of each.
    """

    free: list[int]
    saved: int
    groups: list[tuple[int, list[int]]]

    @property
    def grouped(self) -> list[int]:
        return [i for _, members in self.groups for i in members]


def _best_grouping(shared: Sequence[int], overhead: int) -> _Best:
    """Walk the nested intervals bottom-up, with a stack of those that are still open."""
    open_intervals: list[tuple[int, list[_Best]]] = [(0, [])]
    for i, length in enumerate([*shared, 0]):
        done = _Best([i], 0, [])
        while open_intervals[-1][0] > length:
            prefix, children = open_intervals.pop()
            done = _close(prefix, [*children, done], overhead)
        if open_intervals[-1][0] < length:
            open_intervals.append((length, [done]))
        else:
            open_intervals[-1][1].append(done)
    return _close(*open_intervals[0], overhead)


def _close(prefix: int, children: Sequence[_Best], overhead: int) -> _Best:
    """Group what gains by this prefix; groups of a child that save more by themselves stay."""
    saved, groups, free, dissolved, together = 0, [], [], 0, []
    kept: list[_Best] = []
    for child in children:
        members = child.grouped
        free += child.free
        together += child.free
        if child.saved <= prefix * len(members):
            together += members
            dissolved += child.saved
            kept.append(child)
        else:
            saved += child.saved
            groups += child.groups
    own = prefix * (len(together) - 1) - overhead
    if own > dissolved:
        return _Best([], saved + own, [*groups, (prefix, together)])
    groups += [g for child in kept for g in child.groups]
    return _Best(free, saved + dissolved, groups)


def batches(
    prompts: Sequence[Prompt], group: Group, limits: Limits, packed: bool = True
) -> Iterator[tuple[int, ...]]:
    """Cut a group into batches of prompts of similar length, the longest first.

    Longest first, so that a lack of memory shows at once and the time left is never guessed too
    short. A batch holds at least one prompt, however large that is. A packed batch runs a label
    trie as extra tokens; a plain one runs the whole prompt once per leaf of the trie.
    """

    def width(i: int) -> int:
        own, trie = len(prompts[i].tokens) - group.prefix, prompts[i].trie
        return own + trie.n_extra if packed else len(trie.leaves) * (own + max(trie.depths))

    def fits(n: int, widest: int, answers: int) -> bool:
        return (
            n * widest <= limits.tokens
            and n * (group.prefix + widest) <= _KEYS_PER_TOKEN * limits.tokens
            and answers <= limits.answers
        )

    batch: list[int] = []
    answers = 0
    for i in sorted(group.members, key=lambda i: (-width(i), i)):
        more = len(prompts[i].trie.tokens)
        if batch and not fits(len(batch) + 1, width(batch[0]), answers + more):
            yield tuple(batch)
            batch, answers = [], 0
        batch.append(i)
        answers += more
    if batch:
        yield tuple(batch)
