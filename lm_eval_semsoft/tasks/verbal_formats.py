"""Answers in which a model tells its confidence in words: two published formats, read and written.

- tags (RLCR): ``<think>…</think><answer>…</answer><analysis>…</analysis>`` and a probability in
  ``<confidence>…</confidence>``;
- ten (Rewarding Doubt): ``Answer: …, Confidence: n`` with n from 0 to 10.

The readers are pure functions of the text, take time linear in its length and never raise. Of
several answers or confidences the last one counts, as in RLCR's published reader: models often
repeat the format, or a first guess, before they give the one that they mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from lm_eval_semsoft.judges.text import has_content


class Verbal(NamedTuple):
    """What could be read.

    Attributes:
        answer: on one line; None if there is none that says something.
        confidence: 0..1; None if there is none, or one that is no probability.
    """

    answer: str | None
    confidence: float | None

    @property
    def complete(self) -> bool:
        """Could both be read?"""
        return self.answer is not None and self.confidence is not None


# --- numbers -------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?<![\w.])(?P<value>[-−+]?(?:\d+(?:[.,]\d+)?|\.\d+))"
    r"(?:\s{0,2}(?P<percent>[%％٪]|percent\b)"
    r"|\s{0,2}(?:/|out\s{1,2}of)\s{0,2}(?P<whole>\d+)"
    r"|(?P<range>\s{0,2}(?:[-–—]|to\b)\s{0,2}\d))?",
    re.IGNORECASE,
)


class _Told(NamedTuple):
    """A number as it was written; `whole` is what it is a part of, None where it does not say."""

    value: float
    whole: float | None


def _first_number(text: str) -> _Told | None:
    """The first number of a text. A range ("0-10") is none: it repeats the instruction."""
    for found in _NUMBER.finditer(text):
        if found["range"]:
            continue
        value = float(found["value"].replace(",", ".").replace("−", "-"))
        whole = 100.0 if found["percent"] else float(found["whole"] or "nan")
        return _Told(value, None if math.isnan(whole) else whole)
    return None


def _share(told: _Told, whole: float) -> float | None:
    """A told number as a share of what it says, or else of `whole`; None outside 0..1."""
    whole = whole if told.whole is None else told.whole
    share = told.value / whole if whole else math.nan
    return share if 0 <= share <= 1 else None


# --- tags ----------------------------------------------------------------------------------------

_ANY_TAG = re.compile(r"<\s{0,3}/?\s{0,3}(?:think|answer|analysis|confidence)\s{0,3}>", re.I)


def parse_tags(text: str) -> Verbal:
    """Read the tag format.

    The content of the last complete pair of tags counts; where no pair is complete, what follows
    the last opening tag, up to any other tag. The confidence is the first number in it. Beside a
    probability, a percentage, a fraction ("7/10") and, as in RLCR's published reader, a bare
    number above 1 and up to 100 are understood, the last as a percentage.

    >>> parse_tags("<answer>Oslo</answer> <confidence>0.8</confidence>")
    Verbal(answer='Oslo', confidence=0.8)
    """
    answer, confidence = (_tagged(text, tag) for tag in ("answer", "confidence"))
    told = _first_number(confidence)
    if told is None:
        return Verbal(_line(answer), None)
    return Verbal(_line(answer), _share(told, 100 if told.value > 1 else 1))


def _tagged(text: str, tag: str) -> str:
    """What the last pair of these tags holds; "" if there is none."""
    begins = [m.end() for m in re.finditer(rf"<\s{{0,3}}{tag}\s{{0,3}}>", text, re.I)]
    ends = [m.start() for m in re.finditer(rf"<\s{{0,3}}/\s{{0,3}}{tag}\s{{0,3}}>", text, re.I)]
    if not begins:
        return ""
    closed = [begin for begin in begins if ends and begin <= ends[-1]]
    if closed:
        return text[closed[-1] : next(end for end in ends if end >= closed[-1])]
    rest = text[begins[-1] :]
    other = _ANY_TAG.search(rest)
    return rest[: other.start()] if other else rest


def _line(text: str) -> str | None:
    line = " ".join(text.split())
    return line if has_content(line) else None


# --- 0 to 10 -------------------------------------------------------------------------------------

_LABEL = re.compile(
    r"(?<![A-Za-z])(?P<kind>answer|confidence)(?:\s(?:level|score|rating))?"
    r"(?:\s?\([^()\n]{0,20}\))?[*_\"'`]{0,3}\s{0,3}(?:[:：=]|(?<=confidence )is\b)",
    re.IGNORECASE,
)
_AROUND = " \t,;，、；|*_`\"'“”<>[]{}"


def parse_ten(text: str) -> Verbal:
    """Read the 0 to 10 format.

    The last ``Confidence:`` with a number on its first line counts, and the last ``Answer:`` before
    it (after it, if there is none before). Without any ``Answer:``, the answer is the line before
    the confidence. Beside n, "n/10", a percentage and a number between 0 and 1 are understood, the
    last as a probability: nobody who is asked for 0 to 10 means 0.9 of 10.

    >>> parse_ten("Answer: Oslo, Confidence: 8")
    Verbal(answer='Oslo', confidence=0.8)
    """
    parts = list(_labelled(text))
    told = [(i, number) for i, part in enumerate(parts) if (number := part.number()) is not None]
    if not told:
        return Verbal(_last_answer(parts), None)
    at, number = told[-1]
    answer = _last_answer(parts[:at]) or _last_answer(parts[at:])
    if answer is None and not any(part.kind == "answer" for part in parts):
        before = text[: parts[at].start].rstrip(_AROUND + "\n\r")
        answer = _bare(before.rpartition("\n")[2])
    return Verbal(answer, _share(number, 1 if 0 < number.value < 1 else 10))


class _Part(NamedTuple):
    """What follows a label, up to the next one; `start` is where the label begins."""

    kind: str
    start: int
    content: str

    def number(self) -> _Told | None:
        return _first_number(_first_line(self.content)) if self.kind == "confidence" else None


def _labelled(text: str) -> Iterator[_Part]:
    found = list(_LABEL.finditer(text))
    for i, label in enumerate(found):
        end = found[i + 1].start() if i + 1 < len(found) else len(text)
        yield _Part(label["kind"].lower(), label.start(), text[label.end() : end])


def _last_answer(parts: list[_Part]) -> str | None:
    answers = [_bare(_first_line(part.content)) for part in parts if part.kind == "answer"]
    return next((answer for answer in reversed(answers) if answer is not None), None)


def _first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0]


def _bare(line: str) -> str | None:
    """A line without the separators, quotes and emphasis around it."""
    return _line(line.strip(_AROUND + "\r"))
