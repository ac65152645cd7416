"""Our log messages go where the harness's go, at the level that the user chose for it."""

from __future__ import annotations

import logging


def join_harness_log() -> None:
    """Hang our loggers under the harness's, which has the handler and the verbosity."""
    logging.getLogger("lm_eval_semsoft").parent = logging.getLogger("lm_eval")
