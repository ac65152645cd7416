"""One harness run in a process of its own, for the tests that kill it or run it twice.

    python harness_run.py RESULT.json '{"model_args": …}'

Without the 14,000 task files of the harness, which take it longer to list than our run takes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(result: str, arguments: dict[str, Any]) -> None:
    from lm_eval_semsoft import plugin

    plugin.arm()

    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(plugin.task_path()),
        include_defaults=False,
        metadata=arguments.pop("metadata", {}),
    )
    out = lm_eval.simple_evaluate(
        model="semsoft-hf",
        tasks=["goemotions_zs"],
        task_manager=manager,
        log_samples=False,
        **arguments,
    )
    if out is not None:  # only rank 0 has results
        kept = {"results": out["results"], "config": out["config"], "n": out["n-samples"]}
        Path(result).write_text(json.dumps(kept, default=str))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
