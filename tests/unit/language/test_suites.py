"""Suites' records become questions: every shape, found by name and split, mistakes in one line."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.language.suites import SUITES, Item, SuiteQuestions, load_questions

HUB = {"text": "The dog chased the cat until it  got tired.", "pronoun": "it", "pronoun_loc": 29,
       "options": ["The dog", "The cat"], "label": 0}  # fmt: skip
SHE = {"text": "Ann met Eve. She smiled.", "pronoun": "She", "pronoun_loc": 13, "label": 1,
       "options": ["The girl", "Eve"]}  # fmt: skip
HIS = {"text": "Bob lost to Tim in his house.", "pronoun": "his", "pronoun_loc": 19, "label": 0,
       "options": ["Bob", "Tim"]}  # fmt: skip
STORY = {f"InputSentence{n}": "So." for n in range(1, 5)} | {
    "RandomFifthSentenceQuiz1": "Yes, sir.", "RandomFifthSentenceQuiz2": "No.",
    "AnswerRightEnding": "1",
}  # fmt: skip
HUB_STORY = {f"input_sentence_{n}": "So. " for n in range(1, 5)} | {
    "sentence_quiz1": "Bad.", "sentence_quiz2": "Good.", "answer_right_ending": 2,
}  # fmt: skip
COPA = {"premise": "The road was wet.", "choice1": "It rained.", "choice2": "I sang."}
# Of each shape of a suite: contexts and endings of both options, and which is right.
READ: list[tuple[str, dict, tuple[str, str], tuple[str, str], int]] = [
    ("hellaswag",  # its original shape
     {"activity_label": "Baking bread", "ctx_a": "[header] How to bake [title] Mix.",
      "ctx_b": "the dough", "endings": ["[step] rises slowly.", "sings."], "label": "0"},
     ("Baking bread: How to bake. Mix. The dough",) * 2, (" rises slowly.", " sings."), 0),
    ("hellaswag",
     {"query": "A man sits. He", "choices": [" stands up.", "flies."], "label": 1},
     ("A man sits. He",) * 2, (" stands up.", " flies."), 1),
    ("winogrande",
     {"sentence": "The cup missed the shelf since _ was narrow.", "option1": "cup",
      "option2": "shelf", "answer": "2"},
     ("The cup missed the shelf since cup", "The cup missed the shelf since shelf"),
     (" was narrow.",) * 2, 1),
    ("winograd", HUB,
     ("The dog chased the cat until the dog", "The dog chased the cat until the cat"),
     (" got tired.",) * 2, 0),
    ("winograd", SHE, ("Ann met Eve. The girl", "Ann met Eve. Eve"), (" smiled.",) * 2, 1),
    ("winograd", HIS, ("Bob lost to Tim in Bob's", "Bob lost to Tim in Tim's"),
     (" house.",) * 2, 0),
    ("wsc273",
     {"sentence": "I see it through  [MASK] .", "choices": ["The wall", "The gap"],
      "answer": "The gap"},
     ("I see it through the wall", "I see it through the gap"), (".",) * 2, 1),
    ("wsc273",
     {"sentence": "Look.  [MASK]  is wide.", "choices": ["The wall", "The gap"],
      "answer": "The gap"},
     ("Look. The wall", "Look. The gap"), (" is wide.",) * 2, 1),
    ("storycloze", STORY, ("So. So. So. So.",) * 2, (" Yes, sir.", " No."), 0),
    ("storycloze", HUB_STORY, ("So. So. So. So.",) * 2, (" Bad.", " Good."), 1),
    ("copa", COPA | {"question": "cause", "label": 0},
     ("The road was wet because",) * 2, (" it rained.", " i sang."), 0),
    ("piqa", {"goal": "Open a jar", "sol1": "turn the lid ", "sol2": "kick it", "label": 1},
     ("Question: Open a jar\nAnswer:",) * 2, (" turn the lid", " kick it"), 1),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "record", "contexts", "endings", "answer"), READ)
def test_records_of_every_shape(
    suite: str, record: dict, contexts: tuple, endings: tuple, answer: int
) -> None:
    item = SUITES[suite].parse(record)
    assert item == Item(contexts, endings, answer)
    assert item.solved == contexts[answer] + endings[answer]


@pytest.mark.parametrize(
    ("suite", "record", "message"),
    [
        ("winogrande", {"sentence": "No blank.", "option1": "a", "option2": "b"}, "no blank"),
        ("wsc273", {"sentence": "No blank."}, "MASK"),
        ("winograd", HUB | {"pronoun_loc": 3}, "no 'it' at pronoun_loc 3"),
        ("hellaswag", {"query": "a", "choices": ["b", "c"], "label": -1}, "not one of the 2"),
        ("hellaswag", {"query": "a", "choices": ["b", " "], "label": 0}, "option is empty"),
    ],
)
def test_records_that_make_no_question(suite: str, record: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SUITES[suite].parse(record)


GRANDE = {"sentence": "The cup missed _ again.", "option1": "a", "option2": "b", "answer": "1"}
GRAD = {"sentence": "I saw [MASK] again.", "choices": ["Ann", "Eve"], "answer": "Eve"}


def write(path: Path, *records: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def load(suite: str, where: Path) -> SuiteQuestions:
    return load_questions(SUITES[suite], str(where))


def test_splits_are_told_from_names(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_1.1" / "train_xl.jsonl", *[GRANDE] * 3)
    write(tmp_path / "winogrande_1.1" / "dev.jsonl.gz", GRANDE)
    write(tmp_path / "other" / "wsc285.jsonl", GRAD, GRAD)
    write(tmp_path / "other" / "wsc273.jsonl", GRAD)
    found = load("winogrande", tmp_path)
    assert (len(found.items), len(found.pool or [])) == (1, 3)
    assert found.source.endswith("dev.jsonl.gz")
    assert found.pool_source.endswith("train_xl.jsonl")
    found = load("winograd", tmp_path)
    assert (len(found.items), found.pool) == (2, None)
    assert found.pool_source == "the other questions"
    assert len(load("wsc273", tmp_path).items) == 1


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_storycloze_is_asked_on_test_and_shown_from_validation(tmp_path: Path, ending: str) -> None:
    mark = "," if ending == ".csv" else "\t"
    quote = '"' * (ending == ".csv")  # in a .tsv quotes are text
    row = mark.join(f"{quote}{value}{quote}" for value in STORY.values())
    for split, count in (("val", 1), ("test", 2)):
        name = f"cloze_test_{split}__spring2016 - cloze_test_ALL_{split}{ending}"
        (tmp_path / name).write_text(mark.join(STORY) + "\n" + f"{row}\n" * count)
    found = load("storycloze", tmp_path)
    assert (len(found.items), len(found.pool or [])) == (2, 1)
    assert found.items[0].solved == "So. So. So. So. Yes, sir."


def test_two_candidates_are_a_question_to_the_user(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_dev.jsonl", GRANDE)
    write(tmp_path / "winogrande_xs" / "val.jsonl", GRANDE)
    write(tmp_path / "winogrande" / "val.jsonl", GRANDE)
    with pytest.raises(ConfigError, match="two validation files for winogrande"):
        load("winogrande", tmp_path)


def test_what_is_missing_is_named_and_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_dev.jsonl", GRANDE)
    with pytest.raises(ConfigError, match=r"winograd in .*has winogrande.*wsc285\.jsonl"):
        load("winograd", tmp_path)
    with pytest.raises(ConfigError, match=r"no file or folder .*did you mean .*dev\.jsonl"):
        load("winogrande", tmp_path / "winogrande_de.jsonl")
    with pytest.raises(ConfigError, match="storycloze on the hub"):
        load_questions(SUITES["storycloze"], None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (json.dumps(GRANDE | {"answer": ""}), "record 2"),
        (json.dumps({"sentence": "a _ b"}), "record 2: no field 'option1'"),
        ("{", "line 2: not JSON"),
        ("3", "line 2: not a JSON object"),
        ("[" * 200_000, "line 2: nested too deeply"),
    ],
)
def test_a_bad_record_is_never_left_out(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", GRANDE)
    path.write_text(path.read_text() + line)
    with pytest.raises(ValueError, match=message):
        load("winogrande", path)


def test_an_empty_file_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no records"):
        load("winogrande", write(tmp_path / "a.jsonl"))
