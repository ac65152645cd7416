"""Numbers as people write them, and foreign text that can do no harm to a page or a picture."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path

from .report_data import Estimate

_LONGEST_WORD = 32  # characters of a token


def number(value: float | None, digits: int = 3) -> str:
    """0.218, −0.131, ∞, or – where there is no number."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.replace("-", "")


def signed(value: float | None, digits: int = 3) -> str:
    """As `number`, with a plus sign."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 and float(text.strip("∞") or 1) else text


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def interval(estimate: Estimate | None) -> str:
    """0.218 [0.210, 0.226]."""
    if estimate is None:
        return "–"
    if math.isnan(estimate.low):
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_TABLE = {
    **_CONTROLS,
    0x7F: "␡",
    0xFEFF: "⟨U+FEFF⟩",
    **{code: f"⟨U+{code:04X}⟩" for code in _DIRECTIONS},
    **dict.fromkeys(range(0x80, 0xA0), "�"),
    0x2028: "\n",
    0x2029: "\n",
}


def visible(text: str) -> str:
    """Text that can do nothing to the page around it.

    Control characters become their pictures, direction marks (which could turn the rest of a line
    around) their code points, surrogates and other non-characters the replacement character.
    """
    text = text.replace("\r\n", "\n").translate(_TABLE)
    if text.isascii():
        return text
    return "".join(
        "�" if unicodedata.category(c) == "Cs" or (ord(c) & 0xFFFE) == 0xFFFE
        or 0xFDD0 <= ord(c) <= 0xFDEF else c
        for c in text
    )  # fmt: skip


def marked(token: str) -> str:
    """A token whose spaces can be seen."""
    text = cut(visible(token), _LONGEST_WORD)
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def short_model(model: str) -> str:
    """A model's name; of one that is a folder, the folder's."""
    return Path(model).name if Path(model).is_absolute() else model
