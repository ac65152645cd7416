"""One JSON object a line and a step: the log of a run, which survives its end at any moment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class StepLog:
    """A file of JSON lines, each with a ``step``.

    Args:
        path: of the file, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All lines; one that was cut short when a run was killed is passed over."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1] if line]  # a whole line ends

    def keep(self, last: int) -> list[dict[str, Any]]:
        """Drop what came after a step, which a resumed run does again; returns what is left."""
        rows = [row for row in self.rows() if row["step"] <= last]
        if self.path.exists() or rows:
            self.path.write_text("".join(_line(row) for row in rows), encoding="utf-8")
        return rows

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a line; NaN and infinities become null."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line({"step": step, **values}))


def _line(row: Mapping[str, Any]) -> str:
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
    return json.dumps(plain, allow_nan=False) + "\n"
