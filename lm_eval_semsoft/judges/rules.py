"""What can be told from the words alone: numbers, dates, yes and no, parts of names.

`decide` answers same (True), different (False) or leaves it open (None). In this order:

1. Yes against no is different; yes and yes (or no and no) the same, whatever follows.
2. A date or a number that contradicts the other answer's is different ("1912", "1913"; "5 km",
   "5 kg"). Figures and words, units that convert and dates told in part agree ("21", "twenty-one";
   "14 December 1972", "December 1972").
3. Answers that differ in nothing but a negation are different.
4. The same words are the same, whatever their case, accents, articles, pronouns, prepositions in
   front, plural and spacing ("his birthday", "Birthdays"; "ice cream", "icecream").
5. The same number with nothing else in one of the answers is the same ("775", "775 rooms").
6. Other names of a thing: a small table ("UK"), initials ("NBA"; "J. K. Rowling").
7. An answer within the other is the same ("car", "a large car"; "Paris", "It is Paris, France"),
   unless what is added may change the meaning: a number, and/or/not, north, wife, vice...

Everything else is left open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from . import dates, quantities
from .base import SAME, Judge, Pair
from .dates import Date
from .f1 import token_f1
from .quantities import Quantity
from .text import REMEMBERED, fold, separated, without_accents, words

_YES = {"yes", "yeah", "yep", "yup", "true", "correct", "affirmative"}
_NO = {"no", "nope", "nah", "false", "incorrect", "negative"}
_POLARITY = re.compile(rf"({'|'.join(_YES | _NO)})(?:$|[.!,;:—–-]+(?:$|\s+(?!\d)))")
_NEGATIONS = {"not", "no", "never", "none", "without", "neither", "nor", "cannot"}
_FILLERS = set(
    words(
        "a an the his her hers their my your our its some this that these those it he she they "
        "i we you is was are were be been am to in on at of by for has have had having do does "
        "did will would should can could may might there here so then well think believe guess "
        "say probably likely perhaps maybe about around approximately approx roughly nearly "
        "almost circa ca called named answer answers mr mrs ms dr prof sir"
    )
)
# Added to an answer, these may make another one of it.
_TURNS = _NEGATIONS | set(
    words(
        "and or but except versus vs than before after from north south east west northern "
        "southern eastern western central new old upper lower vice deputy former ex junior "
        "senior jr sr mother father wife husband son daughter brother sister half non anti "
        "pseudo"
    )
)
_MOST_ADDED = 12  # words around an answer that is within another one
_ALIASES = {
    "usa": "usa|u s a|u s|united states of america|united states|america",
    "uk": "uk|u k|united kingdom|great britain|britain",
    "uae": "uae|united arab emirates",
    "ussr": "ussr|soviet union",
    "eu": "eu|european union",
    "un": "un|united nations",
    "nyc": "nyc|new york city",
    "la": "la|los angeles",
    "tv": "tv|television|telly",
    "ww2": "ww2|wwii|world war two|second world war",
    "ww1": "ww1|wwi|world war one|first world war",
    "hiv": "hiv|aids",
    "bike": "bike|bicycle",
    "phone": "phone|telephone|cellphone|cell phone|mobile phone",
    "photo": "photo|photograph|picture",
    "mom": "mom|mum|mother",
    "dad": "dad|father",
    "ok": "ok|okay",
}
_ALIAS_OF = {spelling: name for name, all_ in _ALIASES.items() for spelling in all_.split("|")}


@dataclass(frozen=True)
class Answer:
    """What the rules see of an answer.

    Attributes:
        yes: True for yes, False for no, None for neither.
        dates, numbers: what it tells, in order.
        words: stems of its other words, without fillers.
        negations: how many words of it deny something.
        spoken: all its words, for initials.
        single: the answer if it is one word, as it was written; else "".
    """

    yes: bool | None
    dates: tuple[Date, ...]
    numbers: tuple[Quantity, ...]
    words: tuple[str, ...]
    negations: int
    spoken: tuple[str, ...]
    single: str

    @property
    def compact(self) -> str:
        return "".join(self.words)


@lru_cache(maxsize=REMEMBERED)
def read(text: str) -> Answer:
    """What the rules see of an answer."""
    folded = without_accents(fold(text))
    polarity = _POLARITY.match(folded.lstrip("\"'([ "))
    told, rest = dates.extract(folded)
    numbers, tokens = quantities.extract(rest)
    found = [part for word in tokens for part in separated(word)]
    found = [w for word in found if (w := word.removesuffix("'s").rstrip("'"))]
    denied = [w for w in found if w in _NEGATIONS or w.endswith("n't")]
    kept = [stem(w) for w in found if w not in _FILLERS and w not in denied]
    if not kept and not told and not numbers:  # "The The"
        kept = found
    spoken = tuple(re.findall(r"[^\W\d_]+", folded))
    bare = text.strip(" .,!?\"'")
    return Answer(
        polarity[1] in _YES if polarity else None,
        told,
        numbers,
        tuple(kept),
        len(denied),
        spoken,
        bare if len(bare.split()) == 1 else "",
    )


def stem(word: str) -> str:
    """A noun without its plural ending.

    >>> [stem(w) for w in ("cars", "ladies", "boxes", "glass", "bus", "gas", "potatoes")]
    ['car', 'lady', 'box', 'glass', 'bus', 'gas', 'potato']
    """
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and re.search("(?:[sxz]|ch|sh|o)es$", word):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and word[-2] not in "suai":
        return word[:-1]
    return word


def decide(question: str, a: str, b: str) -> bool | None:
    """Do a and b mean the same as answers to the question? None if the rules cannot tell."""
    x, y = read(a), read(b)
    if x.yes is not None and y.yes is not None:
        return x.yes == y.yes
    told = _same_dates(x, y)
    counted = _same_numbers(x, y)
    if told is False or counted is False:
        return False
    # One of them tells a date or a number that the other leaves out.
    partial = (told is None and bool(x.dates or y.dates)) or (
        counted is None and bool(x.numbers or y.numbers) and told is None
    )
    same_words = x.words == y.words or (x.compact == y.compact != "")
    if bool(x.negations) != bool(y.negations):
        return False if same_words and not partial else None
    if partial:
        return None
    if same_words:
        return True
    if (told or counted) and not (x.words and y.words):
        return True
    if _aliases(x, y) or _within(stems(question), x, y):
        return True
    return None


@lru_cache(maxsize=2**12)
def stems(text: str) -> frozenset[str]:
    """The stems of a text's words."""
    return frozenset(read(text).words)


def _same_dates(x: Answer, y: Answer) -> bool | None:
    """None where one of them tells no date, or they tell different parts."""
    one, two = x.dates or _years(x), y.dates or _years(y)
    if not (x.dates or y.dates) or not one or not two:
        return None
    if len(one) != len(two):
        shared = any(p.agrees(q) and p.overlaps(q) for p in one for q in two)
        return None if shared else False
    if not all(p.agrees(q) for p, q in zip(one, two, strict=True)):
        return False
    return True if all(p.overlaps(q) for p, q in zip(one, two, strict=True)) else None


def _years(answer: Answer) -> tuple[Date, ...]:
    """A number that may be a year, as a date."""
    return tuple(
        Date(int(n.value))
        for n in answer.numbers
        if n.unit is None and n.value.is_integer() and 1000 <= n.value < 2200
    )


def _same_numbers(x: Answer, y: Answer) -> bool | None:
    """None where one of them tells no number (or they are years, which dates have compared), or
    one tells more than the other."""
    if not x.numbers or not y.numbers:
        return None
    few, many = sorted((x.numbers, y.numbers), key=len)
    left = list(many)
    for number in few:
        fitting = next((other for other in left if number.agrees(other)), None)
        if fitting is None:
            return False
        left.remove(fitting)
    return None if left else True


def _aliases(x: Answer, y: Answer) -> bool:
    one, two = (_alias(z) for z in (x, y))
    if one is not None and one == two:
        return True
    return _is_acronym(x, y) or _is_acronym(y, x) or _same_initials(x.words, y.words)


def _alias(answer: Answer) -> str | None:
    if answer.single == "US":  # "us" is a pronoun
        return "usa"
    return _ALIAS_OF.get(" ".join(answer.spoken).removeprefix("the "))


def _is_acronym(short: Answer, long: Answer) -> bool:
    """ "NBA" of "National Basketball Association"; two letters only if written as capitals."""
    letters = short.single.replace(".", "")
    if not 2 <= len(letters) <= 6 or len(long.spoken) < 2:
        return False
    if len(letters) == 2 and not letters.isupper():
        return False
    every = "".join(w[0] for w in long.spoken)
    strong = "".join(w[0] for w in long.spoken if w not in _FILLERS and w != "and")
    return letters.casefold() in (every, strong)


def _same_initials(one: Sequence[str], two: Sequence[str]) -> bool:
    """ "j k rowling" and "joanne kathleen rowling": the last word in full."""
    if len(one) != len(two) or len(one) < 2 or one[-1] != two[-1] or len(one[-1]) < 2:
        return False
    return all(
        p == q or (p[0] == q[0] and min(len(p), len(q)) == 1)
        for p, q in zip(one[:-1], two[:-1], strict=True)
    )


def _within(asked: frozenset[str], x: Answer, y: Answer) -> bool:
    """Are the words of one a run of the other's, and does what is added not turn the meaning?"""
    short, long = sorted((x, y), key=lambda z: len(z.words))
    run, n = short.words, len(short.words)
    if not run or all(w in asked for w in run) or max(map(len, run)) < 2:
        return False
    for start in range(len(long.words) - n + 1):
        if long.words[start] == run[0] and long.words[start : start + n] == run:
            added = (*long.words[:start], *long.words[start + n :])
            own = [w for w in added if w not in asked]
            return len(own) <= _MOST_ADDED and not any(w in _TURNS for w in own)
    return False


class Rules(Judge):
    """1 for the same, 0 for different; what is left open gets half of its token F1: different,
    but ranked by the words that are shared."""

    def __init__(self) -> None:
        super().__init__("rules")

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        return [
            float(told) if (told := decide(*pair)) is not None else _open(pair) for pair in pairs
        ]


def _open(pair: Pair) -> float:
    return 0.99 * SAME * token_f1(pair.a, pair.b)


class RulesThen(Judge):
    """The rules, and another judge for what they leave open.

    Args:
        other: judges the rest.
    """

    def __init__(self, other: Judge) -> None:
        super().__init__(f"rules+{other.name}")
        self.other = other

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        told = [decide(*pair) for pair in pairs]
        rest = iter(
            self.other.equivalents(p for p, known in zip(pairs, told, strict=True) if known is None)
        )
        return [float(next(rest) if known is None else known) for known in told]
