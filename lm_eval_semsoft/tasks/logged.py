"""What a task's filter makes of a response, so that the harness logs it as JSON.

The harness writes every entry of ``filtered_resps`` into its samples file with ``str()``: a plain
dict would stand there in Python's notation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lm_eval.api.instance import Instance

from lm_eval_semsoft.engine.parts import encodable


class Logged(dict[str, Any]):
    """A dictionary of JSON values whose text is JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False, allow_nan=False)


def make_writable(instances: Iterable[Instance]) -> None:
    """Replace half a character in responses, as a server can send one, by U+FFFD.

    No file takes it: the harness would lose the whole samples file over it.
    """
    for instance in instances:
        for i, text in enumerate(instance.resps):
            if isinstance(text, str) and encodable(text) != text:
                instance.resps[i] = encodable(text)
