"""Dates in answers, whole or in part, in the usual English and ISO spellings."""

from __future__ import annotations

import re
from typing import NamedTuple

from .text import words

_MONTHS = words(
    "january february march april may june july august september october november december"
)
_MONTH_NUMBERS = {m: i for i, m in enumerate(_MONTHS, 1)} | {
    short: i for i, m in enumerate(_MONTHS, 1) for short in (m[:3], m[:4]) if short != m
}
_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTH_NUMBERS, key=len, reverse=True))})\b\.?"
_DAY = r"(?P<day>3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>1\d{3}|20\d\d)"
_SPELLINGS = [
    re.compile(rf"(?<![\w.-]){spelling}(?![\w-])")
    for spelling in (
        rf"{_YEAR}-(?P<month>1[0-2]|0?[1-9])-{_DAY}",
        rf"(?:the )?{_DAY}(?: of)? {_MONTH},?(?: of)? {_YEAR}",
        rf"{_MONTH} (?:the )?{_DAY} ?,? {_YEAR}",
        rf"{_MONTH},?(?: of)? {_YEAR}",
        rf"(?:the )?{_DAY}(?: of)? {_MONTH}",
        rf"{_MONTH} (?:the )?{_DAY}",
    )
]
_SLASHED = re.compile(r"(?<![\w/])(\d\d?)[/.](\d\d?)[/.](1\d{3}|20\d\d)(?![\w/])")
_ONLY_MONTH = re.compile(rf"(?:in )?{_MONTH}")


class Date(NamedTuple):
    """A date as far as it is told; None is left open."""

    year: int | None
    month: int | None = None
    day: int | None = None

    def agrees(self, other: Date) -> bool:
        """May both be the same day: is nothing different that both tell?

        >>> Date(1972, 12, 14).agrees(Date(1972, 12)), Date(1972).agrees(Date(1973, 12))
        (True, False)
        """
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))

    def overlaps(self, other: Date) -> bool:
        """Do both tell at least one of year, month and day?"""
        return any(a is not None and b is not None for a, b in zip(self, other, strict=True))


def extract(text: str) -> tuple[tuple[Date, ...], str]:
    """The dates of a folded text, and the text without them.

    A bare year is no date here (it is a number); a bare month is one if there is nothing else. Of
    3/4/1972 it is not known which is the month: then only the year is told.

    >>> extract("born on 14th december, 1972 in rome")
    ((Date(year=1972, month=12, day=14),), 'born on   in rome')
    """
    if only := _ONLY_MONTH.fullmatch(text.strip(" .,!")):
        return (Date(None, _MONTH_NUMBERS[only["month"]]),), ""
    found: list[tuple[int, Date]] = []

    def keep(match: re.Match[str]) -> str:
        told = match.groupdict()
        month = _MONTH_NUMBERS.get(told["month"]) or int(told["month"])
        year, day = told.get("year"), told.get("day")
        found.append((match.start(), Date(_number(year), month, _number(day))))
        return "  "

    def keep_slashed(match: re.Match[str]) -> str:
        a, b, year = (int(group) for group in match.groups())
        if max(a, b) > 31 or min(a, b) > 12 or not min(a, b):
            return match.group()
        known = {a > 12: (b, a), b > 12: (a, b), a == b: (a, b)}.get(True, (None, None))
        found.append((match.start(), Date(year, *known)))
        return "  "

    for spelling in _SPELLINGS:
        text = spelling.sub(keep, text)
    text = _SLASHED.sub(keep_slashed, text)
    return tuple(date for _, date in sorted(found, key=lambda item: item[0])), text


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
