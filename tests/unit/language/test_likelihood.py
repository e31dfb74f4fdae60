"""Log-likelihoods of options: the same numbers as reading each one alone, in less work."""

import random

import pytest
import torch

from magneto import PLACEMENTS
from magneto.language.config import LanguageModelConfig
from magneto.language.in_context import Options, log_likelihoods
from magneto.language.models import LanguageModel

POSITIONS = ["none", "sinusoidal", "learned", "rotary", "t5"]


def model(**changes) -> LanguageModel:
    torch.manual_seed(0)
    values = {"width": 32, "heads": 4, "ffn_width": 48, "layers": 2, "vocab_size": 50, **changes}
    made = LanguageModel(LanguageModelConfig(**values)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def questions() -> list[Options]:
    """Shared contexts, shared endings, nothing shared, one option, several numbers of options."""
    chance = random.Random(1)

    def some(length: int) -> list[int]:
        return [chance.randrange(50) for _ in range(length)]

    made = []
    for length in (1, 2, 9, 17, 17, 30):
        context = some(length)
        endings = [some(n) for n in (1, 3, 7, 2)][: 2 + length % 3]
        made.append(Options(tuple(context + e for e in endings), tuple(map(len, endings))))
        ending = some(4)
        options = [context + some(n) + ending for n in (1, 2)]
        made.append(Options(tuple(options), (4, 4)))
    made.append(Options(([1, 2, 3], [4, 5, 6, 7]), (1, 2)))
    made.append(Options((some(6),), (5,)))
    return made


def alone(language_model: LanguageModel, texts: Options) -> list[float]:
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


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("share", [True, False])
def test_equal_to_reading_each_alone(positions: str, share: bool) -> None:
    check(model(positions=positions), share=share)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_for_every_placement(placement: str) -> None:
    check(model(placement=placement, positions="rotary"))


@pytest.mark.parametrize("tokens", [1, 40, 100])
def test_batches_do_not_matter(tokens: int) -> None:
    check(model(positions="sinusoidal"), tokens=tokens)


def test_logits_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magneto.language.in_context.LOGITS", 3)
    check(model())


def test_what_is_shared_is_read_once() -> None:
    language_model, read = model(), []
    language_model.embedding.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    context, endings = list(range(40)), [[41, 42], [43, 44], [45, 46], [47, 48]]
    texts = [Options(tuple(context + ending for ending in endings), (2,) * 4)]
    log_likelihoods(language_model, texts)
    # All but the last token of the context once, then for each option that one and the next.
    assert sum(tokens.numel() for tokens in read) == 39 + 4 * 2
    read.clear()
    log_likelihoods(language_model, texts, share=False)
    assert sum(tokens.numel() for tokens in read) == 4 * 41


@pytest.mark.parametrize(("sequence", "scored"), [([1, 2], 2), ([1, 2], 0), ([1], 1)])
def test_something_must_stand_before_what_is_scored(sequence: list[int], scored: int) -> None:
    with pytest.raises(ValueError, match="a token before"):
        log_likelihoods(model(), [Options((sequence,), (scored,))])
