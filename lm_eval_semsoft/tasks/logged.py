"""What a task's filter makes of a response, so that the harness logs it as JSON.

The harness writes every entry of ``filtered_resps`` into its samples file with ``str()``: a plain
dict would stand there in Python's notation.
"""

from __future__ import annotations

import json
from typing import Any


class Logged(dict[str, Any]):
    """A dictionary of JSON values whose text is JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False, allow_nan=False)
