"""The rules, case by case: what must be the same, what must differ, what they must leave open."""

import pytest

from lm_eval_semsoft.judges.dates import Date
from lm_eval_semsoft.judges.dates import extract as dates_of
from lm_eval_semsoft.judges.quantities import extract as quantities_of
from lm_eval_semsoft.judges.rules import decide
from lm_eval_semsoft.judges.text import fold

SAME = [
    ("Yes, because it rains", "yes"),
    ("No.", "False"),
    ("21", "twenty-one"),
    ("1,234", "1234"),
    ("1.5 million", "1,500,000"),
    ("775 rooms", "775"),
    ("62 miles", "100 km"),
    ("$5 million", "5,000,000 dollars"),
    ("1 hour 30 minutes", "90 min"),
    ("50 percent", "50%"),
    ("½", "1/2"),
    ("World War II", "world war two"),
    ("14 December 1972 UTC", "December 1972"),
    ("in 1972", "1972"),
    ("May 4", "4 May 1990"),
    ("1972-12-14", "December 14th, 1972"),
    ("Beyoncé", "beyonce"),
    ("his birthday", "Birthdays"),
    ("ice cream", "icecream"),
    ("The The", "the the"),
    ("NBA", "National Basketball Association"),
    ("US", "the United States of America"),
    ("J. K. Rowling", "Joanne Kathleen Rowling"),
    ("Barack Obama", "Obama"),
    ("a large car", "car"),
    ("The capital of France is Paris.", "Paris"),
    ("Москва", "москва."),
]
DIFFERENT = [
    ("Yes, because it is", "No."),
    ("true", "false"),
    ("1912", "1913"),
    ("5 km", "5 kg"),
    ("5 km", "6 km"),
    ("3.5", "35"),
    ("-5", "5"),
    ("first", "second"),
    ("Louis XIV", "Louis XVI"),
    ("10²", "102"),
    ("December 1972", "1973"),
    ("23 February", "21 February"),
    ("it did pass", "it did not pass"),
]
OPEN = [
    ("no one", "No"),
    ("No. 5", "no"),
    ("Paris", "London"),
    ("Paris or London", "Paris"),
    ("New York", "York"),
    ("Obama's wife", "Obama"),
    ("Louis XIV", "Louis"),
    ("water", "H2O"),
    ("A", "B"),
    ("us", "United States of America"),
    ("京都", "東京都"),
    ("at", "apple tree"),
]


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (*pair, told)
        for pairs, told in ((SAME, True), (DIFFERENT, False), (OPEN, None))
        for pair in pairs
    ],
)
def test_what_the_rules_tell(a, b, told):
    assert decide("", a, b) is told
    assert decide("", b, a) is told


def test_words_of_the_question_are_no_answer():
    question = "Which film by Nolan is about dreams?"
    assert decide(question, "the film Inception", "Inception") is True
    assert decide(question, "the film", "the film Inception") is None


def test_a_word_somewhere_in_a_long_answer_is_not_contained():
    assert decide("", "Paris", "Paris " + " ".join(f"word{chr(97 + i)}" for i in range(20))) is None


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("14th of December, 1972", Date(1972, 12, 14)),
        ("Sept 11 , 2001", Date(2001, 9, 11)),
        ("14/12/1972", Date(1972, 12, 14)),
        ("12/14/1972", Date(1972, 12, 14)),
        ("3/4/1972", Date(1972)),  # which is the month?
        ("3/3/1972", Date(1972, 3, 3)),
        ("Dec. 1972", Date(1972, 12)),
        ("May", Date(None, 5)),
    ],
)
def test_dates(text, date):
    assert dates_of(fold(text))[0] == (date,)


@pytest.mark.parametrize("text", ["may be", "1912", "99/99/1972", "5 marches"])
def test_no_dates(text):
    assert dates_of(fold(text))[0] == ()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("two hundred and five", [205]),
        ("two thousand and one", [2001]),
        ("one hundred and one thousand", [101_000]),
        ("a dozen eggs", [12]),
        ("three or four", [3, 4]),
        ("3,5 kg", [3.5]),
        ("5k", [5000]),
        ("the 1990s", [1990]),
        ("30 seconds", [30]),
        ("twenty-first", [21]),
        ("٣", [3]),
        ("no one", []),
        ("F-16", [16]),
        ("5 degrees west", [5]),
        ("9" * 400, [float("inf")]),
    ],
)
def test_numbers(text, values):
    assert [q.value for q in quantities_of(fold(text))[0]] == values
