"""`semsoft explain`: one input, one forward pass, and where every label's score comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.shared import fail, is_ours, make_console, one_sentence, print_json

if TYPE_CHECKING:
    from lm_eval_semsoft.core.semantic_softmax import Kernel
    from lm_eval_semsoft.engine.readout import Readout
    from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

DEFAULT_PROMPT = (
    r"Choose the word from this list that describes the text best: {labels}.\n\n"
    r"Text: {text}\nAnswer:"
)

EXAMPLES = """
**Examples**

`semsoft explain "What a day!" --labels joy,anger,surprise`

`semsoft explain "What a day!" --labels joy,anger --model_args pretrained=Qwen/Qwen3-0.6B,tau=q0.99`

`semsoft explain "What a day!" --labels good,bad --prompt 'Review: {text}\\nThe review is'`

`semsoft explain - --labels joy,anger --json < comment.txt`
"""


@one_sentence
def explain(
    text: Annotated[str, typer.Argument(help="The text to classify; `-` reads standard input.")],
    labels: Annotated[str, typer.Option("--labels", help="The labels, separated by commas.")],
    model_args: Annotated[
        list[str] | None,
        typer.Option(
            "--model_args",
            "-a",
            help="As for `lm_eval`: `pretrained=…,tau=…`. Without `pretrained` the installed demo "
            "model answers.",
        ),
    ] = None,
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt",
            help="Template with `{text}` and, if wanted, `{labels}`; `\\n` is a line break. "
            "The label follows after a space.",
        ),
    ] = DEFAULT_PROMPT,
    apply_chat_template: Annotated[
        bool,
        typer.Option("--apply_chat_template", help="Put the prompt into the model's chat format."),
    ] = False,
    top: Annotated[
        int, typer.Option("--top", min=0, help="Neighbours that are listed per label.")
    ] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show where each label's score comes from, for one text."""
    names = parse_labels(labels)
    question = fill(prompt, text_or_stdin(text), names)
    with make_console(stderr=True).status("Asking the model …"):
        lm = load_model(model_args or [])
        if apply_chat_template:
            question = chat(lm, question)
        read = ask(lm, question, names, delimiter="" if apply_chat_template else " ")

    from lm_eval_semsoft.cli.explain_page import Page
    from lm_eval_semsoft.cli.token_text import token_texts
    from lm_eval_semsoft.reports.explain import explain as take_apart

    text_of = token_texts(lm.tokenizer)
    found = take_apart(names, read.readout, read.kernel, lm.scoring, text_of, top)
    why = None if read.kernel is not None else why_nobody_votes(lm, names)
    if as_json:
        print_json(
            {
                "model": lm._name(),
                "scoring": {**vars(lm.scoring), "kernel": lm.kernel},
                "prompt": question,
                "why_nobody_votes": why,
                **vars(found),
            }
        )
        return
    Page(make_console(), found, why).show(describe(lm), question)


# ------------------------------------------------------------------ what was asked


def text_or_stdin(text: str) -> str:
    return typer.get_text_stream("stdin").read().rstrip("\n") if text == "-" else text


def parse_labels(given: str) -> list[str]:
    """The labels of `--labels`.

    Raises:
        ValueError: an empty label, or one that stands there twice.
    """
    labels = [label.strip() for label in given.split(",")]
    for label in labels:
        if not label:
            raise ValueError(
                f"--labels {given!r} has an empty label: separate words by single commas."
            )
        if labels.count(label) > 1:
            raise ValueError(
                f"--labels {given!r} has {label!r} {labels.count(label)} times: labels must differ."
            )
    return labels


def fill(template: str, text: str, labels: Sequence[str]) -> str:
    r"""The prompt: `\n` and `\t` of the template made real, then its placeholders filled in.

    Raises:
        ValueError: an unknown placeholder, or no `{text}`.
    """
    from lm_eval_semsoft.core.errors import check_choice

    values = {"text": text, "labels": ", ".join(labels)}
    template = template.replace(r"\n", "\n").replace(r"\t", "\t")
    names = re.findall(r"\{(\w+)\}", template)
    for name in names:
        check_choice("placeholder of --prompt", name, tuple(values))
    if "text" not in names:
        raise ValueError(f"--prompt {template!r} has no {{text}}: the model would not see it.")
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], template)


# ------------------------------------------------------------------ asking the model


def load_model(model_args: Iterable[str]) -> SemsoftHF:
    """semsoft-hf with the arguments that `lm_eval --model_args` would give it."""
    try:
        from lm_eval._cli.utils import key_val_to_dict, try_parse_json
        from transformers.utils import logging as transformers_logging

        from lm_eval_semsoft.models.semsoft_hf import SemsoftHF
    except ModuleNotFoundError as missing:
        fail(
            f"semsoft explain needs {missing.name}: install it with `pip install lm-eval-semsoft`."
        )
    transformers_logging.disable_progress_bar()
    arguments: dict[str, Any] = {}
    try:
        for given in model_args:
            parsed = try_parse_json(given)
            arguments |= parsed if isinstance(parsed, dict) else key_val_to_dict(given)
    except ValueError as error:
        fail(f"--model_args {given!r}: {error}.")
    arguments.pop("readouts", None)  # one text is no run to keep
    try:
        return SemsoftHF(**arguments)
    except (OSError, ValueError, TypeError, ImportError) as error:
        if is_ours(error):
            raise
        asked = arguments.get("pretrained", "the demo model")
        reason = str(error).strip().partition("\n")[0]
        fail(f"Cannot load {asked}: {reason}")


def chat(lm: SemsoftHF, question: str) -> str:
    if not lm.tokenizer.chat_template:
        raise ValueError(
            f"--apply_chat_template: {lm._name()} has no chat template, so leave it out or name "
            "another model."
        )
    return lm.apply_chat_template([{"role": "user", "content": question}])


@dataclass(frozen=True)
class Read:
    """The readout of the answer position, and the kernel (None: nobody votes)."""

    readout: Readout
    kernel: Kernel | None


def ask(lm: SemsoftHF, question: str, labels: Sequence[str], delimiter: str = " ") -> Read:
    """Read the prompt once, exactly as the harness has semsoft-hf read a document of a task."""
    from lm_eval.api.instance import Instance

    from lm_eval_semsoft.engine.plan import Prompt
    from lm_eval_semsoft.engine.readout import DEFAULT_TOP_K
    from lm_eval_semsoft.models.pairs import documents_of

    continuations = [delimiter + label for label in labels]
    requests = [
        Instance("loglikelihood", {}, (question, continuation), i, ("explain", 0, 1))
        for i, continuation in enumerate(continuations)
    ]
    [job] = lm._jobs(documents_of(requests))
    tokens = {
        continuation: tokens
        for part in job.parts
        for continuation, tokens in zip(part.labels, part.prompt.labels, strict=True)
    }
    # A prompt that is too long is cut to what leaves room for the label: here for the longest one.
    context = min((part.prompt.tokens for part in job.parts), key=len)
    spelled = tuple(tokens[continuation] for continuation in continuations)
    prompt = Prompt(context, spelled, job.parts[0].prompt.lead)
    [(_, readout)] = lm.engine.read([prompt], 1, max(DEFAULT_TOP_K, lm.scoring.top_k))
    return Read(readout, None if job.votes is None else job.votes.kernel)


def why_nobody_votes(lm: SemsoftHF, labels: Sequence[str]) -> str:
    from lm_eval_semsoft.engine.labels import why_no_kernel

    if lm.scoring.scoring == "constrained":
        return "scoring=constrained counts the label words alone"
    if lm.kernel == "identity":
        return "kernel=identity switches the silent vote off"
    if len(labels) == 1:
        return "a single label has probability 1, whoever votes for it"
    return (
        f"the labels are {why_no_kernel(labels)}, whose cosines say nothing about meaning "
        "(kernel=cosine would force them)"
    )


def describe(lm: SemsoftHF) -> str:
    s = lm.scoring
    how = (
        "constrained softmax"
        if s.scoring == "constrained"
        else f"space {s.space}, tau {s.tau}, K {s.top_k}"
    )
    return f"{lm._name()} · {how}"
