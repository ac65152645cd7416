"""What every command relies on: JSON, one-sentence errors, text that is no markup."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from lm_eval_semsoft.cli.shared import fail, make_console, one_sentence, plain, print_json
from lm_eval_semsoft.core.semantic_softmax import parse_tau


@dataclass(frozen=True)
class Point:
    x: float
    names: tuple[str, ...]


def test_json_has_only_what_json_has(capsys):
    print_json(
        {
            "point": Point(float("nan"), ("a", "[red]")),
            "numbers": [np.float32(0.5), np.int64(3), np.bool_(True), float("-inf"), 2],
            "array": np.array([[1.0, np.nan], [np.inf, 2.0]]),
            "tensor": torch.tensor([1, 2]),
            Path("a/b"): Path("c"),
            1: {"set": {7}, "none": None, "text": "ü\ud800"},
        }
    )
    read = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert read == {
        "point": {"x": None, "names": ["a", "[red]"]},
        "numbers": [0.5, 3, True, None, 2],
        "array": [[1.0, None], [None, 2.0]],
        "tensor": [1, 2],
        str(Path("a/b")): "c",
        "1": {"set": [7], "none": None, "text": "ü\ud800"},
    }
    assert isinstance(plain(np.float64(0.25)), float)
    assert not math.isnan(plain(0.0))


def run(body) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(one_sentence(body))
    answer = CliRunner().invoke(app, [])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.exit_code, answer.stderr


def test_fail_is_one_sentence_and_exit_code_2():
    assert run(lambda: fail("K must be at least 1.")) == (2, "K must be at least 1.\n")


def test_our_value_errors_are_sentences():
    code, said = run(lambda: parse_tau("2"))
    assert code == 2
    assert said.startswith("tau='2': must be")
    assert said.count("\n") == 1


def test_value_errors_of_others_stay_visible():
    with pytest.raises(ValueError, match="invalid literal"):
        run(lambda: int("x"))


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "no[such]file"
    assert run(path.read_text) == (2, f"{path}: there is no such file.\n")


def test_console_prints_markup_as_it_is(capsys):
    make_console().print("[red]x[/red] :joy:")
    assert capsys.readouterr().out == "[red]x[/red] :joy:\n"
