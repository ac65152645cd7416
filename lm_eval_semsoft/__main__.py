"""`python -m lm_eval_semsoft …` is `semsoft …`, which needs no start-up hook."""

from lm_eval_semsoft.cli import main
from lm_eval_semsoft.plugin import arm

# At import, not under the guard below: a child that multiprocessing spawns imports this module as
# `__mp_main__`, and it too must know our models when no start-up hook has run (`python -S`).
arm()

if __name__ == "__main__":
    main()
