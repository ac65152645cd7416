"""Settings: files, flags, and one sentence for what is not possible."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from csr_trainer import __main__, checkpoint, train
from csr_trainer.config import (
    FREE,
    OURS,
    PAPER,
    TRL,
    Settings,
    defaults_table,
    difference,
    parse,
    settings_of,
)


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "learning_rate: 1e-5\nlambda_max: 2\nlora_r: 0\ntrl:\n  epsilon: 0.1\n  top_p: 0.9\n"
    )
    command = parse(
        ["--config", str(path), "--lambda-max", "3", "--no-use-vllm", "--trl", "top_p=0.5",
         "--trl", "deepspeed=zero3.json", "--resume"]
    )  # fmt: skip
    settings = command.settings
    assert (settings.learning_rate, settings.lambda_max, settings.lora_r) == (1e-5, 3.0, 0)
    assert settings.trl == {"epsilon": 0.1, "top_p": 0.5, "deepspeed": "zero3.json"}
    assert (command.resume, command.dry_run, settings.use_vllm) == (True, False, False)
    assert settings.seed == Settings().seed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lamda_max": 1}, "setting='lamda_max' is not known.*did you mean 'lambda_max'"),
        ({"num_generations": 2.5}, "num_generations=2.5 must be a whole number"),
        ({"num_generations": 1}, "num_generations=1 is not allowed: use a whole number from 2"),
        ({"soft": "yes"}, "soft='yes' must be true or false"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a number"),
        ({"trl": 3}, "trl=3 must be name: value pairs"),
        ({"schedule": "linaer"}, "did you mean 'linear'"),
        ({"reward": "gold"}, "reward='gold' is not known"),
        ({"dev_questions": 0}, "needs development questions"),
    ],
)
def test_what_is_not_possible(given, message):
    with pytest.raises(ValueError, match=message):
        settings_of(given)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("- a", "must hold settings"),
        ("a: [", "cannot be read: while parsing"),
    ],
)
def test_bad_file(tmp_path, content, message):
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        parse(["--config", str(path)])


def test_every_default_says_whose_it_is():
    table = defaults_table()
    for own in dataclasses.fields(Settings):
        assert own.metadata["source"] in (PAPER, TRL, OURS)
        assert f"| `{own.name}` |" in table


def test_defaults_that_are_said_to_be_trl_s_are():
    trl = pytest.importorskip("trl")
    theirs = {own.name: own for own in dataclasses.fields(trl.GRPOConfig)}
    ours = {
        own.name: own.default
        for own in dataclasses.fields(Settings)
        if own.metadata["source"] == TRL and own.name in theirs and own.name != "learning_rate"
    }
    assert {name: theirs[name].default for name in ours} == ours
    assert settings_of({"lora_r": 0}).rate == theirs["learning_rate"].default


def test_difference_names_what_losses_depend_on():
    before = dataclasses.asdict(Settings())
    assert difference(before, dataclasses.replace(Settings(), save_steps=7)) == []
    now = dataclasses.replace(Settings(), seed=7)
    assert difference(before, now) == ["seed 42 -> 7"]
    assert set(FREE) <= set(before)


@pytest.mark.parametrize(
    ("passes", "accumulation", "good", "bad"),
    [(1, 1, [1, 3], []), (4, 2, [2, 4], [1, 3]), (6, 4, [3, 6], [1, 2, 4])],
)
def test_checkpoints_within_a_block_are_refused(passes, accumulation, good, bad):
    for steps in good:
        checkpoint.fitting_save_steps(steps, passes, accumulation)
    for steps in bad:
        with pytest.raises(ValueError, match=f"use a multiple of {good[0]}"):
            checkpoint.fitting_save_steps(steps, passes, accumulation)


def test_groups_that_do_not_fit_are_refused(monkeypatch):
    pytest.importorskip("trl")
    with pytest.raises(ValueError, match="num_generations=6 does not divide the 8 rollouts"):
        train.grpo_config(settings_of({"num_generations": 6, "use_cpu": True}))
    monkeypatch.setenv("WORLD_SIZE", "3")
    train._check_groups(settings_of({"num_generations": 6}))


@pytest.mark.parametrize(
    ("trl", "message"),
    [({"epsilom": 1}, "did you mean 'epsilon'"), ({"beta": 1}, "beta is a setting of its own")],
)
def test_trl_arguments(trl, message):
    pytest.importorskip("trl")
    with pytest.raises(ValueError, match=message):
        train.grpo_config(settings_of({"trl": trl, "use_cpu": True}))


def test_a_new_run_leaves_another_one_alone(tmp_path, capsys):
    (tmp_path / "checkpoint-5").mkdir()
    assert __main__.main(["--output-dir", str(tmp_path)]) == 2
    assert "checkpoint-5 of another run" in capsys.readouterr().err


def test_newest_is_by_number_and_whole(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "other"):
        (tmp_path / name).mkdir()
    found = checkpoint.checkpoints_in(tmp_path)
    assert [path.name for path in found] == ["checkpoint-9", "checkpoint-10"]
    assert checkpoint.newest(tmp_path) is None


@pytest.mark.parametrize("name", ["trl", "peft"])
def test_missing_package_is_one_sentence(monkeypatch, capsys, tmp_path, name):
    monkeypatch.setattr(train, "find_spec", lambda asked: None if asked == name else object())
    assert __main__.main(["--output-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"needs {name}" in said
    assert 'pip install "lm-eval-semsoft[train]"' in said


def test_model_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="nothing-here' cannot be loaded"):
        train.base_of(str(tmp_path), "nothing-here", None)


def test_names_by_which_a_model_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    assert train.locate("model") == ("model", str(tmp_path / "model"))
    assert train.locate("owner/name") == ("owner/name", "owner/name")


def test_stop_tokens_are_those_with_a_line_break(tiny_model):
    for name in ("qwen3", "llama"):
        tokenizer = tiny_model(name).tokenizer
        stop = train.stop_tokens(tokenizer, ("\n",))
        expected = [i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])]
        assert stop
        assert stop == expected
        assert train.stop_tokens(tokenizer, ()) == []
