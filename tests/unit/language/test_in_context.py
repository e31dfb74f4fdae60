"""Suites' records become questions, asked after solved ones: what is fed, that right is right."""

import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from magneto.config import ConfigError
from magneto.data.tokenizer import ByteTokenizer, load_tokenizer, train_bpe
from magneto.language.config import LanguageModelConfig
from magneto.language.in_context import (
    Accuracy,
    OptionTokens,
    SuiteScore,
    _batches,
    answer_credit,
    context_length,
    draw_demonstrations,
    encode_items,
    evaluate_suite,
    log_likelihoods,
    mean_accuracy,
    prepend_demonstrations,
    score_lines,
)
from magneto.language.models import LanguageModel
from magneto.language.suites import SUITES, Item, SuiteQuestions, load_questions
from tests.shards import write_lines
from tests.unit.nn.grids import shaken

HUB = {"text": "The dog chased the cat until it  got tired.", "pronoun": "it", "pronoun_loc": 29,
       "options": ["The dog", "The cat"], "label": 0}  # fmt: skip
SHE = {"text": "Ann met Eve! She smiled.", "pronoun": "She", "pronoun_loc": 13, "label": 1,
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
ASKED = {"query": "A man sits. He", "choices": [" stands up.", "flies."], "label": 1}
# Of each shape of a suite: contexts and endings of both options, and which is right.
READ: list[tuple[str, dict, tuple[str, str], tuple[str, str], int]] = [
    ("hellaswag",  # its original shape
     {"activity_label": "Baking bread", "ctx_a": "[header] How to bake [title] Mix.",
      "ctx_b": "the dough", "endings": ["[step] rises slowly.", "sings."], "label": "0"},
     ("Baking bread: How to bake. Mix. The dough",) * 2, (" rises slowly.", " sings."), 0),
    ("hellaswag", ASKED, ("A man sits. He",) * 2, (" stands up.", " flies."), 1),
    ("winogrande",
     {"sentence": "The cup missed the shelf since _ was narrow.", "option1": "cup",
      "option2": "shelf", "answer": "2"},
     ("The cup missed the shelf since cup", "The cup missed the shelf since shelf"),
     (" was narrow.",) * 2, 1),
    ("winograd", HUB,
     ("The dog chased the cat until the dog", "The dog chased the cat until the cat"),
     (" got tired.",) * 2, 0),
    ("winograd", SHE, ("Ann met Eve! The girl", "Ann met Eve! Eve"), (" smiled.",) * 2, 1),
    ("winograd", HIS, ("Bob lost to Tim in Bob's", "Bob lost to Tim in Tim's"),
     (" house.",) * 2, 0),
    ("storycloze", STORY, ("So. So. So. So.",) * 2, (" Yes, sir.", " No."), 0),
    ("storycloze", HUB_STORY, ("So. So. So. So.",) * 2, (" Bad.", " Good."), 1),
    ("copa", COPA | {"question": "cause", "label": 0},
     ("The road was wet because",) * 2, (" it rained.", " i sang."), 0),
    ("copa", COPA | {"question": "effect", "label": 1},
     ("The road was wet therefore",) * 2, (" it rained.", " i sang."), 1),
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


GRANDE = {"sentence": "The cup missed _ again.", "option1": "a", "option2": "b", "answer": "1"}


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
    write(tmp_path / "winogrande_1.1" / "test.jsonl", GRANDE, GRANDE)  # whose answers are unknown
    write(tmp_path / "other" / "wsc285.jsonl", HUB, SHE)
    write(tmp_path / "other" / "wsc273.jsonl", HIS)
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
    next(tmp_path.glob("*_test__*")).unlink()
    found = load("storycloze", tmp_path)
    assert (len(found.items), found.pool) == (1, None), "a question would be its own demonstration"


def test_splits_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets").disable_progress_bars()
    for split, count in (("train", 2), ("validation", 1), ("test", 3)):
        write(tmp_path / f"{split}.jsonl", *[GRANDE] * count)
    source = f"hf:{tmp_path}"
    for given, asked in ((source, 1), (f"{source}::test", 3)):
        found = load_questions(SUITES["winogrande"], given)
        assert (len(found.items), len(found.pool or [])) == (asked, 2)
        assert found.pool_source.endswith(", train")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path / "winogrande_dev.jsonl", GRANDE)
    message = r"no questions of winograd in .*\. Give a file such as .*wsc285\.jsonl"
    with pytest.raises(ConfigError, match=message):
        load("winograd", tmp_path)
    with pytest.raises(ConfigError, match=r"no file or folder .*did you mean .*dev\.jsonl"):
        load("winogrande", tmp_path / "winogrande_de.jsonl")
    with pytest.raises(ConfigError, match="storycloze on the hub"):
        load_questions(SUITES["storycloze"], None)
    with pytest.raises(ValueError, match="no records"):
        load("winogrande", write(tmp_path / "a.jsonl"))
    for folder in ("winogrande_xs", "winogrande"):
        write(tmp_path / folder / "val.jsonl", GRANDE)
    with pytest.raises(ConfigError, match="two validation files for winogrande"):
        load("winogrande", tmp_path)


@pytest.mark.parametrize(
    ("suite", "good", "bad", "message"),
    [
        ("winogrande", GRANDE, GRANDE | {"answer": ""}, "record 2"),
        ("winogrande", GRANDE, GRANDE | {"sentence": "Not one."}, "record 2: .* has no blank"),
        ("winograd", HUB, HUB | {"pronoun_loc": 3}, "record 2: .* no 'it' at pronoun_loc 3"),
        ("hellaswag", ASKED, ASKED | {"label": -1}, "record 2: .* not one of the 2"),
        ("hellaswag", ASKED, ASKED | {"label": 2}, "record 2: .* not one of the 2"),
        ("hellaswag", ASKED, ASKED | {"choices": ["b", " "]}, "record 2: .*no text to score"),
        ("winogrande", GRANDE, {"sentence": "a _ b"}, "record 2: no field 'option1'.*option2"),
        ("winogrande", GRANDE, "{", "line 2: not JSON"),
        ("winogrande", GRANDE, "[" * 200_000, "line 2: nested too deeply"),
    ],
)
def test_a_bad_record_is_never_left_out(
    tmp_path: Path, suite: str, good: dict, bad: dict | str, message: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [good, bad])
    with pytest.raises(ValueError, match=message):
        load(suite, path)


BYTES = ByteTokenizer()
NAMES = ["Ann", "Bob", "Cy", "Dee", "Eve", "Flo", "Gus", "Hal"]


def word_question(number: int) -> Item:
    contexts = (f"{NAMES[number]} likes",) * 2
    return Item(contexts, (" tea.", " coal, ash and soot."), number % 2)


def suite(pool: list[Item] | None = None) -> SuiteQuestions:
    items = [word_question(n) for n in range(len(NAMES))]
    return SuiteQuestions(SUITES["hellaswag"], items, pool, "questions", "pool")


def model(**changes) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"width": 32, "heads": 4, "ffn_width": 48, "layers": 2, "vocab_size": 260}
    return shaken(LanguageModel(LanguageModelConfig(**{**sizes, **changes})))


def score(language_model: LanguageModel, num_fewshot: int = 0, **changes) -> SuiteScore:
    given = {"questions": suite(), "seeds": (1, 2, 3), "length": 200, **changes}
    return evaluate_suite(language_model, BYTES, num_fewshot=num_fewshot, **given)


def test_demonstrations_are_fed_and_counted() -> None:
    made = model()
    none, found = score(made), score(made, num_fewshot=2)
    assert (none.chance, none.items, none.seeds) == (0.5, 8, (1,))
    assert (found.demonstrations, found.truncated, found.seeds) == (2.0, 0.0, (1, 2, 3))
    assert len(found.by_sum.by_seed) == 3 and score(made, num_fewshot=2) == found
    each = [score(made, num_fewshot=2, seeds=(seed,)) for seed in (1, 2, 3)]
    assert found.by_sum.by_seed == tuple(alone.by_sum.mean for alone in each) != (0, 0, 0)
    assert found.by_mean.by_seed == tuple(alone.by_mean.mean for alone in each) != (0, 0, 0)
    short = score(made, num_fewshot=4, length=60)
    assert 0 < short.demonstrations < 4 and short.truncated == 0
    assert score(made, num_fewshot=1, length=25).truncated == 1.0
    with pytest.raises(ValueError, match="--num-fewshot 8: only 7 demonstrations"):
        score(made, num_fewshot=8)
    few = score(made, num_fewshot=1, questions=suite(pool=[word_question(0)]))
    assert few.demonstrations == 1
    torch.nn.init.constant_(made.head.weight, torch.nan)
    with pytest.raises(ValueError, match="log-likelihood of question 1 is not finite"):
        score(made)


def test_a_question_is_shown_all_others_but_not_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a separate pool are all shown."""
    shown = []

    def fed(each: OptionTokens, demonstrations: list[list[int]], *rest: int) -> Any:
        shown.append(sorted(demonstrations))
        return prepend_demonstrations(each, demonstrations, *rest)

    monkeypatch.setattr("magneto.language.in_context.prepend_demonstrations", fed)
    made, items = model(), suite().items
    solved = BYTES.encode([item.solved for item in items])
    score(made, num_fewshot=7, seeds=(1, 2))
    assert shown == [sorted(s for s in solved if s != own) for own in solved] * 2
    shown.clear()
    score(made, num_fewshot=8, seeds=(1,), questions=suite(pool=items))
    assert shown == [sorted(solved)] * 8
    for limit in (None, 3):  # which changes no demonstration
        score(made, num_fewshot=2, seeds=(1,), limit=limit)
    assert len(shown) == 19 and shown[8:11] == shown[16:]


def test_draws_depend_on_seed_and_question_alone() -> None:
    for question in range(20):
        drawn = draw_demonstrations(20, 4, 1, question, question)
        assert len(set(drawn)) == 4
        assert question not in drawn
        assert all(0 <= number < 20 for number in drawn)
        assert drawn == draw_demonstrations(20, 4, 1, question, question)
    for place in (2, 3):  # the seed, then the question
        given = [[20, 4, 3, 3, None] for _ in range(10)]
        for number, values in enumerate(given):
            values[place] = number
        assert len({tuple(draw_demonstrations(*values)) for values in given}) == 10
    everyone = {number for seed in range(200) for number in draw_demonstrations(20, 4, seed, 5, 5)}
    assert everyone == set(range(20)) - {5}


SHOWN = [256, *b"One.", 256, *b"Two.", 256]
FITS = [(100, 2, True, SHOWN), (26, 2, True, SHOWN), (25, 1, True, SHOWN[5:]),
        (16, 0, True, [256]), (15, 0, False, []), (3, 0, False, [])]  # fmt: skip


@pytest.mark.parametrize(("length", "fitted", "whole", "begin"), FITS)
def test_what_the_model_is_fed(length: int, fitted: int, whole: bool, begin: list[int]) -> None:
    item = Item(("Ann saw Bob", "Ann saw Eve"), (" run.", " run."), 0)
    (encoded,), shown = encode_items([item], BYTES), BYTES.encode(["One.", "Two."])
    texts, *counts = prepend_demonstrations(encoded, shown, BYTES.end, length)
    assert counts == [fitted, whole]
    # The last token is scored and not fed.
    assert texts.sequences[0] == (begin + list(b"Ann saw Bob run."))[-length - 1 :]
    assert texts.scored == (min(5, length),) * 2


def test_a_question_whose_options_have_no_common_context_is_a_guess() -> None:
    long, blank = Item(("Q: a",) * 2, (" x.", " " + "y" * 40), 0), "The _ is so very tall."
    named = Item(tuple(blank[:4] + name for name in ("x", "y" * 30)), (blank[5:],) * 2, 1)
    for item in (long, named):
        given = SuiteQuestions(SUITES["winogrande"], [item], None, "questions", "")
        found = score(model(), questions=given, length=25)
        assert (found.by_sum.mean, found.by_mean.mean, found.guessed) == (0.5, 0.5, 1.0)


def test_a_token_across_the_border_is_scored(tmp_path: Path) -> None:
    train_bpe(["ab cd. ab cd."] * 20, 300, tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path)
    encoded = encode_items([Item(("x a", "x cd"), ("b.", "."), 0)], tokenizer)[0]
    pieces = tokenizer.pieces()
    assert [pieces[token] for token in encoded.sequences[0]] == ["x", " ab", "."]
    assert [pieces[token] for token in tokenizer.encode(["x a"])[0]] == ["x", " ", "a"]
    assert encoded.scored == (2, 1)


def test_scores_by_hand() -> None:
    """Seeds that agree do not make questions more; ties are shared."""
    right = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=bool)
    found = mean_accuracy(right)
    assert found.mean == pytest.approx(0.5)
    assert found.by_seed == pytest.approx((0.5, 0.25, 0.75))
    assert found.seed_error == pytest.approx(0.25 / 3**0.5)
    # By item: 1, 2/3, 1/3, 0; their variance is 5/27.
    assert found.item_error == pytest.approx((5 / 27 / 4) ** 0.5)
    one, four = (mean_accuracy(right[:1].repeat(count, axis=0)) for count in (1, 4))
    assert one.seed_error is None and one.item_error == pytest.approx(four.item_error)
    assert mean_accuracy(right[:, :1]).item_error is None
    assert [answer_credit([-2.0, -1.0, -3.0], answer) for answer in range(3)] == [0, 1, 0]
    assert [answer_credit([-1.0, -1.0, -3.0], answer) for answer in range(3)] == [0.5, 0.5, 0]


def questions() -> list[OptionTokens]:
    """Shared contexts, shared endings, nothing shared, one option, several numbers of options."""
    chance = random.Random(1)

    def some(length: int) -> list[int]:
        return [chance.randrange(50) for _ in range(length)]

    made = []
    for length in (1, 2, 9, 17, 17, 30):
        context = some(length)
        endings = [some(n) for n in (1, 3, 7, 2)][: 2 + length % 3]
        made.append(OptionTokens(tuple(context + e for e in endings), tuple(map(len, endings))))
        ending = some(4)
        options = [context + some(n) + ending for n in (1, 2)]
        made.append(OptionTokens(tuple(options), (4, 4)))
    made.append(OptionTokens(([1, 2, 3], [4, 5, 6, 7]), (1, 2)))
    made.append(OptionTokens((some(6),), (5,)))
    return made


def alone(language_model: LanguageModel, texts: OptionTokens) -> list[float]:
    """Read each sequence by itself, without cache, padding or batches."""
    found = []
    for sequence, scored in zip(texts.sequences, texts.scored, strict=True):
        logits = language_model(torch.tensor([sequence]))[0].double().log_softmax(-1)
        places = range(len(sequence) - scored, len(sequence))
        found.append(sum(logits[place - 1, sequence[place]].item() for place in places))
    return found


@torch.no_grad()
def check(language_model: LanguageModel, **how) -> None:
    asked = questions()
    found = log_likelihoods(language_model, asked, **how)
    for texts, values in zip(asked, found, strict=True):
        assert values == pytest.approx(alone(language_model, texts), abs=2e-4)


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned", "rotary", "t5"])
def test_equal_to_reading_each_alone(positions: str) -> None:
    check(model(positions=positions))


def test_neither_batches_nor_chunks_of_logits_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magneto.functional.cross_entropy.CHUNK", 3)
    for tokens in (1, 40, 100):
        check(model(positions="sinusoidal"), tokens=tokens)
        asked = questions()
        for batch in _batches(asked, tokens):
            rests = [rest for number in batch for rest in asked[number].rests]
            width = max(asked[number].shared for number in batch) + max(rests)
            assert len(batch) == 1 or len(rests) * width <= tokens


@pytest.mark.parametrize("scored", [0, 3])
def test_an_option_has_scored_tokens_and_one_before_them(scored: int) -> None:
    with pytest.raises(ValueError, match="needs context tokens, followed by tokens to score"):
        log_likelihoods(model(), [OptionTokens(([1, 2, 3], [1, 2, 4]), (2, scored))])


def test_what_is_shared_is_read_once() -> None:
    language_model, read = model(), []
    language_model.embedding.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    context, endings = list(range(40)), [[41, 42], [43, 44], [45, 46], [47, 48]]
    texts = [OptionTokens(tuple(context + ending for ending in endings), (2,) * 4)]
    log_likelihoods(language_model, texts)
    # All but the last token of the context once, then for each option that one and the next.
    assert sum(tokens.numel() for tokens in read) == 39 + 4 * 2


@pytest.mark.parametrize(("positions", "length"), [("learned", 64), ("rope", 128)])
def test_prompts_are_at_most_as_long_as_in_training(positions: str, length: int) -> None:
    config = SimpleNamespace(positions=positions, max_length=64)
    assert context_length(config, 128, None) == length and context_length(config, 128, 64) == 64
    for asked in (1, 65)[: 1 + (positions == "learned")]:
        with pytest.raises(ConfigError, match=f"--max-length {asked}: must be at least 2"):
            context_length(config, 128, asked)


def test_options_are_compared_by_sums_and_by_means() -> None:
    made, endings = model(), (" tea.", " coal, ash and soot.")
    items = [Item((f"{name} likes",) * 2, endings, 0) for name in NAMES]
    found = score(made, questions=SuiteQuestions(SUITES["hellaswag"], items, None, "", ""))
    fed = [prepend_demonstrations(e, [], BYTES.end, 200)[0] for e in encode_items(items, BYTES)]
    with torch.no_grad():
        sums = np.array([alone(made, texts) for texts in fed])
    for accuracy, values in ((found.by_sum, sums), (found.by_mean, sums / [5, 20])):
        assert accuracy.mean == np.mean(values[:, 0] > values[:, 1])
    assert found.by_sum.mean != found.by_mean.mean


def test_printed_scores_have_both_errors_and_truncation_alone_is_told() -> None:
    """A suite with a blank is compared by sums."""
    sums, means = Accuracy(0.5, (0.5, 0.5), 0.01, 0.02), Accuracy(0.75, (0.75,), None, 0.04)
    scores = [
        SuiteScore("s", 2, (1, 2), 9, sums, means, partial, 0.25, 2.0, truncated)
        for partial, truncated in ((True, 0.0), (False, 0.1))
    ]
    first, second = (score_lines(64, [], [score]) for score in scores)
    assert first[1].split() == ["s", "2", "50.0", "2.0", "1.0", "25.0", "50.0", "75.0", "9"]
    assert second[1].split()[2:5] == ["75.0", "4.0", "-"]
    assert len(second) == len(first) + 1 and "10.0%" in second[-1]
