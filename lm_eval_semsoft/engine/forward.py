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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface

from .embeddings import output_head
from .plan import Group, Limits, Prompt, batches, group_by_prefix
from .readout import DEFAULT_TOP_K, NotFinite, Readout, Reads, read_batch

logger = logging.getLogger(__name__)

ATTENTION_NAME = "semsoft_packed"
_HEAD_CHUNK = 16384  # vocabulary rows converted to fp32 at once


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
    _masks: dict[tuple[int | None, torch.device], torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, device: torch.device) -> torch.Tensor:
        """[B, 1, S, P + S] bool: which keys a query may see, within a sliding window if any."""
        if (key := (window, device)) not in self._masks:
            self._masks[key] = self._build_mask(window).to(device)
        return self._masks[key]

    def _build_mask(self, window: int | None) -> torch.Tensor:
        b, s = self.positions.shape
        before = torch.arange(self.n_prefix, device=self.positions.device).expand(b, -1)
        keys = torch.cat([before, self.positions], dim=1)
        seen = torch.cat([self.visible.new_ones(b, s, self.n_prefix), self.visible], dim=2)
        if window is not None:
            seen = seen & (self.positions[:, :, None] - keys[:, None, :] < window)
        return seen[:, None]


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
    for name in ("s_aux", "position_bias", "head_mask"):
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
    out = _attend(q, k, v, layout.mask(sliding_window, query.device), scaling, softcap)
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
    mask = mask.repeat(1, 1, shared, 1)
    if softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    else:
        scores = q @ k.transpose(2, 3) * (d**-0.5 if scaling is None else scaling)
        scores = softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32)
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
def _answers_only(head: Any, rows: torch.Tensor, columns: torch.Tensor) -> Iterator[None]:
    """Let only hidden states [rows, columns] reach the head, and let it work in fp32.

    A half-precision logit of 20 is rounded to 1/8, which is far more than calibration can bear;
    a hook, because what a model does around its head (caps, scales) stays the model's business.
    """

    def select(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = args[0]
        return (hidden[rows.to(hidden.device), columns.to(hidden.device)][None], *args[1:])

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


def _takes_fp32(head: nn.Module) -> bool:
    """Only a bare nn.Linear: an offloaded, sharded or adapted head keeps its own forward."""
    return (
        type(head) is nn.Linear
        and "forward" not in vars(head)
        and type(head.weight) is nn.Parameter
        and head.weight.dtype in (torch.float16, torch.bfloat16)
    )


def _fp32_linear(head: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    out = x.new_empty(*x.shape[:-1], head.out_features)
    for start in range(0, head.out_features, _HEAD_CHUNK):
        rows = slice(start, start + _HEAD_CHUNK)
        out[..., rows] = x @ head.weight[rows].float().T
    return out if head.bias is None else out + head.bias.float()


# --------------------------------------------------------------------------------------------
# the engine
# --------------------------------------------------------------------------------------------

Progress = Callable[[int], object]


class Engine:
    """Reads prompts with one model.

    Args:
        model: a causal transformers model, in eval mode.
        prefix_sharing: run shared prompt prefixes once (packed); off = plain passes.

    Raises:
        ValueError: the model has no output embeddings.
    """

    def __init__(self, model: Any, prefix_sharing: bool = True) -> None:
        self.model = model
        self.head = output_head(model)
        self.prefix_sharing = prefix_sharing
        self._packable: bool | None = None if prefix_sharing else False

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

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
                together as have no more new tokens than that many whole prompts. None = as many
                as the device takes (halved whenever it runs out of memory).
            top_k: K, stored tokens per answer position (clipped to the vocabulary).
            progress: called with the number of prompts just done.

        Raises:
            NaNLogits: naming the prompt.
        """
        if not prompts:
            return
        packed = self._can_pack()
        groups = group_by_prefix(prompts) if packed else [Group(0, tuple(range(len(prompts))))]
        limits = self._limits(prompts, batch_size)
        with torch.inference_mode(), self._attention(packed):
            for group in groups:
                prefix = self._prefix_pass(prompts, group) if packed else {}
                for batch in batches(prompts, group, limits):
                    yield from self._read_batch(prompts, group, batch, prefix, packed, top_k)
                    progress(len(batch))

    def _limits(self, prompts: Sequence[Prompt], batch_size: int | None) -> Limits:
        longest = max(len(p.tokens) + p.trie.n_extra for p in prompts)
        rows = _AUTO_ROWS if batch_size is None else max(1, batch_size)
        # Logits take V floats a row: a quarter of what a pass over whole prompts would hold.
        return Limits(tokens=rows * longest, answers=max(rows, rows * longest // 4))

    def _read_batch(
        self,
        prompts: Sequence[Prompt],
        group: Group,
        batch: tuple[int, ...],
        prefix: Prefix,
        packed: bool,
        top_k: int,
    ) -> Iterator[tuple[int, Readout]]:
        chosen = [prompts[i] for i in batch]
        try:
            if packed:
                logits = self._packed_pass(chosen, group.prefix, prefix)
            else:
                logits = self._plain_pass(chosen)
            readouts = read_batch(logits, _reads_of(chosen), top_k)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            logger.warning("Out of memory with %d documents: halving.", len(batch))
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]):
                yield from self._read_batch(prompts, group, part, prefix, packed, top_k)
            return
        except NotFinite as error:
            raise NaNLogits(batch[error.row]) from error
        yield from zip(batch, readouts, strict=True)

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
        last = torch.tensor([len(tokens) - 1])
        with _packed(layout), _answers_only(self.head, torch.zeros_like(last), last):
            self._forward(torch.tensor([tokens]), layout)
        return layout.prefix

    def _packed_pass(self, chosen: Sequence[Prompt], n_prefix: int, prefix: Prefix) -> torch.Tensor:
        layout = _layout_of(chosen, n_prefix, prefix, self.device)
        row = [t for p in chosen for t in (*p.tokens[n_prefix:], *p.trie.tokens[1:])]
        answers: list[int] = []
        start = 0
        for p in chosen:
            own = len(p.tokens) - n_prefix
            answers += range(start + own - 1, start + own + p.trie.n_extra)
            start += own + p.trie.n_extra
        columns = torch.tensor(answers)
        with _packed(layout), _answers_only(self.head, torch.zeros_like(columns), columns):
            return self._forward(torch.tensor([row]), layout)

    def _forward(self, row: torch.Tensor, layout: Layout) -> torch.Tensor:
        positions = layout.positions.flatten()[layout.packed][None]
        ids = row.to(self.device)
        return self.model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]

    # -- plain -------------------------------------------------------------------------------

    def _plain_pass(self, chosen: Sequence[Prompt]) -> torch.Tensor:
        """Right-padded rows without a mask, as causal attention allows: one per trie leaf."""
        rows: list[tuple[int, ...]] = []
        at, columns = [], []
        for p in chosen:
            row_of = _place_nodes(p, rows)
            at += [row for row, _ in row_of]
            columns += [column for _, column in row_of]
        width = max(map(len, rows))
        ids = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows], device=self.device)
        with _answers_only(self.head, torch.tensor(at), torch.tensor(columns)):
            return self.model(input_ids=ids, use_cache=False).logits[0]

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
        prompts = _probe_prompts(self.head.weight.shape[0])
        whole = Group(4, (0, 1))
        try:
            with torch.inference_mode():
                plain = self._plain_pass(prompts).float().log_softmax(-1)
                _windows_seen.clear()
                with self._attention(True):
                    prefix = self._prefix_pass(prompts, whole)
                    packed = self._packed_pass(prompts, 4, prefix).float().log_softmax(-1)
        except (NotPackable, TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
        if (window := _hidden_window(self.model.config)) and window not in _windows_seen:
            return f"its sliding window of {window} tokens is not told to the attention function"
        top = plain.topk(min(20, plain.shape[-1])).indices
        gap = (plain.gather(1, top) - packed.gather(1, top)).abs().max().item()
        tolerance = 1e-2 if plain.dtype == self.head.weight.dtype else 1.0
        return None if gap < tolerance else f"a packed pass differs by {gap:.3g} nats"


Prefix = dict[int, tuple[torch.Tensor, torch.Tensor]]
_AUTO_ROWS = 64


def _reads_of(chosen: Sequence[Prompt]) -> Reads:
    position, token, label, roots = [], [], [], []
    n_nodes = n_labels = 0
    for p in chosen:
        roots.append(n_nodes)
        for own_label, node, read in p.trie.reads:
            label.append(n_labels + own_label)
            position.append(n_nodes + node)
            token.append(read)
        n_nodes += len(p.trie.tokens)
        n_labels += len(p.labels)
    return Reads(position, token, label, [len(p.labels) for p in chosen], roots)


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
        own = len(p.tokens) - n_prefix
        for node in range(1, len(p.trie.tokens)):
            at, parent = own + node - 1, p.trie.parents[node]
            positions[b, at] = len(p.tokens) - 1 + p.trie.depths[node]
            visible[b, at, own:] = visible[b, own + parent - 1, own:] if parent else False
            visible[b, at, at] = True
    return visible, positions


def _place_nodes(prompt: Prompt, rows: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Append this prompt's rows; return (row, column) of each trie node's answer position."""
    trie = prompt.trie
    inner = set(trie.parents)
    where: list[tuple[int, int]] = [(-1, -1)] * len(trie.tokens)
    for leaf in (node for node in range(len(trie.tokens)) if node not in inner):
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


def _hidden_window(config: object) -> int | None:
    """The sliding window that some layer of the model uses, if any."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if types:
        if types - {"full_attention", "sliding_attention"}:
            return sys.maxsize  # a kind of layer that we do not know
        return window if "sliding_attention" in types else None
    return window if getattr(config, "use_sliding_window", True) else None
