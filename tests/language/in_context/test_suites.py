"""Suites' records, in every shape they are handed around in, become questions."""

from pathlib import Path

import pytest

from magneto.language.suites import SUITES, Item, load_questions

SHARED = Path(__file__).parents[4] / "shared" / "data" / "causal_lm"


def parsed(suite: str, **record) -> Item:
    return SUITES[suite].parse(record)


def test_hellaswag_in_its_original_shape() -> None:
    item = parsed(
        "hellaswag",
        activity_label="Baking bread",
        ctx_a="[header] How to bake [title] Mix.",
        ctx_b="the dough",
        endings=["[step] rises slowly.", "sings."],
        label="0",
    )
    context = "Baking bread: How to bake. Mix. The dough"
    assert item == Item((context,) * 2, (" rises slowly.", " sings."), 0)


def test_hellaswag_with_clean_text() -> None:
    item = parsed("hellaswag", query="A man sits. He", choices=[" stands up.", "flies."], label=1)
    assert item.endings == (" stands up.", " flies.")
    assert item.solved == "A man sits. He flies."


def test_winogrande_scores_what_follows_the_blank() -> None:
    item = parsed(
        "winogrande",
        sentence="The cup missed the shelf since _ was narrow.",
        option1="cup",
        option2="shelf",
        answer="2",
    )
    before = "The cup missed the shelf since "
    assert item == Item((before + "cup", before + "shelf"), (" was narrow.",) * 2, 1)


HUB = {
    "text": "The dog chased the cat until it  got tired.",
    "pronoun": "it",
    "pronoun_loc": 29,
    "options": ["The dog", "The cat"],
    "label": 0,
}


def test_winograd_writes_options_as_inside_a_sentence() -> None:
    item = parsed("winograd", **HUB)
    before = "The dog chased the cat until "
    assert item == Item((before + "the dog", before + "the cat"), (" got tired.",) * 2, 0)


def test_winograd_keeps_names_and_capitals_after_a_full_stop() -> None:
    text = "Ann met Eve. She smiled."
    changes = {"text": text, "pronoun": "She", "pronoun_loc": 13}
    item = parsed("winograd", **HUB | changes | {"options": ["Ann", "Eve"]})
    assert item.contexts == ("Ann met Eve. Ann", "Ann met Eve. Eve")
    item = parsed("winograd", **HUB | changes | {"options": ["The girl", "Eve"]})
    assert item.contexts[0] == "Ann met Eve. The girl"


def test_winograd_gives_possessives_their_ending() -> None:
    changes = {"text": "Bob lost to Tim in his house.", "pronoun": "his", "pronoun_loc": 19}
    item = parsed("winograd", **HUB | changes | {"options": ["Bob", "Tim"]})
    assert item.contexts == ("Bob lost to Tim in Bob's", "Bob lost to Tim in Tim's")


def test_winograd_with_a_mask() -> None:
    record = {"choices": ["The wall", "The gap"], "answer": "The gap"}
    item = parsed("wsc273", sentence="I see it through  [MASK] .", **record)
    assert item == Item(("I see it through the wall", "I see it through the gap"), (".",) * 2, 1)
    item = parsed("wsc273", sentence="Look.  [MASK]  is wide.", **record)
    assert item.contexts[0] == "Look. The wall"
    assert item.endings[0] == " is wide."


def test_storycloze_in_both_shapes() -> None:
    hub = {f"input_sentence_{n}": f"Sentence {n}. " for n in range(1, 5)}
    hub |= {"sentence_quiz1": "Bad.", "sentence_quiz2": "Good.", "answer_right_ending": 2}
    original = {f"InputSentence{n}": f"Sentence {n}." for n in range(1, 5)}
    original |= {"RandomFifthSentenceQuiz1": "Bad.", "RandomFifthSentenceQuiz2": "Good."}
    original |= {"AnswerRightEnding": "2"}
    item = parsed("storycloze", **hub)
    assert item == parsed("storycloze", **original)
    assert item.solved == "Sentence 1. Sentence 2. Sentence 3. Sentence 4. Good."


def test_copa_and_piqa() -> None:
    record = {"choice1": "It rained.", "choice2": "I sang.", "label": 0}
    item = parsed("copa", premise="The road was wet.", question="cause", **record)
    assert item.solved == "The road was wet because it rained."
    item = parsed("piqa", goal="Open a jar", sol1="turn the lid ", sol2="kick it", label=1)
    assert item.solved == "Question: Open a jar\nAnswer: kick it"


@pytest.mark.parametrize(
    ("suite", "record", "message"),
    [
        ("winogrande", {"sentence": "No blank.", "option1": "a", "option2": "b"}, "no blank"),
        ("wsc273", {"sentence": "No blank."}, "MASK"),
        ("winograd", HUB | {"pronoun_loc": 3}, "does not stand"),
        ("hellaswag", {"query": "a", "choices": ["b", "c"], "label": -1}, "not one of the 2"),
        ("hellaswag", {"query": "a", "choices": ["b", " "], "label": 0}, "nothing to score"),
    ],
)
def test_records_that_make_no_question(suite: str, record: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SUITES[suite].parse(record)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real questions in {SHARED}")
@pytest.mark.parametrize(
    ("suite", "count", "options"),
    [
        ("hellaswag", 1000, 4), ("winogrande", 1267, 2), ("wsc273", 273, 2),
        ("copa", 100, 2), ("piqa", 1838, 2),
    ],
)  # fmt: skip
def test_real_questions(suite: str, count: int, options: int) -> None:
    questions = load_questions(SUITES[suite], str(SHARED))
    assert len(questions.items) == count
    assert questions.pool is None
    for item in questions.items:
        assert len(item.contexts) == options
        assert all(text == text.strip() for text in item.contexts)
        assert not any(text.startswith("  ") or text[-1] == " " for text in item.endings)
        assert "[MASK]" not in item.solved
        assert len(set(item.endings)) == 1 or not SUITES[suite].partial
    answers = [item.answer for item in questions.items]
    if suite == "wsc273":  # this file has the right option first, so ties must not go to the first
        assert set(answers) == {0}
    else:
        assert all(abs(answers.count(n) / count - 1 / options) < 0.08 for n in range(options))
