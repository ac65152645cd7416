"""Training questions, and the prompts that ask them.

Questions come from the train split of HotpotQA, TriviaQA or NQ-Open, or from JSON lines of the
user. Prompts are those of the tasks that evaluate the model (``…_se``, ``…_verbal``,
``…_verbal10``), instruction and solved examples included, so that training changes the answers and
not how a question has to be asked.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.judges.text import has_content
from lm_eval_semsoft.tasks import hotpotqa, nq_open, questions, triviaqa
from lm_eval_semsoft.tasks.data import (
    DatasetSpec,
    DataUnavailable,
    LoadedRows,
    Row,
    broken_row,
    load_file,
    load_rows,
)
from lm_eval_semsoft.tasks.verbal import EXAMPLES, TagsTask, TenTask, VerbalTask

logger = logging.getLogger(__name__)

SPLIT = "train"
N_TRAIN = 10_000  # the paper's number of HotpotQA questions
N_DEVELOPMENT = 200  # our choice
FORMATS = ("answer", "tags", "ten")
FORMAT_OF = {
    "csr": "answer",
    "rlvr": "answer",
    "calibration": "answer",
    "rlcr": "tags",
    "rd": "ten",
}

FEATURES = datasets.Features(
    {
        "row_id": datasets.Value("string"),  # tells groups apart; texts of questions may repeat
        "question": datasets.Value("string"),
        "answers": [datasets.Value("string")],
    }
)

# --- where questions come from -------------------------------------------------------------------


def _train_spec(spec: DatasetSpec, rows: int, *files: str) -> DatasetSpec:
    """The train split of a data set of which the tasks read another; one `files` per part."""
    assert spec.hub is not None
    parts = {SPLIT if i == 0 else f"{SPLIT} {i}": file for i, file in enumerate(files)}
    return dataclasses.replace(
        spec,
        files={SPLIT: "train.jsonl"},
        hub=dataclasses.replace(spec.hub, files=parts),
        published_rows={} if len(files) > 1 else {SPLIT: rows},
    )


SPECS = {
    "hotpotqa": _train_spec(
        hotpotqa.spec("none"),
        90447,
        "distractor/train-00000-of-00002.parquet",
        "distractor/train-00001-of-00002.parquet",
    ),
    "triviaqa": _train_spec(triviaqa.SPEC, 138384, "rc.nocontext/train-00000-of-00001.parquet"),
    "nq_open": _train_spec(nq_open.SPEC, 87925, "nq_open/train-00000-of-00001.parquet"),
}


def load(
    dataset: str,
    n_train: int | None = N_TRAIN,
    n_development: int = N_DEVELOPMENT,
    seed: int = questions.QUESTION_SEED,
) -> datasets.DatasetDict:
    """Questions to train on, and others to watch training with.

    Questions without an answer that says something are left out, and those that have come before,
    too. The rest is put into a seeded random order: the first `n_development` are the development
    slice, the next `n_train` are for training, so neither number changes the other's questions
    beyond where they begin.

    Args:
        dataset: ``hotpotqa``, ``triviaqa``, ``nq_open`` (their train splits: the file
            ``SEMSOFT_DATA_DIR/<name>/train.jsonl`` or ``.parquet``, else the hub), or the path of
            a file of JSON lines (`read_questions`).
        n_train: None, or more than there are: all that are left.
        n_development: 0 or more.
        seed: of the order, 0 or more.

    Returns:
        ``train`` and ``development``, columns as in `FEATURES`.

    Raises:
        ValueError: a number is not allowed, there is no such data set, or too few questions.
        DataUnavailable: the data cannot be had; the message says how to get it.
        BrokenData: a file has a bad line; the message names it.
    """
    for name, given, low in (
        ("n_train", n_train, 1),
        ("n_development", n_development, 0),
        ("seed", seed, 0),
    ):
        if given is not None and (type(given) is not int or given < low):
            raise ValueError(f"{name}={given!r} must be a whole number from {low}.")
    loaded = _load_rows(dataset)
    usable, dropped = questions.usable_rows(loaded.rows)
    known = [row for row in usable if any(map(has_content, row["answers"]))]
    dropped["without an answer"] = len(usable) - len(known)
    if len(known) <= n_development:
        raise ValueError(
            f"n_development={n_development} leaves nothing to train on: {loaded.path} has "
            f"{len(known)} questions with an answer; use a number below that."
        )
    order = questions.random_order(len(known), seed)
    end = None if n_train is None else n_development + n_train
    slices = {"train": order[n_development:end], "development": order[:n_development]}
    logger.info(
        "%s: %d questions to train on and %d to watch it, of %d (seed=%d); left out: %s",
        dataset,
        len(slices["train"]),
        n_development,
        len(known),
        seed,
        ", ".join(f"{n} {why}" for why, n in dropped.items() if n) or "none",
    )
    return datasets.DatasetDict(
        {name: _table([known[i] for i in places]) for name, places in slices.items()}
    )


def _load_rows(dataset: str) -> LoadedRows:
    path = Path(dataset).expanduser()
    if path.is_file():
        return load_file(DatasetSpec(path.stem, {}, read_questions), path)
    if path.suffix in (".jsonl", ".json"):
        raise DataUnavailable(f"dataset={dataset!r}: there is no such file.")
    spec = SPECS.get(dataset) or SPECS[check_choice("dataset", dataset, (*SPECS, "<file>.jsonl"))]
    loaded = load_rows(spec, SPLIT)
    if loaded.source != "hub" or spec.hub is None:
        return loaded
    others = [load_rows(spec, part, "hub") for part in spec.hub.files if part != SPLIT]
    rows = [row for part in (loaded, *others) for row in part.rows]
    return dataclasses.replace(loaded, rows=rows)


def _table(rows: Sequence[Row]) -> datasets.Dataset:
    columns = {
        "row_id": [row["id"] for row in rows],
        "question": [row["question"] for row in rows],
        "answers": [row["answers"] for row in rows],
    }
    return datasets.Dataset.from_dict(columns, features=FEATURES)


ANSWER_COLUMNS = ("answer", "answers", "golden_answers", "aliases")


def read_questions(path: Path) -> list[Row]:
    """Read JSON lines of the user.

    Each has ``question`` and at least one of ``answer``, ``answers``, ``golden_answers`` and
    ``aliases``, a text or a list of texts each; all of them count as right. ``id`` is optional.

    Raises:
        BrokenData: a line has no question, none of those, or another type of value.
    """
    return questions.reader(path.stem, (), _parse)(path)


def _parse(path: Path, number: int, row: Row) -> Row:
    questions.check_columns(path, number, row, "question")
    given = [row[name] for name in ANSWER_COLUMNS if row.get(name) is not None]
    if not given:
        raise broken_row(path, number, "a row with answer, answers or aliases", sorted(row))
    lists = [[value] if isinstance(value, str) else value for value in given]
    answers = [
        answer for value in lists for answer in questions.texts(path, number, "answers", value)
    ]
    return {
        "id": row.get("id"),
        "question": questions.one_text(path, number, "question", row["question"]),
        "answers": list(dict.fromkeys(answers)),
        "context": None,
    }


# --- prompts -------------------------------------------------------------------------------------

_VERBAL: dict[str, type[VerbalTask]] = {"tags": TagsTask, "ten": TenTask}


def with_prompts(
    table: datasets.Dataset, form: str = "answer", chat: bool = False, examples: int = 4
) -> datasets.Dataset:
    """The questions with a column ``prompt``, as TRL wants it.

    Args:
        table: columns as in `FEATURES`.
        form: how to reply: ``answer`` alone, or with a confidence in ``tags`` or from 0 to
            ``ten`` (`FORMAT_OF` each reward).
        chat: a list of messages, for a model with a chat template; else a text.
        examples: how many solved questions come first, 0 to 4; the tasks have 4.

    Raises:
        ValueError: the form or the number is not known.
    """
    prompts = [prompt(question, form, chat, examples) for question in table["question"]]
    return table.add_column("prompt", prompts)


def prompt(
    question: str, form: str = "answer", chat: bool = False, examples: int = 4
) -> str | list[dict[str, str]]:
    """The prompt of one question; arguments and errors as `with_prompts`."""
    check_choice("form", form, FORMATS)
    instruction, solved = _instruction(form), _solved(form)
    if type(examples) is not int or not 0 <= examples <= len(solved):
        raise ValueError(f"examples={examples!r} must be a whole number from 0 to {len(solved)}.")
    turns = [(_asked(q, form, chat), reply) for q, reply in solved[:examples]]
    if chat:
        messages = [{"role": "system", "content": instruction}]
        for user, reply in turns:
            messages += [
                {"role": "user", "content": user},
                {"role": "assistant", "content": reply},
            ]
        return [*messages, {"role": "user", "content": _asked(question, form, chat)}]
    gap = " " if form == "answer" else "\n"
    head = "" if form == "answer" else f"{instruction}\n\n"
    shots = "".join(f"{user}{gap}{reply}\n\n" for user, reply in turns)
    return f"{head}{shots}{_asked(question, form, chat)}"


def _instruction(form: str) -> str:
    return questions.INSTRUCTION if form == "answer" else _VERBAL[form].instruction


def _solved(form: str) -> list[tuple[str, str]]:
    if form == "answer":
        return [(question, answer) for question, answer, _ in questions.EXAMPLES]
    return [(example.question, _VERBAL[form].written(example)) for example in EXAMPLES]


def _asked(question: str, form: str, chat: bool) -> str:
    if form == "answer":
        return question if chat else f"Question: {question}\nAnswer:"
    return f"Question: {question}"


def stop_strings(form: str = "answer", chat: bool = False) -> tuple[str, ...]:
    """Where a reply ends, for `Reward.until` and for generation; () where the model ends itself.

    >>> stop_strings("answer"), stop_strings("tags"), stop_strings("answer", chat=True)
    (('\\n',), ('\\nQuestion:',), ())
    """
    check_choice("form", form, FORMATS)
    if chat:
        return ()
    return ("\n",) if form == "answer" else ("\nQuestion:",)
