"""`semsoft explain`: its numbers against loops over an unbatched model, its page, its errors."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lm_eval_semsoft import cli
from lm_eval_semsoft.cli.explain_page import Page, decimal
from lm_eval_semsoft.cli.shared import make_console
from lm_eval_semsoft.cli.token_text import token_texts, visible
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF
from lm_eval_semsoft.reports.explain import Explanation, LabelRow, Mass

pytestmark = pytest.mark.usefixtures("one_thread")

# `cli.explain` as an attribute may one day be the function.
module = importlib.import_module("lm_eval_semsoft.cli.explain")

TEXT = "I love this song"
LABELS = ("joy", "anger", "fear", "love", "disgust", "disapproval")


def invoke(*arguments: str, width: int = 100, stdin: str | None = None):
    return CliRunner().invoke(
        cli.app,
        ["explain", *arguments],
        env={"COLUMNS": str(width), "TERM": "dumb"},
        input=stdin,
        prog_name="semsoft",
    )


def answer_of(*arguments: str, **options: Any) -> str:
    answer = invoke(*arguments, **options)
    assert answer.exit_code == 0, answer.output + repr(answer.exception)
    return answer.stdout


def json_of(*arguments: str) -> dict[str, Any]:
    return json.loads(answer_of(*arguments, "--json"), parse_constant=pytest.fail)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Any]) -> Any:
    """`serve(name, **model_args)` lets the command find a tiny model instead of loading one."""

    def serve(name: str = "gemma3", **arguments: Any) -> SemsoftHF:
        tiny = tiny_model(name)
        lm = SemsoftHF(tiny.model, tokenizer=tiny.tokenizer, **arguments)
        monkeypatch.setattr(module, "load_model", lambda model_args: lm)
        return lm

    return serve


# ------------------------------------------------------------------ the numbers


def next_logprobs(tiny: Any, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = tiny.model(torch.tensor([tokens])).logits[0, -1]
    return logits.double().log_softmax(-1).numpy()


def by_hand(tiny: Any, prompt: str, labels: tuple[str, ...], tau: float, k: int, rivals: bool):
    """label -> (P(l|x), {token: vote}) by docs/method.md: centered space, anchors as spelled."""
    encode = tiny.tokenizer.encode
    e = tiny.model.get_output_embeddings().weight.detach().double().numpy()
    phi = e - e.mean(0)
    phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    context = encode(prompt)
    spelled = {label: encode(f"{prompt} {label}")[len(context) :] for label in labels}
    begins_long_label = {s[0] for s in spelled.values() if len(s) > 1}
    logp = next_logprobs(tiny, context)
    out = {}
    for label, tokens in spelled.items():
        own = logp[tokens[0]]
        for j in range(1, len(tokens)):
            own += next_logprobs(tiny, context + tokens[:j])[tokens[j]]
        anchor = phi[tokens].mean(0)
        anchor = anchor / np.linalg.norm(anchor)
        spell_others = {s[0] for other, s in spelled.items() if other != label and len(s) == 1}
        votes = {}
        for v in np.argsort(-logp)[:k].tolist():
            weight = (phi[v] @ anchor - tau) / (1 - tau)
            barred = v == tokens[0] or v in begins_long_label or (not rivals and v in spell_others)
            if weight > 0 and not barred:
                votes[v] = math.exp(logp[v]) * weight
        out[label] = (math.exp(own), votes)
    return out


@pytest.mark.parametrize("rivals", [True, False])
@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_every_vote_of_a_real_pass(tiny_model, tmp_path, name, rivals):
    """From the command line to JSON, the model loaded from disk."""
    tiny = tiny_model(name)
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    found = json_of(
        TEXT,
        "--labels",
        ",".join(LABELS),
        "--model_args",
        f"pretrained={tmp_path},space=centered,tau=.05,top_k=60",
        "-a",
        f"anchors=spelled,rival_votes={'on' if rivals else 'off'},device=cpu",
        "--prompt",
        r"Comment: {text}\nEmotion:",
        "--top",
        "1000",
    )
    assert found["prompt"] == f"Comment: {TEXT}\nEmotion:"
    assert found["scoring"]["tau"] == 0.05
    expected = by_hand(tiny, found["prompt"], LABELS, 0.05, 60, rivals)
    total = sum(own + sum(votes.values()) for own, votes in expected.values())
    plain_total = sum(own for own, _ in expected.values())
    assert [row["label"] for row in found["rows"]] == sorted(
        LABELS, key=lambda label: -expected[label][0] - sum(expected[label][1].values())
    )
    assert sum(row["voters"] for row in found["rows"]) > 20
    for row in found["rows"]:
        own, votes = expected[row["label"]]
        assert row["own_vote"] == pytest.approx(own, rel=1e-3)
        assert {v["token_id"]: v["vote"] for v in row["votes"]} == pytest.approx(
            votes, rel=1e-3, abs=1e-8
        )
        score = own + sum(votes.values())
        assert row["score"] == pytest.approx(score, rel=1e-3)
        assert row["semantic"] == pytest.approx(score / total, rel=1e-3)
        assert row["constrained"] == pytest.approx(own / plain_total, rel=1e-3)
        shown = row["own_vote"] + sum(v["vote"] for v in row["votes"])
        assert shown == pytest.approx(row["score"], rel=1e-6)
    logp = next_logprobs(tiny, tiny.tokenizer.encode(found["prompt"]))
    assert [t["token_id"] for t in found["next_tokens"]] == np.argsort(-logp)[:10].tolist()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"preset": "paper", "tau": 0.1},
        {"scoring": "constrained"},
        {"kernel": "identity"},
        {"rival_votes": "on", "space": "whitened"},
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_scores_are_those_of_a_run(serve, make_requests, arguments, chat):
    lm = serve("qwen3", **arguments)
    found = json_of(
        TEXT, "--labels", ",".join(LABELS), "--top", "500", *["--apply_chat_template"] * chat
    )
    delimiter = "" if chat else " "
    continuations = [delimiter + label for label in LABELS]
    requests = make_requests("emotions", [(found["prompt"], continuations)])
    run = dict(zip(LABELS, lm.loglikelihood(requests, disable_tqdm=True), strict=True))
    # A run's log S has the beginning that all labels share (the template's line break), a constant.
    lead = run[LABELS[0]].readout.lead_logprob
    assert (lead < 0) == chat
    for row in found["rows"]:
        assert row["log_score"] + lead == pytest.approx(run[row["label"]][0], abs=1e-5)
        shown = row["own_vote"] + sum(v["vote"] for v in row["votes"])
        assert shown == pytest.approx(math.exp(row["log_score"]), rel=1e-5, abs=1e-12)
    if chat:
        assert found["prompt"].startswith("<|im_start|>user\n")


def test_json_has_these_fields(serve):
    serve()
    found = json_of(TEXT, "--labels", "joy,anger")
    assert set(found) == {
        *("model", "scoring", "prompt", "why_nobody_votes", "rows", "mass", "next_tokens"),
        *("top_k", "voters", "shared_start", "entropy"),
    }
    assert set(found["mass"]) == {"labels", "voted", "others", "beyond_top_k"}
    assert set(found["next_tokens"][0]) == {"token", "token_id", "probability"}
    assert set(found["rows"][0]) == {
        *("label", "constrained", "semantic", "log_score", "score", "own_vote", "silent_vote"),
        *("silent_share", "neighbours", "voters", "votes"),
    }
    vote = found["rows"][0]["votes"][0]
    assert set(vote) == {"token", "token_id", "probability", "weight", "vote", "share"}
    assert len(found["rows"][0]["votes"]) <= 8


# ------------------------------------------------------------------ the page


@pytest.mark.parametrize("width", [40, 80, 140, 300])
def test_page(serve, width):
    lm = serve(tau="q0.8")
    page = answer_of("[red]so :joy: sad[/red]", "--labels", ",".join(LABELS), width=width)
    assert all(len(line) <= width for line in page.splitlines())
    flat = "".join(page.split())
    assert "[red]so:joy:sad[/red]" in flat.replace("prompt:", "")
    for word in ("constrained", "semantic", "Mostprobablenexttokens", "neighbours", *LABELS[:4]):
        assert word in flat or width < 80
    assert lm._name().split()[0] in page


def test_page_shows_what_the_json_says(serve):
    serve(tau="q0.8")
    arguments = (TEXT, "--labels", "joy,anger,fear")
    page, found = answer_of(*arguments, width=160), json_of(*arguments)
    for row in found["rows"]:
        [line] = [
            line for line in page.splitlines()
            if line.startswith(row["label"]) and " + " in line
        ]  # fmt: skip
        shown = [float(word.strip("%")) / 100 for word in line.split() if word.endswith("%")]
        assert shown[0] == pytest.approx(row["constrained"], abs=6e-4)
        assert shown[1] == pytest.approx(row["semantic"], abs=6e-4)
        assert shown[2] == pytest.approx(row["silent_share"], abs=6e-3)
        for vote in row["votes"]:
            assert visible(vote["token"], limit=14) in page


def test_verdict(serve):
    serve(tau="q0.8")
    arguments = (TEXT, "--labels", ",".join(LABELS))
    found, page = json_of(*arguments), " ".join(answer_of(*arguments).split())
    semantic = found["rows"][0]["label"]
    constrained = max(found["rows"], key=lambda row: row["constrained"])["label"]
    if semantic == constrained:
        assert f"Both scorings say {semantic}" in page
    else:
        assert f"changes the answer: {constrained} (" in page


def test_a_start_that_all_labels_share_is_the_verdict(serve):
    """A chat format that ends with a line break: the harness moves it in front of every label."""
    serve("qwen3")
    page = answer_of(TEXT, "--labels", "joy,anger", "--apply_chat_template")
    found = json_of(TEXT, "--labels", "joy,anger", "--apply_chat_template")
    told = "All labels begin with the token" in page
    assert told == (found["shared_start"] is not None)
    assert told != ("silent votes:" in page)


@pytest.mark.parametrize(
    ("labels", "arguments", "reason"),
    [
        ("A,B,C,D", {}, "option letters or numbers"),
        ("yes,no", {}, "yes/no answers"),
        ("a long way to go,joy", {}, "whole phrases"),
        ("joy", {}, "a single label has probability 1"),
        ("joy,anger", {"kernel": "identity"}, "kernel=identity"),
        ("joy,anger", {"scoring": "constrained"}, "scoring=constrained"),
    ],
)
def test_says_why_nobody_votes(serve, labels, arguments, reason):
    serve("llama", **arguments)
    page = " ".join(answer_of(TEXT, "--labels", labels).split())
    assert "Nobody votes: " in page
    assert reason in page
    assert "silent votes:" not in page
    found = json_of(TEXT, "--labels", labels)
    assert reason in found["why_nobody_votes"]
    for row in found["rows"]:
        assert row["semantic"] == row["constrained"]
        assert row["silent_vote"] == row["neighbours"] == 0
        assert row["votes"] == []


ODD_TEXTS = [
    "",
    " ",
    "\n\n",
    "so happy 🎉👩‍👩‍👧",
    "日本語",
    "a\tb\x1b[31m",
    "{labels} {x} \\n",
    "-1 of 5",
]


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_odd_texts(serve, name, text):
    serve(name)
    found = json.loads(answer_of("--labels", "joy,anger", "--json", "--", text))
    assert f"Text: {text}\nAnswer:" in found["prompt"]
    assert sum(row["semantic"] for row in found["rows"]) == pytest.approx(1)
    assert "\x1b" not in answer_of("--labels", "joy,anger", "--", text)


def test_text_from_standard_input(serve):
    serve()
    answer = invoke("-", "--labels", "joy,anger", "--json", stdin="two\nlines\n")
    assert "Text: two\nlines\nAnswer:" in json.loads(answer.stdout)["prompt"]


@pytest.mark.parametrize(
    "labels", ["very happy,quite sad", "disapproval of it,joy", " joy , anger"]
)
def test_odd_labels(serve, labels):
    serve()
    found = json_of(TEXT, "--labels", labels)
    wanted = sorted(label.strip() for label in labels.split(","))
    assert sorted(row["label"] for row in found["rows"]) == wanted
    answer_of(TEXT, "--labels", labels, width=60)


def test_a_prompt_beyond_the_context_is_cut_and_the_user_told(serve, caplog):
    serve()
    found = json_of("so much joy " * 400, "--labels", ",".join(LABELS))
    assert len(found["rows"]) == len(LABELS)
    assert "cut from the left" in " ".join(caplog.text.split())


def test_the_prompt_is_mine(serve):
    serve()
    template = r"{labels}|{text}|{{}}\t=>\n"
    found = json_of("{text} {labels}", "--labels", "joy,anger", "--prompt", template)
    assert found["prompt"] == "joy, anger|{text} {labels}|{{}}\t=>\n"


@pytest.mark.parametrize("own", [0.0, 1e-320, 3e-5, 1.0])
def test_any_score_can_be_shown(capsys, own):
    """Long labels may have probabilities that no float holds; nobody at all may vote."""
    row = LabelRow("a", 0.5, 0.5, -800.0, own, own, 0.0, 0.0, 0, 0, ())
    nothing = Explanation((row, row), Mass(own, 0.0, 0.0, 0.0), (), 1, 0, None, 0.0)
    Page(make_console(), nothing, None).show("model", "")
    assert f"{decimal(own)} + 0 = {decimal(own)}" in capsys.readouterr().out


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--labels", "joy,anger,joy"], "'joy' 2 times"),
        (["--labels", "joy,,anger"], "empty label"),
        (["--labels", ""], "empty label"),
        (["--labels", "joy,anger", "--prompt", "{texts}"], "did you mean 'text'"),
        (["--labels", "joy,anger", "--prompt", "x"], "has no {text}"),
        (["--labels", "joy,anger", "-a", "pretrained"], "expected `key=value`"),
        (["--labels", "joy,anger", "-a", "{tau:1}"], "Invalid JSON"),
        (["--labels", "joy,anger", "-a", "tau=2"], "tau=2: must be"),
        (["--labels", "joy,anger", "-a", "scoring=semantics"], "did you mean 'semantic'"),
        (["--labels", "joy,anger", "-a", "pretrained=demo:gemma"], "did you mean"),
        (["--labels", "joy,anger", "-a", "pretrained=/no/such/model"], "Cannot load /no/such"),
    ],
)
def test_mistakes_are_one_sentence(arguments, said):
    answer = invoke(TEXT, *arguments)
    assert answer.exit_code == 2, answer.output
    assert answer.stdout == ""
    assert said in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert isinstance(answer.exception, SystemExit)


def test_usage_errors():
    for arguments in ([TEXT], ["--labels", "joy"], [TEXT, "--labels", "a,b", "--top", "-1"]):
        answer = invoke(*arguments)
        assert answer.exit_code == 2
        assert "Traceback" not in answer.output


def test_a_model_without_a_chat_template(serve):
    lm = serve()
    template, lm.tokenizer.chat_template = lm.tokenizer.chat_template, None
    try:
        answer = invoke(TEXT, "--labels", "joy,anger", "--apply_chat_template")
    finally:
        lm.tokenizer.chat_template = template
    assert answer.exit_code == 2
    assert "has no chat template" in answer.stderr


def test_a_broken_model(monkeypatch, fresh_tiny_model):
    tiny = fresh_tiny_model("gpt2")
    with torch.no_grad():
        tiny.model.get_output_embeddings().weight[3] = float("nan")
    lm = SemsoftHF(tiny.model, tokenizer=tiny.tokenizer)
    monkeypatch.setattr(module, "load_model", lambda model_args: lm)
    answer = invoke(TEXT, "--labels", "joy,anger")
    assert answer.exit_code == 2
    assert "NaN or infinite" in answer.stderr


# ------------------------------------------------------------------ tokens as text


def test_tokens_make_up_the_text(tiny):
    text_of = token_texts(tiny.tokenizer)
    for text in ("I love  this song.", "so\tmuch\n\njoy", "what?"):
        ids = tiny.tokenizer.encode(text, add_special_tokens=False)
        assert "".join(map(text_of, ids)) == text


def test_every_token_has_a_text(tiny):
    text_of = token_texts(tiny.tokenizer)
    rows = tiny.model.get_output_embeddings().weight.shape[0]  # may be more than there are tokens
    texts = [text_of(i) for i in range(rows)]
    assert all(texts)
    assert "\ufffd" not in "".join(texts)


def test_pieces_of_an_emoji_are_bytes(tiny_model):
    for name, expected in (("gpt2", r"\xf0"), ("gemma3", "<0xF0>")):
        tokenizer = tiny_model(name).tokenizer
        ids = tokenizer.encode("🎉", add_special_tokens=False)
        assert expected in [token_texts(tokenizer)(i) for i in ids]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" sad", "␣sad"),
        ("\n\n", "⏎⏎"),
        ("\t \r", "⇥␣␍"),
        ("\x1b[31m\x00", "\\x1b[31m\\x00"),
        ("a\u200bb", "a\\u200bb"),
        ("[red]", "[red]"),
        ("é🎉", "é🎉"),
    ],
)
def test_visible(text, shown):
    assert visible(text) == shown


def test_visible_is_cut():
    assert visible("─" * 30, limit=5) == "────…"
    assert visible("a b", space=" ") == "a b"
