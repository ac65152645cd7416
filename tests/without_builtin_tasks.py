"""Runs a program as if the harness had no tasks of its own.

    python without_builtin_tasks.py SCRIPT ARGUMENT…
    python without_builtin_tasks.py -m MODULE ARGUMENT…

To list its 14,000 tasks takes the harness longer than the rest of a run on a tiny model;
test_plugin.py has a run that does.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lm_eval.tasks import manager

if __name__ == "__main__":
    build, builtin = manager.TaskIndex.build, Path(manager.__file__).parent

    def without(_: Any, paths: Iterable[Path]) -> Any:
        return build([path for path in paths if path != builtin])

    manager.TaskIndex.build = without
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
