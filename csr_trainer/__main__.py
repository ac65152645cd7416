"""`python -m csr_trainer …`, which is also `semsoft train …`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None, prog: str = "python -m csr_trainer") -> int:
    """Run the command line; the exit code: 0, or 2 with one sentence on stderr."""
    from csr_trainer.config import parse
    from csr_trainer.train import TrainingUnavailable, run
    from lm_eval_semsoft.cli.shared import is_ours
    from lm_eval_semsoft.tasks.data import DataUnavailable

    try:
        run(parse(sys.argv[1:] if arguments is None else arguments, prog))
    except (TrainingUnavailable, DataUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    except ValueError as error:
        if not is_ours(error):
            raise
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
