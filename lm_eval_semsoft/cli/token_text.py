"""Tokens as people can read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


def token_texts(tokenizer: Any) -> Callable[[int], str]:
    """Token id -> what the token adds to a running text."""
    lead = tokenizer.encode("a", add_special_tokens=False)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    before = decode(lead)  # some tokenizers drop the space in front of the very first token

    @cache
    def text_of(token_id: int) -> str:
        whole = decode([*lead, token_id])
        text = whole[len(before) :] if whole.startswith(before) else decode([token_id])
        if text and "\ufffd" not in text:
            return text
        return piece_text(tokenizer.convert_ids_to_tokens(token_id) or f"<{token_id}>")

    return text_of


def piece_text(piece: str) -> str:
    r"""A token that is no whole character: its bytes, as `\xf0\x9f`."""
    alphabet = byte_alphabet()
    if all(char in alphabet for char in piece) and not piece.startswith("<"):
        return bytes(alphabet[char] for char in piece).decode("utf-8", "backslashreplace")
    return piece


@cache
def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}


def visible(text: str, space: str = "␣", limit: int = 0) -> str:
    """Text with a sign for what would not be seen, cut to `limit` characters if that is given."""
    signs = {**_SIGNS, " ": space}
    shown = "".join(
        signs.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode())
        for c in text
    )
    return shown if not limit or len(shown) <= limit else shown[: limit - 1] + "…"
