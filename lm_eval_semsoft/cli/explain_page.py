"""What `semsoft explain` prints: two tables and a few sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm_eval_semsoft.cli.token_text import visible

if TYPE_CHECKING:
    from lm_eval_semsoft.reports.explain import Explanation, LabelRow, Vote

_WORD = 14  # cells for a neighbour
_BAR = 40  # cells for the longest bar at most


class Page:
    """The tables and sentences for one explanation.

    Args:
        console: where they go; its width decides how much stands in one line.
        found: what is shown.
        why: why nobody votes, None where neighbours may.
    """

    def __init__(self, console: Console, found: Explanation, why: str | None) -> None:
        self.console = console
        self.found = found
        self.why = why
        widest = max(cell_len(literal(row.label)) for row in found.rows)
        self.label_width = max(5, min(widest, console.width // 5))

    def show(self, header: str, question: str) -> None:
        say = self.console.print
        say(header, style="bold")
        say(self.prompt(question), style="dim")
        say()
        say(self.scores())
        say("constrained: the label words alone, P / sum of P; semantic: S / sum of S", style="dim")
        say()
        say(self.verdict(), style="bold")
        say()
        if self.found.shared_start is None and any(row.votes for row in self.found.rows):
            say(self.votes())
            say()
        for line in self.facts():
            say(line)

    def prompt(self, question: str) -> str:
        """The end of the prompt, two lines at most."""
        title = "prompt: "
        lines = chop_cells(literal(question), self.console.width - len(title))
        last = lines[-2:] or [""]
        if len(lines) > len(last):
            last[0] = "…" + last[0][1:]
        return title + ("\n" + " " * len(title)).join(last)

    def scores(self) -> Table:
        """One row per label: both probabilities, and S in its two parts, in digits and as a bar."""
        table = self.table()
        table.add_column("constrained", justify="right", no_wrap=True)
        table.add_column("semantic", justify="right", no_wrap=True)
        table.add_column("own + silent = S", justify="right", no_wrap=True)
        table.add_column("█ own ░ silent %", no_wrap=True)
        sums = aligned_sums(self.found.rows)
        most = max(row.own_vote + row.silent_vote for row in self.found.rows) or 1.0
        room = self.console.width - self.label_width - len(sums[0]) - 11 - 8 - 4 * 2 - 5
        for row, sum_ in zip(self.found.rows, sums, strict=True):
            table.add_row(
                literal(row.label),
                percent(row.constrained),
                percent(row.semantic),
                sum_,
                bar(row, most, max(7, min(_BAR, room))),
            )
        return table

    def verdict(self) -> str:
        best = self.found.rows[0]
        before = max(self.found.rows, key=lambda row: row.constrained)
        old, new = percent(before.constrained), percent(best.semantic)
        if self.why is not None:
            return f"Nobody votes: {self.why}."
        if self.found.shared_start is not None:
            return (
                f"All labels begin with the token {visible(self.found.shared_start)}, and the next "
                "token is read in front of it: neighbours of the labels have no say there yet."
            )
        if before is not best:
            return (
                f"The silent vote changes the answer: {literal(before.label)} ({old}) becomes "
                f"{literal(best.label)} ({new})."
            )
        change = (
            f"takes its probability from {old} to" if old != new else "leaves its probability at"
        )
        return f"Both scorings say {literal(best.label)}; the silent vote {change} {new}."

    def votes(self) -> Table:
        """Per label the strongest neighbours and what the others give together."""
        table = self.table()
        table.add_column("silent votes: p(v|x) × w(v, label), share of S", no_wrap=True)
        cells = _WORD + 18
        columns = max(1, (self.console.width - self.label_width - 2) // cells)
        for row in self.found.rows:
            entries = [set_cell_size(entry, cells) for entry in vote_entries(row)]
            lines = [
                "".join(entries[start : start + columns]).rstrip()
                for start in range(0, len(entries), columns)
            ]
            table.add_row(literal(row.label), "\n".join(lines))
        return table

    def facts(self) -> list[str]:
        found, mass = self.found, self.found.mass
        said = ", ".join(f"{visible(t.token)} {percent(t.probability)}" for t in found.next_tokens)
        lines = [
            f"Most probable next tokens: {said}.",
            f"Of the next-token probability {percent(mass.labels)} is on the labels, "
            f"{percent(mass.voted)} on tokens that voted, {percent(mass.others)} on others of the "
            f"{found.top_k} most probable, {percent(mass.beyond_top_k)} beyond them.",
        ]
        if self.why is None:
            counts = [row.neighbours for row in found.rows]
            few, many = min(counts), max(counts)
            lines.append(
                f"Each label has {f'{few:,} to ' if few < many else ''}{many:,} neighbours in the "
                f"vocabulary; {found.voters} of the {found.top_k} most probable tokens voted."
            )
        return lines

    def table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("label", width=self.label_width, overflow="fold", style="bold")
        return table


def literal(text: str) -> str:
    """A label or a prompt: spaces stay spaces."""
    return visible(text, space=" ")


def percent(x: float) -> str:
    """A probability, such as 38.6%."""
    return "<0.1%" if 0 < x < 0.0005 else f"{x:.1%}"


def share(x: float) -> str:
    """A share of a score, such as 39%."""
    return "<1%" if 0 < x < 0.005 else f"{x:.0%}"


def decimal(x: float) -> str:
    """A probability or a score, such as .0104 or 3e-5."""
    if x == 0:
        return "0"
    if x < 0.0001:
        return f"{x:.0e}".replace("e-0", "e-")
    return f"{x:.4f}".removeprefix("0")


def weight(w: float) -> str:
    """A weight in [0, 1], such as .557."""
    if 0 < w < 0.0005:
        return "<.001"
    return f"{w:.3f}".removeprefix("0") if w < 0.9995 else "1"


def aligned_sums(rows: tuple[LabelRow, ...]) -> list[str]:
    """`own + silent = S` of every row, the signs below each other."""
    parts = [
        [decimal(x) for x in (row.own_vote, row.silent_vote, row.own_vote + row.silent_vote)]
        for row in rows
    ]
    own, silent, total = (max(map(len, column)) for column in zip(*parts, strict=True))
    return [f"{a:>{own}} + {b:>{silent}} = {c:>{total}}" for a, b, c in parts]


def bar(row: LabelRow, most: float, width: int) -> Text:
    """S as a bar, the own vote solid and the silent vote light, and the silent share."""
    whole = round(width * (row.own_vote + row.silent_vote) / most)
    own = round(width * row.own_vote / most)
    silent = f"{' ' * bool(whole)}{share(row.silent_share)}"
    return Text.assemble(("█" * own, "cyan"), ("░" * (whole - own), "yellow"), silent)


def vote_entries(row: LabelRow) -> list[str]:
    entries = [vote_entry(vote) for vote in row.votes]
    if left := row.voters - len(row.votes):
        rest = max(0.0, row.silent_share - sum(vote.share for vote in row.votes))
        entries.append(f"{f'and {left} more':<{_WORD + 11}}{share(rest):>4}")
    return entries or ["nobody"]


def vote_entry(vote: Vote) -> str:
    word = set_cell_size(visible(vote.token, limit=_WORD), _WORD)
    product = f"{decimal(vote.probability)}×{weight(vote.weight)}"
    return f"{word} {product:<10}{share(vote.share):>4}"
