"""Questions after solved ones: what is drawn, what the model is fed, and that right is right."""

import random
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto import PLACEMENTS
from magneto.data.tokenizer import ByteTokenizer, load_tokenizer, train_bpe
from magneto.language.config import LanguageModelConfig
from magneto.language.in_context import (
    OptionTokens,
    SuiteScore,
    answer_credit,
    draw_demonstrations,
    encode_items,
    evaluate_suite,
    log_likelihoods,
    mean_accuracy,
    prepend_demonstrations,
)
from magneto.language.models import LanguageModel
from magneto.language.suites import SUITES, Item, SuiteQuestions

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
    values = {"width": 32, "heads": 4, "ffn_width": 64, "layers": 2, "vocab_size": 260, **changes}
    return LanguageModel(LanguageModelConfig(**values, positions="rotary")).eval()


def score(language_model: LanguageModel, num_fewshot: int = 0, **changes) -> SuiteScore:
    given = {"questions": suite(), "seeds": (1, 2, 3), "length": 200, **changes}
    return evaluate_suite(language_model, BYTES, num_fewshot=num_fewshot, **given)


def test_demonstrations_are_fed_and_counted() -> None:
    made = model()
    none, found = score(made), score(made, num_fewshot=2)
    assert (none.chance, none.items, none.seeds) == (0.5, 8, (1,))
    assert (found.demonstrations, found.truncated, found.seeds) == (2.0, 0.0, (1, 2, 3))
    assert len(found.by_sum.by_seed) == 3 and score(made, num_fewshot=2) == found
    short = score(made, num_fewshot=4, length=60)
    assert 0 < short.demonstrations < 4 and short.truncated == 0
    assert score(made, num_fewshot=1, length=25).truncated == 1.0


def test_not_enough_demonstrations() -> None:
    with pytest.raises(ValueError, match="--num-fewshot 8: only 7 demonstrations"):
        score(model(), num_fewshot=8)
    few = score(model(), num_fewshot=1, questions=suite(pool=[word_question(0)]))
    assert few.demonstrations == 1


def test_draws_depend_on_seed_and_question_alone() -> None:
    for question in range(20):
        drawn = draw_demonstrations(20, 4, 1, question, question)
        assert len(set(drawn)) == 4
        assert question not in drawn
        assert all(0 <= number < 20 for number in drawn)
        assert drawn == draw_demonstrations(20, 4, 1, question, question)
    assert len({tuple(draw_demonstrations(20, 4, seed, 3, None)) for seed in range(10)}) == 10
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


POSITIONS = ["none", "sinusoidal", "learned", "rotary", "t5"]


def shaken(**changes) -> LanguageModel:
    torch.manual_seed(0)
    values = {"width": 32, "heads": 4, "ffn_width": 48, "layers": 2, "vocab_size": 50, **changes}
    made = LanguageModel(LanguageModelConfig(**values)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


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


@pytest.mark.parametrize(("placement", "positions"), [*zip(PLACEMENTS, cycle(POSITIONS))])
def test_equal_to_reading_each_alone(placement: str, positions: str) -> None:
    check(shaken(placement=placement, positions=positions))


def test_neither_batches_nor_chunks_of_logits_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magneto.language.in_context.LOGITS", 3)
    for tokens in (1, 40, 100):
        check(shaken(positions="sinusoidal"), tokens=tokens)


def test_what_is_shared_is_read_once() -> None:
    language_model, read = shaken(), []
    language_model.embedding.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    context, endings = list(range(40)), [[41, 42], [43, 44], [45, 46], [47, 48]]
    texts = [OptionTokens(tuple(context + ending for ending in endings), (2,) * 4)]
    log_likelihoods(language_model, texts)
    # All but the last token of the context once, then for each option that one and the next.
    assert sum(tokens.numel() for tokens in read) == 39 + 4 * 2
