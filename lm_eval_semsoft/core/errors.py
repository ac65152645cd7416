"""One sentence for a bad argument: its name, what was given, what is allowed, the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def check_choice(name: str, given: object, allowed: Sequence[str]) -> str:
    """Return ``given`` if it is one of ``allowed``.

    Raises:
        ValueError: one sentence with the argument, the value, what is allowed and the nearest.

    >>> check_choice("split", "test", ("test", "train"))
    'test'
    >>> check_choice("split", "tset", ("test", "train"))
    Traceback (most recent call last):
    ValueError: split='tset' is not known: use one of test, train (did you mean 'test'?).
    """
    if isinstance(given, str) and given in allowed:
        return given
    near = difflib.get_close_matches(str(given).strip().lower(), allowed, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{name}={given!r} is not known: use one of {', '.join(allowed)}{hint}.")


def first_line(error: BaseException) -> str:
    """What an error says, short enough to stand within a sentence.

    >>> first_line(ValueError("\\nToo long.\\nRead more here."))
    'Too long.'
    >>> first_line(FileNotFoundError(2, "No such file", "x.txt")), first_line(OSError())
    ('No such file', 'OSError')
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line for raw in str(error).splitlines() if (line := raw.strip())]
    return (lines or [type(error).__name__])[0][:200]


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
