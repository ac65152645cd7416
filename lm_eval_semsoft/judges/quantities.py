"""Numbers in answers: figures or words, with thousands, fractions, multipliers and units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .text import words

TOKEN = re.compile(
    r"\d+(?:[.,]\d+)*(?:⁄\d+|/\d+(?![\d/]))?(?:(?:st|nd|rd|th|s)\b)?"
    r"|[^\W\d_]+(?:'[^\W\d_]+)*[\u0300-\u036f]*|[%$€£¥°+-]"
)
_ONES = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = words(
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)
_SMALL = {w: i for i, w in enumerate(_ONES)} | {w: i for i, w in enumerate(_ORDINALS)}
_TEN = {w: 10 * i for i, w in enumerate(_TENS, 2)}
_TEN |= {w[:-1] + "ieth": value for w, value in _TEN.items()}
_MULTIPLIERS = {
    "hundred": 1e2, "thousand": 1e3, "k": 1e3, "million": 1e6, "mn": 1e6, "billion": 1e9,
    "bn": 1e9, "trillion": 1e12, "dozen": 12.0,
}  # fmt: skip
# Before "one" that counts nothing: "no one", "the one".
_NOT_COUNTED = {"no", "any", "some", "every", "each", "the", "this", "that", "which", "another"}
# Behind a word: "Louis XIV". Single letters are letters.
_ROMAN = {
    r: i
    for i, r in enumerate(
        words("ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi xvii xviii xix xx"), 2
    )
    if len(r) > 1
}

# dimension -> unit -> (size in the dimension's first unit, spellings)
_UNITS = {
    "length": {
        1.0: "m metre meter metres meters", 1e3: "km kilometre kilometer kilometres kilometers",
        0.01: "cm centimetre centimeter centimetres centimeters",
        0.001: "mm millimetre millimeter millimetres millimeters",
        1609.344: "mile miles mi", 0.3048: "ft foot feet", 0.0254: "inch inches",
        0.9144: "yard yards yd",
    },
    "mass": {
        1.0: "kg kilogram kilograms kilo kilos", 1e-3: "g gram grams", 1e3: "tonne tonnes",
        0.45359237: "lb lbs", 0.028349523: "oz ounce ounces",
    },
    "time": {
        1.0: "sec secs second seconds", 60.0: "min mins minute minutes",
        3600.0: "h hr hrs hour hours", 86400.0: "day days", 604800.0: "week weeks",
        31557600.0: "year years yr yrs", 2629800.0: "month months",
    },
    "volume": {1.0: "l litre liter litres liters", 1e-3: "ml millilitre milliliter millilitres "
               "milliliters", 3.785411784: "gallon gallons"},
    "share": {1.0: "% percent"},
    "dollars": {1.0: "$ dollar dollars usd"}, "euros": {1.0: "€ euro euros eur"},
    "pounds": {1.0: "£ gbp"}, "yen": {1.0: "¥ yen jpy"},
    "celsius": {1.0: "celsius"}, "fahrenheit": {1.0: "fahrenheit"},
}  # fmt: skip
_UNIT_OF = {
    spelling: (dimension, size)
    for dimension, units in _UNITS.items()
    for size, spellings in units.items()
    for spelling in spellings.split()
}
_BEFORE = {"$", "€", "£", "¥"}
_SCALES = {"c": "celsius", "f": "fahrenheit", "celsius": "celsius", "fahrenheit": "fahrenheit"}
_CONVERTED = 0.01  # "62 miles" is "100 km": people round when they convert


class Quantity(NamedTuple):
    """A number and its unit; `unit` is (dimension, size in its base unit) or None."""

    value: float
    unit: tuple[str, float] | None = None

    def agrees(self, other: Quantity) -> bool:
        """The same amount? A missing unit fits any; converted units may differ by 1 %.

        >>> Quantity(62, ("length", 1609.344)).agrees(Quantity(100, ("length", 1000.0)))
        True
        >>> Quantity(5).agrees(Quantity(5, ("mass", 1.0)))
        True
        """
        a, b = self.value, other.value
        if self.unit and other.unit and self.unit != other.unit:
            if self.unit[0] != other.unit[0]:
                return False
            a, b = a * self.unit[1], b * other.unit[1]
            return abs(a - b) <= _CONVERTED * max(abs(a), abs(b))
        return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def extract(text: str) -> tuple[tuple[Quantity, ...], list[str]]:
    """The quantities of a folded text in order, and its other words.

    >>> extract("about twenty-one thousand km of road")
    ((Quantity(value=21000.0, unit=('length', 1000.0)),), ['about', 'of', 'road'])
    >>> extract("5 feet 11 inches")
    ((Quantity(value=5.916666666666667, unit=('length', 0.3048)),), [])
    """
    tokens = TOKEN.findall(text)
    found: list[Quantity] = []
    others: list[str] = []
    end = -1  # where the last quantity ended, to join "5 feet 11 inches"
    i = 0
    while i < len(tokens):
        value, after = _number(tokens, i)
        if value is None:
            if tokens[i] not in "+-":
                others.append(tokens[i])
            i += 1
            continue
        unit, after = _unit(tokens, i, after)
        if unit and others and others[-1] in _BEFORE:
            others.pop()
        quantity = Quantity(value, unit)
        if end == i and found and _continues(found[-1], quantity):
            found[-1] = _joined(found[-1], quantity)
        else:
            found.append(quantity)
        end = i = after
    return tuple(found), others


def _number(tokens: Sequence[str], i: int) -> tuple[float | None, int]:
    """The number that begins at token i and where it ends; None if there is none."""
    token = tokens[i]
    if token[0].isdecimal():
        value, after = _figure(token), i + 1
        if i and tokens[i - 1] == "-" and (i == 1 or not tokens[i - 2][-1].isalnum()):
            value = -value
        while after < len(tokens) and tokens[after] in _MULTIPLIERS:
            value, after = value * _MULTIPLIERS[tokens[after]], after + 1
        return value, after
    if i and (token in _ROMAN):
        return float(_ROMAN[token]), i + 1
    return _words(tokens, i)


def _figure(token: str) -> float:
    """1,234.5; 3,5 (a decimal comma); 3rd; 1/2."""
    top, *bottom = re.split("[⁄/]", re.sub("[a-z]+$", "", token))
    if bottom:
        below = _figure(bottom[0])
        return _figure(top) / below if below else _figure(top)
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", top):
        return float(top.replace(",", ""))
    if re.fullmatch(r"\d+,\d+", top):
        return float(top.replace(",", "."))
    whole, *rest = re.split("[.,]", top)
    return float(f"{whole}.{''.join(rest)}") if rest else float(whole)


def _words(tokens: Sequence[str], i: int) -> tuple[float | None, int]:
    """Number words from token i on: "two hundred and five", "twenty-one", "a dozen"."""
    if tokens[i] == "one" and i and tokens[i - 1] in _NOT_COUNTED:
        return None, i
    total, current, seen, tens = 0.0, 0.0, False, False
    j = i
    while j < len(tokens):
        word = tokens[j]
        begins = not seen or (current % 100 == 0 and total + current > 0)  # a hundred, a thousand
        if word in _SMALL and (begins or tens):
            current, tens = current + _SMALL[word], False
        elif word in _TEN and begins:
            current, tens = current + _TEN[word], True
        elif word in _MULTIPLIERS and word not in ("k", "mn", "bn"):
            size = _MULTIPLIERS[word]
            if size > 100:
                total, current = total + (current or 1.0) * size, 0.0
            else:
                current = (current or 1.0) * size
            tens = False
        elif not (word in ("and", "-") and seen and _goes_on(tokens, j, word, tens)):
            break
        else:
            j += 1
            continue
        seen, j = True, j + 1
    return (total + current, j) if seen else (None, i)


def _goes_on(tokens: Sequence[str], j: int, link: str, tens: bool) -> bool:
    """Does a number go on behind "and" (after a hundred) or "-" (after a ten)?"""
    if j + 1 >= len(tokens) or (tokens[j + 1] not in _SMALL and tokens[j + 1] not in _TEN):
        return False
    return tens if link == "-" else tokens[j - 1] in _MULTIPLIERS


def _unit(tokens: Sequence[str], i: int, after: int) -> tuple[tuple[str, float] | None, int]:
    """The unit behind (or the currency before) a number, and where both end."""
    if i and tokens[i - 1] in _BEFORE:
        return _UNIT_OF[tokens[i - 1]], after
    rest = list(tokens[after : after + 3])
    if rest[:2] == ["per", "cent"]:
        return _UNIT_OF["percent"], after + 2
    if rest and rest[0] in ("°", "degrees", "degree"):
        scale = _SCALES.get(rest[1]) if rest[1:] else None
        return (_UNIT_OF[scale], after + 2) if scale else (None, after + 1)
    if rest[:1] == ["-"] and rest[1:2] and rest[1] in _UNIT_OF:  # "5-year"
        return _UNIT_OF[rest[1]], after + 2
    if rest and rest[0] in _UNIT_OF:
        return _UNIT_OF[rest[0]], after + 1
    return None, after


def _continues(first: Quantity, second: Quantity) -> bool:
    """ "11 inches" after "5 feet"."""
    return bool(
        first.unit and second.unit
        and first.unit[0] == second.unit[0] in ("length", "mass", "time")
        and first.unit[1] > second.unit[1]
    )  # fmt: skip


def _joined(first: Quantity, second: Quantity) -> Quantity:
    assert first.unit
    assert second.unit
    return Quantity(first.value + second.value * second.unit[1] / first.unit[1], first.unit)
