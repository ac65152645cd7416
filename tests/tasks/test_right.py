"""Right or wrong: exact match first, then the judge, all documents in one batch."""

import math

import pytest

from lm_eval_semsoft.judges import Judge, resolve
from lm_eval_semsoft.tasks.right import right_answers

QUESTION = "Who wrote it?"


class Counting(Judge):
    """Says of every pair what it was told to, and remembers what it was asked."""

    def __init__(self, same=()):
        super().__init__("counting")
        self.same, self.batches = set(same), []

    def score(self, pairs):
        self.batches.append(list(pairs))
        return [0.5 if {p.a, p.b} in map(set, self.same) else 0.49 for p in pairs]


def right(prediction, golds, judge="rules"):
    return right_answers(resolve(judge), [QUESTION], [prediction], [golds])[0]


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("Jane Austen", ["Jane Austen"], 1),
        ("the jane austen.", ["Brontë", "Jane Austen"], 1),
        ("Austen", ["Jane Austen"], 1),  # by the rules
        ("Brontë", ["Jane Austen"], 0),
        ("", ["Jane Austen"], 0),
        ("  \n", ["Jane Austen"], 0),
        ("...", ["Jane Austen"], 0),
        ("...", ["?!"], math.nan),  # gold answers that say nothing are none
        ("...", ["?!", "Austen"], 0),
        ("Austen", [], math.nan),
        ("", [], math.nan),
        ("村上春樹", ["夏目漱石", "村上春樹"], 1),
        ("Толстой.", ["толстой"], 1),
        ("طه حسين", ["نجيب محفوظ"], 0),
        ("π", ["π"], 1),
        ("The", ["The"], 1),
        ("word " * 2000, ["another"], 0),
    ],
)
def test_one_answer(prediction, golds, expected):
    assert right(prediction, golds) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("at", [0, 90, 181])
def test_any_of_182_aliases(at):
    aliases = [f"writer {'abcdefghijklmn'[i % 14]}{'opqrstuvwxyzab'[i // 14]}" for i in range(182)]
    aliases[at] = "Pelham Grenville Wodehouse"
    assert right("P. G. Wodehouse", aliases) == 1
    aliases[at] = "Evelyn Waugh"
    assert right("P. G. Wodehouse", aliases) == 0


def test_the_judge_is_asked_once_and_not_about_what_is_clear():
    judge = Counting(same=[("Boz", "Dickens")])
    golds = [["Dickens", "Charles"], ["Austen", "J. A."], ["Dickens"], ["Swift"], []]
    predictions = ["Boz", "AUSTEN", "!", "Boz", "Boz"]
    found = right_answers(judge, [QUESTION] * 5, predictions, golds)
    assert found[:4] == [1, 1, 0, 0]
    assert math.isnan(found[4])
    asked = [{p.a, p.b} for batch in judge.batches for p in batch]
    assert len(judge.batches) == 1
    assert asked == [{"Boz", "Dickens"}, {"Boz", "Charles"}, {"Boz", "Swift"}]


def test_no_documents():
    assert right_answers(Counting(), [], [], []) == []


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        right_answers(Counting(), [QUESTION], [], [["a"]])
