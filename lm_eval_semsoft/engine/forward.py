"""The passes: prompts through a transformers model, readouts out.

Two ways to run a batch, with the same numbers:

- packed: all new tokens of all documents in one row without padding, over the keys and values of
  the shared prefix, each document seeing the prefix and itself only (its label trie included).
  This is one registered attention function, so it works for every model that goes through
  transformers' attention interface; a self-check against the second way guards it.
- plain: one padded row per root-to-node path, the model as it is. For everything else.

Either way only answer positions reach the output embeddings.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface

from .capture import Capture, text_config
from .embeddings import output_head, vocabulary_of
from .plan import GROUP_OVERHEAD, Group, Limits, Prompt, Tokens, Trie, batches, group_by_prefix
from .readout import DEFAULT_TOP_K, NotFinite, Readout, Reads, read_batch

logger = logging.getLogger(__name__)

ATTENTION_NAME = "semsoft_packed"
_FEW = 8  # rows
_HEAD_CHUNK = 16384  # vocabulary rows converted to fp32 at once …
_HEAD_CHUNK_CPU = 1024  # … and so many that a CPU's cache holds them until they are used


class NaNLogits(ValueError):
    """Some logits of a prompt are NaN or infinite; `.index` is the prompt's index."""

    def __init__(self, index: int) -> None:
        super().__init__(f"The logits of prompt {index} are NaN or infinite.")
        self.index = index


# --------------------------------------------------------------------------------------------
# packed attention
# --------------------------------------------------------------------------------------------


class NotPackable(Exception):
    """This model's attention does something that the packed pass does not know."""


@dataclass
class Layout:
    """Where each packed token lives: B documents of at most S new tokens, N tokens in all.

    Attributes:
        padded: [B, S] index into the packed row (0 where there is only padding).
        packed: [N] index into the flattened [B, S] grid.
        visible: [B, S, S] may new token s see new token t (itself, its ancestors)?
        positions: [B, S] position of each new token in its document.
        n_prefix: P, number of shared tokens before all of them.
        prefix: layer -> keys and values of the prefix, [1, H, P, D] each; filled by a pass with
            `record`, read by all others.
        record: keep this pass's keys and values in `prefix` instead of reading them.
    """

    padded: torch.Tensor
    packed: torch.Tensor
    visible: torch.Tensor
    positions: torch.Tensor
    n_prefix: int
    prefix: dict[int, tuple[torch.Tensor, torch.Tensor]]
    record: bool = False
    _masks: dict[tuple[int | None, int, torch.device], torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, heads: int, query: torch.Tensor) -> torch.Tensor:
        """[B, 1, heads * S, P + S], 0 or -inf: which keys may be seen, within a window if any.

        Built once for all layers of a kind, in the form that the attention kernels want.
        """
        if (key := (window, heads, query.device)) not in self._masks:
            seen = self._build_mask(window).to(query.device).repeat(1, 1, heads, 1)
            blank = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
            self._masks[key] = blank.masked_fill_(~seen, float("-inf"))
        return self._masks[key]

    def _build_mask(self, window: int | None) -> torch.Tensor:
        b, s = self.positions.shape
        before = torch.arange(self.n_prefix, device=self.positions.device).expand(b, -1)
        keys = torch.cat([before, self.positions], dim=1)
        seen = torch.cat([self.visible.new_ones(b, s, self.n_prefix), self.visible], dim=2)
        if window is not None:
            seen = seen & (self.positions[:, :, None] - keys[:, None, :] < window)
        return seen[:, None]


# Attention inputs that change the numbers and that `packed_attention` does not compute.
_UNKNOWN_TO_US = ("s_aux", "sinks", "position_bias", "head_mask", "block_indices", "indices")

_layout: Layout | None = None  # what the registered attention function is to assume right now
_windows_seen: set[int | None] = set()


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention of a packed row [1, H, N, D], as transformers' attention interface calls it."""
    layout = _layout
    if layout is None or query.shape[0] != 1:
        raise NotPackable("called outside a packed pass")
    if attention_mask is not None:
        raise NotPackable("its attention brings a mask of its own")
    for name in _UNKNOWN_TO_US:
        if kwargs.get(name) is not None:
            raise NotPackable(f"its attention uses {name}")
    _windows_seen.add(sliding_window)
    index = layout.padded.to(query.device)
    q, k, v = (x[0][:, index].transpose(0, 1) for x in (query, key, value))  # [B, H, S, D]
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise NotPackable("its attention layers are not numbered")
    if layout.record:
        layout.prefix[layer] = (key, value)
    elif layout.n_prefix:
        k, v = (
            torch.cat([p.expand(len(x), -1, -1, -1), x], dim=2)
            for p, x in zip(layout.prefix[layer], (k, v), strict=True)
        )
    mask = layout.mask(sliding_window, q.shape[1] // k.shape[1], query)
    out = _attend(q, k, v, mask, scaling, softcap)
    flat = out.transpose(1, 2).flatten(0, 1)  # [B * S, H, D]
    return flat[layout.packed.to(flat.device)][None], None


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """[B, H, S, D]. Query heads that share a key head are stacked along S: no key is copied."""
    b, heads, s, d = q.shape
    shared = heads // k.shape[1]
    q = q.reshape(b, k.shape[1], shared * s, d)
    if softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    else:
        scores = q @ k.transpose(2, 3) * (d**-0.5 if scaling is None else scaling)
        scores = softcap * torch.tanh(scores / softcap)
        weights = (scores + mask).softmax(-1, dtype=torch.float32)
        out = weights.to(v.dtype) @ v
    return out.reshape(b, heads, s, v.shape[-1])


AttentionInterface.register(ATTENTION_NAME, packed_attention)


@contextmanager
def _packed(layout: Layout) -> Iterator[None]:
    global _layout
    _layout = layout
    try:
        yield
    finally:
        _layout = None


# --------------------------------------------------------------------------------------------
# the output head
# --------------------------------------------------------------------------------------------


@contextmanager
def answers_only(
    head: Any, width: int, rows: Sequence[int], columns: Sequence[int]
) -> Iterator[None]:
    """Let only hidden states [rows, columns] reach the head, and let it work in fp32.

    A half-precision logit of 20 is rounded to 1/8, which is far more than calibration can bear;
    a hook, because what a model does around its head (caps, scales) stays the model's business.
    Columns are counted in the `width` tokens that were given: prompt-tuned adapters put tokens of
    their own before them.
    """

    def select(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = args[0]
        own = torch.tensor(columns, device=hidden.device, dtype=torch.long)
        where = torch.tensor(rows, device=hidden.device, dtype=torch.long)
        return (hidden[where, own + (hidden.shape[1] - width)][None], *args[1:])

    handle = head.register_forward_pre_hook(select)
    upcast = _takes_fp32(head)
    if upcast:
        vars(head)["forward"] = partial(_fp32_linear, head)
    try:
        yield
    finally:
        handle.remove()
        if upcast:
            del vars(head)["forward"]


def _takes_fp32(head: Any) -> bool:
    return _is_bare(head) and head.weight.dtype in (torch.float16, torch.bfloat16)


def _is_bare(head: Any) -> bool:
    """Only a bare nn.Linear: an offloaded, sharded or adapted head keeps its own forward."""
    return (
        type(head) is nn.Linear
        and "forward" not in vars(head)
        and type(head.weight) is nn.Parameter
    )


@contextmanager
def few_rows(head: Any) -> Iterator[None]:
    """Let a CPU read a large fp32 head from memory once for a handful of rows.

    Its matrix product of few rows and a tall matrix takes up to twice as long as of the matrix and
    few columns.
    """
    fp32 = _is_bare(head) and head.weight.dtype == torch.float32
    if not fp32 or head.weight.device.type != "cpu":
        yield
        return
    vars(head)["forward"] = partial(_tall_linear, head)
    try:
        yield
    finally:
        del vars(head)["forward"]


def _tall_linear(head: Any, x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(0, -2)
    if not 1 < len(flat) <= _FEW:
        return F.linear(x, head.weight, head.bias)
    out = (head.weight @ flat.T).T.contiguous().view(*x.shape[:-1], -1)
    return out if head.bias is None else out + head.bias


def _fp32_linear(head: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    out = x.new_empty(*x.shape[:-1], head.out_features)
    step = _HEAD_CHUNK_CPU if x.device.type == "cpu" else _HEAD_CHUNK
    room = x.new_empty(step, head.in_features)  # the same for all: new memory costs more than use
    for start in range(0, head.out_features, step):
        rows = slice(start, min(start + step, head.out_features))
        weight = room[: rows.stop - start].copy_(head.weight[rows])
        out[..., rows] = x @ weight.T
    return out if head.bias is None else out + head.bias.float()


# --------------------------------------------------------------------------------------------
# the engine
# --------------------------------------------------------------------------------------------

Progress = Callable[[int], object]
Indices = tuple[int, ...]
Prefix = dict[int, tuple[torch.Tensor, torch.Tensor]]


class Pass(NamedTuple):
    """What a pass over B documents gives.

    Attributes:
        logits: [n, V] of all their answer positions.
        hidden: [B, layers, d] float16 at their roots, None without capture.
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None


class Engine:
    """Reads prompts with one model.

    Args:
        model: a causal transformers model, in eval mode.
        prefix_sharing: run shared prompt prefixes once (packed); off = plain passes.
        device: where its inputs go; None = where its first weights are.
        autocast: a precision context for its passes.
        capture: keep the activations at the answer positions, `Readout.hidden`.

    Raises:
        ValueError: the model has no output embeddings, or blocks that cannot be captured.
    """

    def __init__(
        self,
        model: Any,
        prefix_sharing: bool = True,
        device: torch.device | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        capture: bool = False,
    ) -> None:
        self.model = model
        self.head = output_head(model)
        self.device = device or next(model.parameters()).device
        self.capture = Capture(model) if capture else None
        self._autocast = autocast
        self._packable: bool | None = None if prefix_sharing else False
        self._most = sys.maxsize  # documents at once, after a lack of memory

    def read(
        self,
        prompts: Sequence[Prompt],
        batch_size: int | None = 1,
        top_k: int = DEFAULT_TOP_K,
        progress: Progress = lambda n: None,
    ) -> Iterator[tuple[int, Readout]]:
        """Yield (index, readout) for every prompt, in the order in which they are done.

        Args:
            prompts: what to read.
            batch_size: memory allowed, in rows of the longest prompt: as many documents run
                together as have no more new tokens than that many whole prompts; None = 64.
                Batches are halved when the device runs out of memory.
            top_k: K, stored tokens per answer position (clipped to the vocabulary).
            progress: called with the number of prompts just done.

        Raises:
            NaNLogits: naming the prompt.
        """
        if not prompts:
            return
        packed = self._can_pack()
        groups = self._groups(prompts) if packed else [Group(0, tuple(range(len(prompts))))]
        limits = limits_for(prompts, batch_size)
        with torch.inference_mode(), self._autocast(), self._attention(packed):
            for group in groups:
                prefix = self._prefix_pass(prompts, group) if packed else {}
                for batch in batches(prompts, group, limits, packed):
                    run = partial(self._read_batch, prompts, group.prefix, prefix, limits, top_k)
                    for part, readouts in self._fitting(batch, run):
                        yield from zip(part, readouts, strict=True)
                        progress(len(part))

    def _fitting(
        self, batch: Indices, run: Callable[[Indices], list[Readout] | None]
    ) -> Iterator[tuple[Indices, list[Readout]]]:
        """Run a batch, in smaller parts from the moment that the device runs out of memory."""
        waiting = deque([batch])
        while waiting:
            part = waiting.popleft()
            if len(part) > self._most:
                waiting.extendleft((part[self._most :], part[: self._most]))
                continue
            readouts = run(part)
            if readouts is None:
                self._most = len(part) // 2
                logger.warning("Out of memory: at most %d documents at once now.", self._most)
                waiting.appendleft(part)
            else:
                yield part, readouts

    def _groups(self, prompts: Sequence[Prompt]) -> list[Group]:
        # An accelerator runs a thousand tokens in the time that it takes to start a pass.
        small_is_cheap = self.device.type == "cpu"
        return group_by_prefix(prompts, GROUP_OVERHEAD if small_is_cheap else 16 * GROUP_OVERHEAD)

    def _read_batch(
        self,
        prompts: Sequence[Prompt],
        n_prefix: int,
        prefix: Prefix,
        limits: Limits,
        top_k: int,
        batch: Indices,
    ) -> list[Readout] | None:
        """The readouts of one batch; None if the device ran out of memory.

        None, because inside `except` the failed pass's tensors would still be alive.
        """
        chosen = [prompts[i] for i in batch]
        try:
            if self._packable:
                done = self._packed_pass(chosen, n_prefix, prefix)
            else:
                done = self._plain_pass(chosen, limits.tokens)
            readouts = read_batch(done.logits, _reads_of(chosen), top_k)
            readouts = [_split_lead(p, r) for p, r in zip(chosen, readouts, strict=True)]
            return _with_hidden(readouts, done.hidden)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            return None
        except NotFinite as error:
            raise NaNLogits(batch[error.row]) from error

    # -- packed ------------------------------------------------------------------------------

    @contextmanager
    def _attention(self, packed: bool) -> Iterator[None]:
        """Switch the model to packed attention for a while; generation keeps its own."""
        if not packed:
            yield
            return
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION_NAME)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)

    def _prefix_pass(self, prompts: Sequence[Prompt], group: Group) -> Prefix:
        if not group.prefix:
            return {}
        tokens = prompts[group.members[0]].tokens[: group.prefix]
        layout = _layout_of([Prompt(tokens, ((0,),))], 0, {}, self.device, record=True)
        with _packed(layout), answers_only(self.head, len(tokens), [], []):
            self._forward(tokens, layout)
        return layout.prefix

    def _packed_pass(self, chosen: Sequence[Prompt], n_prefix: int, prefix: Prefix) -> Pass:
        layout = _layout_of(chosen, n_prefix, prefix, self.device)
        row = [t for p in chosen for t in (*p.tokens[n_prefix:], *p.trie.tokens[1:])]
        answers: list[int] = []
        roots: list[int] = []
        start = 0
        for p in chosen:
            own = len(p.tokens) - n_prefix
            roots.append(start + own - 1 + p.lead)
            answers += range(start + own - 1, start + own + p.trie.n_extra)
            start += own + p.trie.n_extra
        with (
            _packed(layout),
            answers_only(self.head, len(row), [0] * len(answers), answers),
            self._captured(len(row), [0] * len(roots), roots) as kept,
        ):
            return Pass(self._forward(row, layout), self._stacked([kept]))

    def _forward(self, row: Sequence[int], layout: Layout) -> torch.Tensor:
        positions = layout.positions.flatten()[layout.packed][None]
        ids = torch.tensor([row], device=self.device)
        return self.model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]

    def _captured(
        self, width: int, rows: Sequence[int], columns: Sequence[int]
    ) -> AbstractContextManager[dict[int, torch.Tensor]]:
        """layer -> activations [n, d] at positions of the pass inside; empty without capture."""
        if self.capture is None:
            return nullcontext({})
        return self.capture.at(width, rows, columns)

    def _stacked(self, kept: Sequence[dict[int, torch.Tensor]]) -> torch.Tensor | None:
        """[B, layers, d] float16, from one pass after the other."""
        if self.capture is None:
            return None
        return torch.cat([self.capture.stacked(own) for own in kept])

    # -- plain -------------------------------------------------------------------------------

    def _plain_pass(self, chosen: Sequence[Prompt], most_tokens: int = sys.maxsize) -> Pass:
        """Right-padded rows without a mask, as causal attention allows: one per trie leaf.

        The rows of a prompt with many leaves go in several passes if they are too many.
        """
        rows: list[Tokens] = []
        places: list[tuple[int, int]] = []
        roots: list[tuple[int, int]] = []
        for p in chosen:
            own_places = _place_nodes(p, rows)
            roots.append(own_places[p.lead])
            places += own_places
        width = max(map(len, rows))
        step = max(1, most_tokens // width)
        parts, order, hidden = [], [], []
        for start in range(0, len(rows), step):
            own = rows[start : start + step]
            here = [i for i, (row, _) in enumerate(places) if start <= row < start + step]
            order += here
            ids = [[*r, *[0] * (width - len(r))] for r in own]
            at, columns = [places[i][0] - start for i in here], [places[i][1] for i in here]
            mine = [(row - start, column) for row, column in roots if start <= row < start + step]
            with (
                answers_only(self.head, width, at, columns),
                self._captured(width, [r for r, _ in mine], [c for _, c in mine]) as kept,
            ):
                given = torch.tensor(ids, device=self.device)
                parts.append(self.model(input_ids=given, use_cache=False).logits[0])
            hidden.append(kept)
        back = torch.tensor(order, device=parts[0].device).argsort()
        logits = torch.cat(parts)[back] if len(parts) > 1 else parts[0]
        return Pass(logits, self._stacked(hidden))

    # -- may we pack? ------------------------------------------------------------------------

    def _can_pack(self) -> bool:
        if self._packable is None:
            reason = self._why_not_packable()
            self._packable = reason is None
            if reason:
                logger.info(
                    "%s runs without shared prefixes (slower, same numbers): %s.",
                    type(self.model).__name__,
                    reason,
                )
        return self._packable

    def _why_not_packable(self) -> str | None:
        """None if a small packed pass gives the plain pass's numbers, else the reason."""
        able = getattr(self.model, "_can_set_attn_implementation", None)
        if able is None or not able():
            return "its attention cannot be exchanged"
        if rope_depends_on_length(self.model.config):
            return "its rotary embedding depends on the longest position of a call"
        prompts = _probe_prompts(vocabulary_of(self.head))
        try:
            with torch.inference_mode(), self._autocast():
                plain = self._plain_pass(prompts).logits.log_softmax(-1, dtype=torch.float32)
                _windows_seen.clear()
                with self._attention(True):
                    prefix = self._prefix_pass(prompts, Group(4, (0, 1)))
                    packed = self._packed_pass(prompts, 4, prefix).logits
                    packed = packed.log_softmax(-1, dtype=torch.float32)
        except (NotPackable, TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
        if (window := _hidden_window(self.model.config)) and window not in _windows_seen:
            return f"its sliding window of {window} tokens is not told to the attention function"
        return why_different(plain, packed, next(self.model.parameters()).dtype)


def limits_for(prompts: Sequence[Prompt], batch_size: int | None) -> Limits:
    """What a batch size in whole prompts allows to run at once (None: as for 64)."""
    longest = max(len(p.tokens) + p.trie.n_extra for p in prompts)
    rows = 64 if batch_size is None else max(1, batch_size)
    # Logits take V floats a row: a quarter of what a pass over whole prompts would hold.
    return Limits(tokens=rows * longest, answers=max(rows, rows * longest // 4))


def why_different(plain: torch.Tensor, packed: torch.Tensor, dtype: torch.dtype) -> str | None:
    """None if two passes agree on the 20 most probable tokens, as far as their precision goes.

    In half precision another order of sums moves single log-probabilities by tenths, but their
    median by a few hundredths; a wrong mask or position moves all of them by nats.
    """
    top = plain.topk(min(20, plain.shape[-1])).indices
    gaps = (plain.gather(1, top) - packed.gather(1, top)).abs()
    worst, middle = float(gaps.max()), float(gaps.median())
    near = worst < 1e-2 if dtype == torch.float32 else worst < 1.0 and middle < 0.15
    return None if near else f"a packed pass differs by {worst:.3g} nats"


def _reads_of(chosen: Sequence[Prompt]) -> Reads:
    """What to read; the lead that labels share is read as one more label (`_split_lead`)."""
    position, token, label, starts, n_labels = [], [], [], [], []
    n_nodes = before = 0
    for p in chosen:
        starts.append(n_nodes)
        n_labels.append(len(p.labels) + (p.lead > 0))
        for own_label, node, read in p.trie.reads:  # by node, so that positions ascend
            in_lead = node < p.lead
            if in_lead and own_label:
                continue  # the first label's reads stand for all
            label.append(before + (len(p.labels) if in_lead else own_label))
            position.append(n_nodes + node)
            token.append(read)
        n_nodes += len(p.trie.tokens)
        before += n_labels[-1]
    roots = [start + p.lead for start, p in zip(starts, chosen, strict=True)]
    return Reads(position, token, label, n_labels, roots, starts)


def _with_hidden(readouts: Sequence[Readout], hidden: torch.Tensor | None) -> list[Readout]:
    if hidden is None:
        return list(readouts)
    own = hidden.numpy()
    return [replace(readout, hidden=own[i].copy()) for i, readout in enumerate(readouts)]


def _split_lead(prompt: Prompt, readout: Readout) -> Readout:
    if not prompt.lead:
        return readout
    return replace(
        readout,
        label_logprobs=readout.label_logprobs[:-1],
        label_greedy=readout.label_greedy[:-1] & readout.label_greedy[-1],
        label_first=readout.label_first[:-1],
        lead_logprob=float(readout.label_logprobs[-1]),
    )


def _layout_of(
    chosen: Sequence[Prompt],
    n_prefix: int,
    prefix: Prefix,
    device: torch.device,
    record: bool = False,
) -> Layout:
    lengths = [len(p.tokens) - n_prefix + p.trie.n_extra for p in chosen]
    width = max(lengths)
    n = torch.tensor(lengths)
    inside = torch.arange(width) < n[:, None]  # [B, S]
    packed = inside.flatten().nonzero().flatten()
    starts = (n.cumsum(0) - n)[:, None]
    padded = (starts + torch.arange(width)).where(inside, torch.tensor(0))
    visible, positions = _visibility(chosen, n_prefix, width)
    return Layout(
        padded.to(device), packed.to(device), visible.to(device), positions.to(device),
        n_prefix, prefix, record,
    )  # fmt: skip


def _visibility(
    chosen: Sequence[Prompt], n_prefix: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal among a prompt's own tokens; a trie node sees the prompt and its ancestors."""
    visible = torch.ones(width, width, dtype=torch.bool).tril().repeat(len(chosen), 1, 1)
    positions = (n_prefix + torch.arange(width)).repeat(len(chosen), 1)
    for b, p in enumerate(chosen):
        if p.trie.n_extra:
            own, end = len(p.tokens) - n_prefix, len(p.tokens) - n_prefix + p.trie.n_extra
            block, depths = _trie_block(p.trie)
            visible[b, own:end, own:end] = block
            positions[b, own:end] = len(p.tokens) - 1 + depths
    return visible, positions


@lru_cache(maxsize=1024)
def _trie_block(trie: Trie) -> tuple[torch.Tensor, torch.Tensor]:
    """Which extra node sees which, [n, n] bool, and their depths, [n]."""
    block = torch.zeros(trie.n_extra, trie.n_extra, dtype=torch.bool)
    for node, seen in enumerate(trie.ancestry):
        block[node, [s - 1 for s in seen]] = True
    return block, torch.tensor(trie.depths[1:])


def _place_nodes(prompt: Prompt, rows: list[Tokens]) -> list[tuple[int, int]]:
    """Append this prompt's rows; return (row, column) of each trie node's answer position."""
    trie = prompt.trie
    where: list[tuple[int, int]] = [(-1, -1)] * len(trie.tokens)
    for leaf in trie.leaves:
        rows.append((*prompt.tokens, *trie.path(leaf)))
        node = leaf
        while node >= 0 and where[node][0] < 0:
            where[node] = (len(rows) - 1, len(prompt.tokens) - 1 + trie.depths[node])
            node = trie.parents[node]
    return where


def _probe_prompts(vocabulary: int) -> list[Prompt]:
    """Two prompts that share four tokens, with a branching trie: everything packing does."""
    ids = torch.randint(vocabulary, (16,), generator=torch.Generator().manual_seed(0)).tolist()
    labels = ((ids[0], ids[1], ids[2]), (ids[0], ids[3]), (ids[4], ids[5]))
    return [Prompt((*ids[6:10], *ids[10:13]), labels), Prompt((*ids[6:10], *ids[13:16]), labels)]


def rope_depends_on_length(config: Any) -> bool:
    """Does the model choose its rotary frequencies by the longest position of each call?

    Keys of a prefix would be turned by other frequencies than the queries that meet them later.
    """
    given = getattr(text_config(config), "rope_parameters", None) or {}
    each = [given, *(value for value in given.values() if isinstance(value, dict))]
    kinds = {str(rope.get("rope_type", "default")) for rope in each}
    return any("dynamic" in kind or kind == "longrope" for kind in kinds)


def _hidden_window(config: Any) -> int | None:
    """The sliding window that some layer of the model uses, if any."""
    config = text_config(config)
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if types:
        if types - {"full_attention", "sliding_attention"}:
            return sys.maxsize  # a kind of layer that we do not know
        return window if "sliding_attention" in types else None
    return window if getattr(config, "use_sliding_window", True) else None
