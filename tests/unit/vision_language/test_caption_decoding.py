"""Captions by greedy and by beam search, against plain loops over all captions there are."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from magneto.config import ConfigError
from magneto.data.stream import named_tensors
from magneto.data.tokenizer import ByteTokenizer
from magneto.vision_language.caption_decoding import (
    CaptionSearch,
    CaptionWriter,
    even_samples,
    left_to_right,
)
from magneto.vision_language.config import ImageCaptionerConfig
from magneto.vision_language.model import ImageCaptioner
from magneto.vision_language.samples import join_samples

SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "vocab_size": 6, "max_length": 5}  # fmt: skip


class SmallTokenizer(ByteTokenizer):
    """Two words, and the special tokens."""

    vocab_size, end, begin, pad = 6, 2, 3, 4
    mask: int | None = 5


def writer() -> CaptionWriter:
    torch.manual_seed(1)
    config = ImageCaptionerConfig(**SIZES)
    model = ImageCaptioner(config).eval()
    with torch.no_grad():
        model.word_head.weight.mul_(40)
    return CaptionWriter(model, config, SmallTokenizer())


def log_probability(made: CaptionWriter, image: Tensor, tokens: list[int]) -> float:
    """Add up the words' log-probabilities, each asked for by itself."""
    total, written = 0.0, [made.tokenizer.begin]
    for token in tokens:
        total += made.next_words(image, torch.tensor([written]))[0, token].item()
        written.append(token)
    return total


def all_captions() -> list[list[int]]:
    """Of up to four tokens; the last of those that have no end is of the greatest length."""
    found = [[*words, 2] for length in range(4) for words in product((0, 1), repeat=length)]
    return found + [list(words) for words in product((0, 1), repeat=4)]


@torch.no_grad()
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_many_beams_find_the_best_of_all(length_penalty: float) -> None:
    made = writer()
    for image in torch.randn(2, 1, 3, 8, 8):
        scores = {
            tuple(tokens): log_probability(made, image, tokens) / len(tokens) ** length_penalty
            for tokens in all_captions()
        }
        best = max(scores, key=scores.__getitem__)
        (found,) = made.search(image, CaptionSearch(64, length_penalty))
        assert tuple(found) == tuple(token for token in best if token != 2)


@torch.no_grad()
def test_one_beam_is_greedy_and_images_do_not_mix() -> None:
    made, images = writer(), torch.randn(4, 3, 8, 8)
    greedy = made.greedy(images)
    assert greedy.shape == (4, 4) and set(greedy.flatten().tolist()) <= {0, 1, 2}
    for image, tokens in zip(images, greedy.tolist(), strict=True):
        written: list[int] = []
        while len(written) < 4 and 2 not in written:
            before = torch.tensor([[3, *written]])
            written.append(int(made.next_words(image[None], before).argmax()))
        assert tokens[: len(written)] == written
        (found,) = made.search(image[None], CaptionSearch(1, 0.0))
        assert found == [token for token in written if token != 2]


@torch.no_grad()
def test_special_tokens_are_in_no_caption() -> None:
    scores = writer().next_words(torch.randn(1, 3, 8, 8), torch.tensor([[3]]))
    assert scores[0, 3:].eq(-torch.inf).all() and scores[0, :3].exp().sum() == pytest.approx(1.0)


def test_even_samples_are_those_that_a_loader_makes() -> None:
    tokens = torch.randint(0, 6, (3, 4))
    found = even_samples(tokens, 5)
    made = join_samples(5, paired=list(tokens.numpy()))
    expected = named_tensors(replace(made, packing=left_to_right(made.packing, 5)))
    found = named_tensors(found)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_impossible_beams() -> None:
    with pytest.raises(ConfigError, match="beams must be 1 or more"):
        CaptionSearch(0)
