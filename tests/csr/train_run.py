"""One training run in a process of its own, for the tests that kill it.

    python train_run.py STOP_AT ARGUMENTS…

Sends itself SIGKILL once STOP_AT optimiser steps are done and logged.
"""

from __future__ import annotations

import os
import signal
import sys

from transformers import TrainerCallback


class Kill(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.global_step == self._step and "loss" in logs:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from csr_trainer import __main__, trainer

    stop, arguments = int(sys.argv[1]), sys.argv[2:]
    original = trainer.CSRTrainer.__init__

    def with_kill(self, *args, callbacks, **kwargs):
        original(self, *args, callbacks=[*callbacks, Kill(stop)], **kwargs)

    trainer.CSRTrainer.__init__ = with_kill
    sys.exit(__main__.main(arguments))
