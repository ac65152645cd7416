"""What the start-up hook costs an interpreter that never touches lm_eval.

Two bare virtual environments, one of them with our start-up file where an installer puts it. Each
round starts `python -c pass` once in both, in changing order, so that a busy machine slows both
alike. Prints the median of each and of the differences within a round, in milliseconds; processor
time too, which tells more than wall time while other programs compete. The promise is
less than 1 ms.

    python benchmarks/startup_cost.py [rounds]      (Linux, macOS)
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from statistics import median

START_UP = Path(__file__).resolve().parents[1] / "startup" / "lm_eval_semsoft_autoload.pth"


def bare_environment(folder: Path, with_hook: bool) -> Path:
    """Make an environment that has nothing but, on demand, our hook; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    if with_hook:
        shutil.copy(START_UP, next(folder.rglob("site-packages")))
    return folder / "bin" / "python"


def run_once(python: Path) -> tuple[float, float]:
    """Milliseconds that one interpreter start and end takes: wall time, processor time."""
    begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", "pass"], check=True)
    end, now = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return 1000 * (end - begin), 1000 * processor


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """`run_once` without and with the hook, the i-th of both from the same round."""
    with tempfile.TemporaryDirectory() as folder:
        pythons = {
            "without": bare_environment(Path(folder) / "without", with_hook=False),
            "with": bare_environment(Path(folder) / "with", with_hook=True),
        }
        for python in pythons.values():
            run_once(python)  # warms the file cache
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in pythons}
        for i in range(rounds):
            for name in sorted(pythons, reverse=i % 2 == 0):
                times[name].append(run_once(pythons[name]))
    return times


def main(rounds: int = 60) -> None:
    """Print the comparison."""
    times = measure(rounds)
    print(f"interpreter start, median of {rounds} interleaved rounds, milliseconds")
    print(f"{'':16s}{'without':>9s}{'with':>9s}{'hook costs':>12s}")
    for which, name in enumerate(("wall time", "processor time")):
        without = [run[which] for run in times["without"]]
        with_hook = [run[which] for run in times["with"]]
        cost = median(after - before for before, after in zip(without, with_hook, strict=True))
        print(f"{name:16s}{median(without):9.2f}{median(with_hook):9.2f}{cost:12.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
