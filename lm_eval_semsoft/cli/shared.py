"""What the commands share: one console, JSON that every parser reads, errors of one sentence."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

_OURS = (__name__.partition(".")[0], "csr_trainer")


def make_console(stderr: bool = False) -> Console:
    """A console that prints text as it is: `[red]` and `:joy:` in it are no markup."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal that cannot show █ or ␣ shows ?
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def print_json(data: object) -> None:
    """Print `data` as JSON on stdout; see `plain` for what it may hold."""
    typer.echo(json.dumps(plain(data), indent=2, allow_nan=False))


def plain(data: Any) -> Any:
    """`data` with nothing in it but what JSON has.

    Dataclasses become objects, numpy and torch values numbers and lists, paths strings, and what
    is no number (NaN, infinities) null.

    >>> plain({"ece": float("nan"), 3: (1, "a")})
    {'ece': None, '3': [1, 'a']}
    """
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {field.name: plain(getattr(data, field.name)) for field in dataclasses.fields(data)}
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple, set, frozenset)):
        return [plain(value) for value in data]
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if isinstance(data, PurePath):
        return str(data)
    if hasattr(data, "tolist"):
        return plain(data.tolist())
    return data


def fail(message: object) -> NoReturn:
    """Print one sentence on stderr and end with exit code 2."""
    typer.echo(str(message), err=True)
    raise typer.Exit(2)


# Of glibc's malloc.h, and what they are set to: bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = (-1, 1 << 30), (-3, 1 << 25)


def keep_memory() -> None:
    """Let freed memory be used again, where the C library would give it back to the system.

    Statistics on resamples make and drop arrays of some MB by the thousand, and to get the memory
    anew costs more than what is computed in it. With other C libraries than glibc nothing happens.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, size in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(parameter, size)


def one_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command end with a sentence and exit code 2 where the user can put things right.

    That is a ValueError that our own code raised (they are written for users; anybody else's is a
    bug to see in full) and a file that is not there.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except FileNotFoundError as error:
            fail(f"{error.filename}: there is no such file." if error.filename else error)
        except ValueError as error:
            if not is_ours(error):
                raise
            fail(error)

    return guarded


def is_ours(error: BaseException) -> bool:
    """Was the error raised by a line of this package, or of the trainer beside it?"""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").partition(".")[0] in _OURS
