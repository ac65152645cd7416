"""A checkpoint is asked as it was trained: prompts of the tasks are those of csr_trainer."""

from __future__ import annotations

import json

import pytest

from csr_trainer import data as training
from lm_eval_semsoft.engine import checkpoint
from lm_eval_semsoft.engine.checkpoint import Base, Checkpoint, PromptTemplate
from lm_eval_semsoft.tasks.questions import INSTRUCTION
from lm_eval_semsoft.tasks.verbal import TagsTask, TenTask

QUESTION = "Who wrote Emma?"
TASKS = {"answer": "hotpotqa_se", "tags": "hotpotqa_verbal", "ten": "hotpotqa_verbal10"}
INSTRUCTIONS = {"answer": INSTRUCTION, "tags": TagsTask.instruction, "ten": TenTask.instruction}


@pytest.fixture
def trained(tiny_model, tmp_path):
    """`trained(kind, form, shots)`: a checkpoint folder that says how it was asked."""

    def build(kind, form="answer", shots=4):
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        tiny_model("qwen3").tokenizer.save_pretrained(folder)
        (folder / "model.safetensors").write_bytes(b"weights")
        template = PromptTemplate(kind, INSTRUCTIONS[form], shots, form)
        base = Base("base", None, "0", "float32")
        files = checkpoint.weights_in(folder)
        checkpoint.write(folder, Checkpoint("full", base, template, 1, {}, {}, files=files))
        return str(folder)

    return build


@pytest.fixture
def one_question(local):
    folder = local / "hotpotqa"
    folder.mkdir()
    row = {"id": "a", "question": QUESTION, "answer": "Jane Austen"}
    (folder / "validation.jsonl").write_text(json.dumps(row) + "\n")


def in_training(tokenizer, kind, form, shots):
    prompt = training.prompt(QUESTION, form, kind == "chat", shots)
    if isinstance(prompt, str):
        return prompt
    return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("form", TASKS)
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("shots", [4, 0])
def test_prompts_are_those_of_training(
    one_question, trained, load_task, prompts, tiny_model, kind, form, shots
):
    task = load_task(TASKS[form], checkpoint=trained(kind, form, shots), judge="exact")
    ((prompt, asked),) = prompts(task)
    assert prompt == in_training(tiny_model("qwen3").tokenizer, kind, form, shots)
    if form == "answer":
        assert asked[0]["until"] == ([] if kind == "chat" else ["\n"])


def test_flags_of_the_harness_win(one_question, trained, load_task, prompts):
    """`--apply_chat_template`, `--system_instruction` and `--num_fewshot` are the user's."""
    task = load_task("hotpotqa_se", checkpoint=trained("chat"), judge="exact")
    ((prompt, _),) = prompts(task, num_fewshot=0, chat=True, system_instruction="Sing.")
    assert prompt == f"<system>Sing.<user>{QUESTION}<assistant>"


def test_a_checkpoint_of_another_form_keeps_the_task_s_own_instruction(
    one_question, trained, load_task, prompts
):
    task = load_task("hotpotqa_se", checkpoint=trained("chat", "tags", 0), judge="exact")
    ((prompt, _),) = prompts(task)
    assert INSTRUCTION in prompt
    assert "<confidence>" not in prompt
    assert prompt.count("<|im_start|>user") == 5


def test_other_models_may_have_an_argument_of_that_name(one_question, load_task, prompts, tmp_path):
    task = load_task("hotpotqa_se", checkpoint=str(tmp_path), judge="exact")
    ((prompt, _),) = prompts(task)
    assert prompt.endswith(f"Question: {QUESTION}\nAnswer:")
