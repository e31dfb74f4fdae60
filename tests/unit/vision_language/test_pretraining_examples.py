"""What is hidden in an example, and what a batch makes of examples."""

from typing import Any

import numpy as np
import torch

from magneto.data.tokenizer import ByteTokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masked_lm import Masking
from magneto.vision.decoding import BrokenImage, Pixels
from magneto.vision.images import images_of
from magneto.vision.targets import BlockMasking
from magneto.vision.transforms import CentreCrop, Reading
from magneto.vision_language.pretraining_examples import (
    ImageExamples,
    PairExamples,
    TextExamples,
    WordHiding,
    close_texts,
    fixed_examples,
    join_examples,
    readable,
)

TOKENIZER = ByteTokenizer()
READING = Reading(12)
TEXTS = close_texts(["ab", "abcdefghij", "klmnopqrstuvwxyz"], TOKENIZER)


def hiding(ratio: float) -> WordHiding:
    return WordHiding(Masking(MaskedTextDataConfig(tokenizer="bytes"), TOKENIZER), ratio)


def images(count: int = 3) -> ImageExamples:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 12, 12, 3), np.uint8)
    split = images_of(Pixels(pixels))
    return ImageExamples(split, CentreCrop(READING, 12), BlockMasking(3, 3, 0.4))


def pairs() -> PairExamples:
    return PairExamples(images(), TEXTS, TOKENIZER.begin, 12, hiding(0.5))


def test_a_share_of_the_words_is_hidden() -> None:
    row = np.array([TOKENIZER.begin, *range(20), TOKENIZER.end])
    for ratio, count in ((0.5, 10), (0.15, 3), (0.01, 1)):
        seen, targets = hiding(ratio)(row, np.random.default_rng(1))
        hidden = targets != IGNORED
        assert hidden.sum() == count and (targets[hidden] == row[hidden]).all()
        assert (seen[hidden] == TOKENIZER.mask).all() and (seen[~hidden] == row[~hidden]).all()
        assert not hidden[[0, -1]].any()
    _, targets = hiding(0.5)(row[[0, -1]], np.random.default_rng(1))
    assert (targets == IGNORED).all()


def test_texts_are_cut_from_all_of_them() -> None:
    made = TextExamples(TEXTS, TOKENIZER.begin, 8, hiding(0.2))
    assert len(made) == len(TEXTS.tokens) // 7 == 4
    rows = [made(number, np.random.default_rng(0)) for number in range(4)]
    restored = [np.where(r["targets"] != IGNORED, r["targets"], r["seen"]) for r in rows]
    assert all(row[0] == TOKENIZER.begin and len(row) == 8 for row in restored)
    assert np.array_equal(np.concatenate([row[1:] for row in restored]), TEXTS.tokens[:28])


def test_pairs_have_their_text_cut() -> None:
    for number, length in enumerate((4, 12, 12)):
        example = pairs()(number, np.random.default_rng(number))
        assert example["length"] == length and example["seen"].shape == (12,)
        asked = example["targets"] != IGNORED
        row = np.where(asked, example["targets"], example["seen"])[:length]
        assert row[0] == TOKENIZER.begin and row[-1] == TOKENIZER.end
        assert np.array_equal(row[1:-1], TEXTS.text(number)[: length - 2])
        assert asked.sum() == round(0.5 * (length - 2)) and len(example["patches"]) == 4


def test_a_batch_of_examples() -> None:
    text = TextExamples(TEXTS, TOKENIZER.begin, 8, hiding(0.2))
    makers = (images(), text, pairs())
    rows = [fixed_examples(make, np.arange(2), which) for which, make in enumerate(makers)]
    batch = join_examples(10, *rows)
    masked, given = batch["masked"], batch["masked"].samples
    assert batch["images"].shape == (4, 3, 12, 12)
    assert torch.equal(batch["images"][2:], rows[2]["images"])
    assert masked.alone_patches == 8 and masked.patches.shape == (16,)
    assert torch.equal(masked.hidden.flatten().nonzero()[:, 0], masked.patches.sort().values)
    assert masked.paired_words == 1 + 5 and len(batch["words"]) == 6 + 2
    assert given.packing.rows == 6 and given.token_ids.shape == (4 + 12 + 8 + 8,)
    assert (given.token_ids[masked.words] == TOKENIZER.mask).all()


def test_nothing_is_asked_of_an_image_that_can_not_be_read() -> None:
    made, draw = pairs(), np.random.default_rng(0)
    blank = made.blank(READING.blank, 1, draw)
    assert blank["blank"] and (blank["targets"] == IGNORED).all() and blank["length"] == 12
    assert blank["images"].shape == made(0, draw)["images"].shape
    told: list[int] = []

    def broken(index: int, error: BrokenImage) -> None:
        told.append(index)

    image = readable(made.images, made.images.blank, READING, 0, draw, broken)
    assert not image["blank"] and not told

    def cut_off(index: int, draw: np.random.Generator) -> dict[str, Any]:
        raise BrokenImage("is cut off")

    assert readable(cut_off, made.images.blank, READING, 3, draw, broken)["blank"] and told == [3]
    rows = [fixed_examples(images(), np.arange(1), 0),
            fixed_examples(TextExamples(TEXTS, 257, 8, hiding(0.2)), np.zeros(0, np.int64), 1),
            fixed_examples(lambda number, draw: made.blank(READING.blank, number, draw),
                           np.arange(2), 2)]  # fmt: skip
    batch = join_examples(10, *rows)
    assert batch["blank"].tolist() == [False, True, True] and len(batch["masked"].patches) == 4
    assert len(batch["words"]) == 0 and batch["masked"].samples.packing.rows == 3
