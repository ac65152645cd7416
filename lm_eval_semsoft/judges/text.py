"""Answers as text: what counts as the same spelling, in any script."""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

from lm_eval_semsoft.engine.parts import encodable

REMEMBERED = 2**9  # texts; pairs come question by question, and a long text read takes 0.3 MB
_MADE_OF = "LNS"  # Unicode categories that say something: letters, numbers, symbols
_SUPERSCRIPTS = str.maketrans({c: f"^{i}" for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
# Scripts that put no spaces between words: every character counts as a word (with its marks).
_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_ONE_UNSPACED = re.compile(f"([{_UNSPACED}])")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def words(text: str) -> list[str]:
    """For lists of words in a program: `words("a b")` is ["a", "b"]."""
    return text.split()


def clean(text: str) -> str:
    """Composed characters, single spaces, none at the ends: no difference that can be seen.

    Half a character, which a server can send and no tokenizer takes, becomes U+FFFD.
    """
    cleaned = " ".join(unicodedata.normalize("NFC", encodable(text)).split())
    return text if cleaned == text else cleaned  # no second copy of a long one


def fold(text: str) -> str:
    """Without case and without typographic variants (full-width, ligatures, curly quotes).

    >>> fold("Ｐａｒｉｓ’s 10²")
    "paris's 10^2"
    """
    plain = unicodedata.normalize("NFKC", text.translate(_SUPERSCRIPTS))
    return plain.replace("’", "'").replace("‘", "'").casefold()


@lru_cache(maxsize=REMEMBERED)
def has_content(text: str) -> bool:
    """Is there a single letter, number or symbol in it?

    >>> has_content("..."), has_content("π"), has_content("")
    (False, True, False)
    """
    return any(unicodedata.category(c)[0] in _MADE_OF for c in text)


def without_accents(text: str) -> str:
    """Latin letters without their accents; other scripts keep their marks, which are letters.

    >>> without_accents("Beyoncé"), without_accents("गीत")
    ('Beyonce', 'गीत')
    """
    if text.isascii():
        return text
    out: list[str] = []
    for c in unicodedata.normalize("NFD", text):
        is_accent = unicodedata.category(c) == "Mn" and "\u0300" <= c <= "\u036f"
        if not is_accent or not out or not out[-1].isascii():
            out.append(c)
    return unicodedata.normalize("NFC", "".join(out))


@lru_cache(maxsize=REMEMBERED)
def squad(text: str) -> str:
    """Normalised as SQuAD's evaluation script does: no case, punctuation, articles, extra spaces.

    Beyond it, punctuation is that of every script. A text that loses everything ("The", "+")
    keeps its letters and symbols.

    >>> squad("The U.S., obviously!")
    'us obviously'
    """
    folded = fold(text)
    bare = "".join(c for c in folded if not _is_punctuation(c))
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join(folded.split())


def _is_punctuation(c: str) -> bool:
    return c in string.punctuation or unicodedata.category(c)[0] == "P"


@lru_cache(maxsize=REMEMBERED)
def squad_tokens(text: str) -> tuple[str, ...]:
    """The words of `squad`; single characters in scripts without spaces.

    >>> squad_tokens("東京 Tower")
    ('東', '京', 'tower')
    """
    return tuple(separated(squad(text)))


def separated(text: str) -> list[str]:
    """The words of a text; single characters in scripts without spaces."""
    if text.isascii():
        return text.split()
    return _ONE_UNSPACED.sub(r" \1 ", text).split()
