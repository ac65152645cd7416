"""Greedy answers, with what each of their tokens tells, and sampled answers.

Our own loop instead of `model.generate`, for speed: a prompt of several answers is run once, and so
is the prefix that prompts share; an answer that is done leaves at once and the next one takes its
place, and an answer's text is only looked at where it is new. Greedy tokens are the same.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .capture import text_config
from .embeddings import output_head, vocabulary_of
from .forward import (
    NaNLogits,
    Progress,
    answers_only,
    few_rows,
    rope_depends_on_length,
    why_different,
)
from .plain_generate import write_plainly
from .plan import GROUP_OVERHEAD, Group, Prompt, Tokens, group_by_prefix
from .readout import NotFinite
from .rows import RowCache
from .sampling import Sampling, draw
from .stop import Stop
from .token_measures import Measures, Pick, choose, trace_of
from .trace import Decode, Trace

logger = logging.getLogger(__name__)

_ANY: tuple[Tokens, ...] = ((0,),)  # a label, for plans that want one
_SAMPLES = 64  # of one prompt that run at once, whatever the batch size is


@dataclass
class _Row:
    """An answer that is being written, to a distinct prompt."""

    index: int
    prompt: int
    tokens: list[int] = field(default_factory=list)
    measures: list[Measures] = field(default_factory=list)


class Generator:
    """Writes answers with one model.

    Args:
        model: a causal transformers model, in eval mode.
        decode: tokens -> the text that is shown, for `Trace.ends`.
        prefix_sharing: run shared prompt prefixes once.
        device: where its inputs go; None = where its first weights are.
        autocast: a precision context for its passes.
    """

    def __init__(
        self,
        model: Any,
        decode: Decode,
        prefix_sharing: bool = True,
        device: torch.device | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model = model
        self.head = output_head(model)
        self.device = device or next(model.parameters()).device
        self._decode = decode
        self._prefix_sharing = prefix_sharing
        self._autocast = autocast
        self._able: bool | None = None
        self._most = sys.maxsize  # answers at once, after a lack of memory
        known = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in known
        self._cache_name = "past_key_values" if "past_key_values" in known else "cache"

    def generate(
        self,
        prompts: Sequence[Tokens],
        max_tokens: int,
        stop: Stop,
        batch_size: int | None = 1,
        progress: Progress = lambda n: None,
        measured: bool = True,
    ) -> Iterator[tuple[int, list[int], Trace | None]]:
        """Yield (index, tokens, trace) for every prompt, in the order in which they are done.

        The tokens are all that were generated, with what ended the answer; so is the trace, whose
        `ends` count the text that `decode` gives for all of them.

        Args:
            prompts: at least one token each.
            max_tokens: of an answer.
            stop: what ends it before.
            batch_size: answers at once; None = 64. Fewer where the device runs out of memory.
            progress: called with the number of prompts just done.
            measured: False leaves the traces out.

        Raises:
            NaNLogits: naming the prompt.
        """
        batch_size = 64 if batch_size is None else max(1, batch_size)
        written = self._write(
            prompts,
            max_tokens,
            stop,
            batch_size,
            progress,
            lambda logits, _: choose(logits, measured),
        )
        for index, tokens, measures in written:
            yield index, tokens, self._trace(tokens, measures) if measured else None

    def sample(
        self,
        prompts: Sequence[Tokens],
        seeds: Sequence[bytes],
        sampling: Sampling,
        max_tokens: int,
        stop: Stop,
        batch_size: int | None = 1,
        progress: Progress = lambda n: None,
    ) -> Iterator[tuple[int, list[int], NDArray[np.float32]]]:
        """Yield (index, tokens, their log-probabilities) for every answer, as they are done.

        The tokens are all that were generated, with what ended the answer. Their log-probabilities
        are the model's own, before temperature and cuts. An answer depends on its prompt and its
        seed, and not on the others, beyond rounding.

        Args:
            prompts: of each answer, at least one token each; those that come several times are
                run once.
            seeds: 16 bytes for each answer.
            sampling: what tokens are drawn from.
            max_tokens, stop, progress: as for `generate`.
            batch_size: answers at once; where one prompt has more, they run together nevertheless
                (64 at most). None = 64.

        Raises:
            NaNLogits: naming the answer.
        """

        def pick(
            logits: torch.Tensor, where: Sequence[tuple[int, int]]
        ) -> tuple[list[int], Measures]:
            return draw(logits, sampling, [(seeds[answer], number) for answer, number in where])

        together = min(_SAMPLES, max(Counter(prompts).values(), default=1))
        batch_size = 64 if batch_size is None else max(1, batch_size, together)
        written = self._write(prompts, max_tokens, stop, batch_size, progress, pick)
        for index, tokens, measures in written:
            yield index, tokens, np.concatenate(measures)

    def _write(
        self,
        prompts: Sequence[Tokens],
        max_tokens: int,
        stop: Stop,
        batch_size: int,
        progress: Progress,
        pick: Pick,
    ) -> Iterator[tuple[int, list[int], list[Measures]]]:
        """Yield (index, tokens, measures of each) for every answer, as they are done."""
        if not self.able():
            with torch.inference_mode(), self._autocast():
                for written in write_plainly(
                    self.model, self.device, prompts, max_tokens, stop, batch_size, pick
                ):
                    yield written
                    progress(1)
            return
        run = _Run(prompts, self._groups, batch_size)
        with torch.inference_mode(), self._autocast():
            while run.left or run.rows:
                first, logits = self._advance(run)
                if logits is None:
                    continue
                self._note(run.rows[first:], logits, pick)
                for row in self._leave(run, first, max_tokens, stop):
                    yield row.index, row.tokens, row.measures
                    progress(1)

    # -- one pass ------------------------------------------------------------------------------

    def _advance(self, run: _Run) -> tuple[int, torch.Tensor | None]:
        """Let new answers begin if there is room for some, else run every answer's last token.

        Returns the first row that has new logits, and the logits of those from there on: [n, V];
        None if the device ran out of memory.
        """
        chosen = run.next(min(self._most, run.batch_size))
        before, new = len(run.rows), sum(chosen.values())
        try:
            if chosen:
                if run.opened is None:
                    self._open(run, list(chosen))
                return before, run.begin(chosen)
            return 0, self._step(run.table, [row.tokens[-1] for row in run.rows])
        except torch.OutOfMemoryError:
            if before + new <= 1:
                raise
        # Not inside `except`, where the failed pass's tensors would still be alive.
        self._most = before or new // 2 if chosen else before // 2
        logger.warning("Out of memory: at most %d answers at once now.", self._most)
        run.retreat(self._most)
        return 0, None

    def _open(self, run: _Run, chosen: Sequence[int]) -> None:
        """Run some prompts of a group, the next that wait, so that their answers can begin."""
        group = run.group_of[chosen[0]]
        n_prefix = run.groups[group].prefix
        prompts = [run.prompts[i] for i in chosen]
        if n_prefix and run.prefix_of != group:
            run.prefix, run.prefix_of = RowCache(), -1
            self._pass(run.prefix, [prompts[0][:n_prefix]], [n_prefix], answers=False)
            run.prefix_of = group  # now that nothing has failed
        tray, lengths = RowCache(), [len(p) for p in prompts]
        # Every row runs as many tokens as the one that has most after the prefix: so all end in
        # one column and none needs padding between its prefix and the rest.
        new = max(lengths) - n_prefix
        before = [max(0, n - new) for n in lengths]
        if max(before):
            tray.lay(run.prefix, before)
        rows = [[*[0] * (new - len(p)), *p[-new:]] for p in prompts]
        run.opened = _Opened(list(chosen), tray, self._pass(tray, rows, lengths))
        for _ in chosen:
            run.waiting.popleft()

    def _step(self, table: RowCache, tokens: Sequence[int]) -> torch.Tensor:
        """The logits [n, V] after one more token of every row."""
        return self._pass(table, [[t] for t in tokens], [n + 1 for n in table.lengths])

    def _pass(
        self,
        table: RowCache,
        rows: Sequence[Sequence[int]],
        lengths: Sequence[int],
        answers: bool = True,
    ) -> torch.Tensor:
        """Run new tokens of all rows, which then have these lengths; the last one's logits."""
        new, width = len(rows[0]), table.end + len(rows[0])
        mask = table.mask(lengths, width, self.device)
        inputs: dict[str, Any] = {"attention_mask": mask, self._cache_name: table}
        if self._takes_positions:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -new:]
        where = range(len(rows)) if answers else ()
        last = [new - 1 for _ in where]
        with few_rows(self.head), answers_only(self.head, new, where, last):
            given = torch.tensor(rows, device=self.device)
            logits = self.model(input_ids=given, use_cache=True, **inputs).logits[0]
        table.end, table.lengths = width, list(lengths)
        return logits

    # -- the answers ---------------------------------------------------------------------------

    def _note(self, rows: Sequence[_Row], logits: torch.Tensor, pick: Pick) -> None:
        try:
            tokens, measures = pick(logits, [(row.index, len(row.tokens)) for row in rows])
        except NotFinite as error:
            raise NaNLogits(rows[error.row].index) from error
        for i, row in enumerate(rows):
            row.tokens.append(tokens[i])
            if measures is not None:
                row.measures.append(measures[i])

    def _leave(self, run: _Run, first: int, max_tokens: int, stop: Stop) -> list[_Row]:
        """Take out the rows that are done, from the given one on."""
        ended = stop.ended([row.tokens for row in run.rows[first:]])
        gone = []
        for i in reversed(range(first, len(run.rows))):
            if ended[i - first] or len(run.rows[i].tokens) >= max_tokens:
                gone.append(run.rows[i])
                run.table.drop(i)
                run.rows[i] = run.rows[-1]
                run.rows.pop()
        return gone[::-1]

    def _trace(self, tokens: Sequence[int], measures: Sequence[Measures]) -> Trace:
        return trace_of(tokens, measures, vocabulary_of(self.head), self._decode)

    def _groups(self, prompts: Sequence[Tokens]) -> list[Group]:
        if not self._prefix_sharing:
            return [Group(0, tuple(range(len(prompts))))]
        return group_by_prefix([Prompt(p, _ANY) for p in prompts], GROUP_OVERHEAD)

    # -- may we? -------------------------------------------------------------------------------

    def able(self) -> bool:
        """Does the model go through our loop, with the numbers of its plain passes?"""
        if self._able is None:
            reason = self._why_not()
            self._able = reason is None
            if reason:
                logger.info(
                    "%s generates in its own loop (slower, same answers): %s.",
                    type(self.model).__name__,
                    reason,
                )
        return self._able

    def _why_not(self) -> str | None:
        if rope_depends_on_length(self.model.config):
            return "its rotary embedding depends on the longest position of a call"
        if odd := odd_layers(self.model.config):
            return f"it has layers of another kind: {', '.join(odd)}"
        most = vocabulary_of(self.head)
        ids = torch.randint(most, (20,), generator=torch.Generator().manual_seed(0)).tolist()
        prompts = [tuple(ids[:9]), tuple(ids[:4] + ids[9:11]), tuple(ids[:4] + ids[11:14])]
        try:
            with torch.inference_mode(), self._autocast():
                plain = torch.cat([self._plain((*p, *ids[15:17]))[-2:] for p in prompts])
                own = self._rehearse(prompts, ids[15:17])
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        plain, own = (x.log_softmax(-1, dtype=torch.float32) for x in (plain, own))
        return why_different(plain, own, next(self.model.parameters()).dtype)

    def _plain(self, tokens: Tokens) -> torch.Tensor:
        """The logits [n, V] of a prompt by itself."""
        n = len(tokens)
        with answers_only(self.head, n, [0] * n, range(n)):
            given = torch.tensor([tokens], device=self.device)
            return self.model(input_ids=given, use_cache=False).logits[0]

    def _rehearse(self, prompts: Sequence[Tokens], more: Sequence[int]) -> torch.Tensor:
        """The logits after one and after two more tokens of three prompts.

        All that the loop does: a shared prefix, rows that leave and rows that come later.
        """
        run = _Run(prompts, lambda _: [Group(4, (0, 1, 2))], 2)
        self._open(run, [0, 1])
        run.begin({0: 1, 1: 1})
        first = self._step(run.table, [more[0]] * 2)
        second = self._step(run.table, [more[1]] * 2)
        run.table.drop(0)
        self._open(run, [2])
        run.begin({2: 1})
        # Row 0 is prompt 1, which goes on for longer than it is compared.
        third = self._step(run.table, [more[0]] * 2)[1:]
        fourth = self._step(run.table, [more[1]] * 2)[1:]
        pairs = [first[0], second[0], first[1], second[1], third[0], fourth[0]]
        return torch.stack(pairs)


def odd_layers(config: Any) -> list[str]:
    """Kinds of layers that keep something else than the keys and values of all tokens."""
    kinds = set(getattr(text_config(config), "layer_types", None) or ())
    return sorted(map(str, kinds - {"full_attention", "sliding_attention"}))


@dataclass
class _Opened:
    """Prompts that were run and whose answers have not all begun.

    Attributes:
        prompts: [n] their numbers.
        tray: a row for each.
        logits: [n, V] after each.
    """

    prompts: list[int]
    tray: RowCache
    logits: torch.Tensor


class _Run:
    """The state of one call: who waits, who is being answered.

    Attributes:
        prompts: the distinct prompts.
        unbegun: the answers of each that have not begun, by index.
        left: how many those are in all.
        groups, group_of: groups of prompts, and the group of each.
        waiting: prompts that were not run yet, group by group, a group's longest first.
        opened: prompts that were, if any of their answers is unbegun.
        rows: answers that are being written, in the order of the table's rows.
        prefix: keys and values of the prefix of group `prefix_of`.
    """

    def __init__(
        self,
        prompts: Sequence[Tokens],
        groups: Callable[[Sequence[Tokens]], list[Group]],
        batch_size: int,
    ) -> None:
        answers: dict[Tokens, list[int]] = {}
        for index, prompt in enumerate(prompts):
            answers.setdefault(prompt, []).append(index)
        self.prompts = list(answers)
        self.unbegun = list(answers.values())
        self.left = len(prompts)
        self.groups = groups(self.prompts)
        self.group_of = {i: number for number, g in enumerate(self.groups) for i in g.members}
        self.batch_size = batch_size
        self.waiting = deque(
            i
            for group in self.groups
            for i in sorted(group.members, key=lambda i: -len(self.prompts[i]))
        )
        self.opened: _Opened | None = None
        self.rows: list[_Row] = []
        self.table = RowCache()
        self.prefix, self.prefix_of = RowCache(), -1

    def next(self, most: int) -> dict[int, int]:
        """How many answers should begin now to which prompts: opened ones, or those of one group.

        A few at once: a pass costs about as much for one as for several.
        """
        room = most - len(self.rows)
        if not self.left or room < min(max(1, most // 4), self.left):
            return {}
        chosen: dict[int, int] = {}
        for prompt in self.opened.prompts if self.opened else self.waiting:
            if not room or self.group_of[prompt] != self.group_of[next(iter(chosen), prompt)]:
                break
            chosen[prompt] = min(room, len(self.unbegun[prompt]))
            room -= chosen[prompt]
        return chosen

    def begin(self, chosen: Mapping[int, int]) -> torch.Tensor:
        """Let so many answers to opened prompts begin; the logits [n, V] before their first tokens.

        All of a prompt's answers go on from copies of the one row that was run for it.
        """
        assert self.opened is not None
        of = {prompt: row for row, prompt in enumerate(self.opened.prompts)}
        begun = [(prompt, i) for prompt, n in chosen.items() for i in self.unbegun[prompt][:n]]
        copied = [of[prompt] for prompt, _ in begun]
        logits = self.opened.logits
        if copied != list(range(len(logits))):
            logits = logits[torch.tensor(copied, device=logits.device)]
        self.table.take(self.opened.tray, copied)
        self.rows += [_Row(i, prompt) for prompt, i in begun]
        self.left -= len(begun)
        for prompt, n in chosen.items():
            del self.unbegun[prompt][:n]
        if not any(self.unbegun[prompt] for prompt in self.opened.prompts):
            self.opened = None
        return logits

    def retreat(self, most: int) -> None:
        """Go on with at most so many answers; the last ones, and opened prompts, begin anew."""
        again = [] if self.opened is None else self.opened.prompts
        self.opened = None
        while len(self.rows) > most:
            row = self.rows.pop()
            self.table.drop(len(self.rows))
            self.unbegun[row.prompt].insert(0, row.index)
            self.left += 1
            again.append(row.prompt)
        waiting = set(self.waiting)
        for prompt in dict.fromkeys(again):
            if self.unbegun[prompt] and prompt not in waiting:
                self.waiting.appendleft(prompt)
