"""Pictures of attention: what is dark, and that the weights are those of the words."""

import io

import numpy as np
import torch

from magneto.vision_language.attention_pictures import (
    WordAttention,
    attention_to_patches,
    darkened,
    draw_attention,
    plain,
    reading_layer,
    words_left_out,
)
from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.samples import join_samples


def test_what_is_not_looked_at_is_dark() -> None:
    image = np.full((4, 4, 3), 200, np.uint8)
    found = darkened(image, np.array([[0.4, 0.0], [0.2, 0.0]]))
    assert (found[:2, :2] == 200).all() and (found[:, 2:] == 24).all()
    assert (found[2:, :2] == 112).all()
    assert not darkened(image, np.zeros((2, 2)))[0, 0, 0] > 24


def test_attention_of_words_to_patches() -> None:
    """With what goes to words and to the class token it adds up to 1."""
    config = VisionLanguageConfig(
        width=16, layers=3, heads=2, ffn_width=16, image_size=8, patch_size=4, vocab_size=20
    )
    encoder = VisionLanguageEncoder(config).eval()
    tokens = [np.array([1, 5, 6, 2]), np.array([1, 7, 2])]
    samples = join_samples(config.image_tokens, paired=tokens)
    layer = reading_layer(config)
    assert layer == 1
    found = attention_to_patches(encoder, torch.randn(2, 3, 8, 8), samples, layer)
    assert found.shape == (2, 9, 2, 2)
    given = found.sum((2, 3))
    assert (given[0] > 0).all() and (given < 1).all()


def test_a_picture_of_two_texts() -> None:
    image, maps = np.zeros((8, 8, 3), np.uint8), np.ones((2, 2, 2))
    rows = [WordAttention(image, "how much $?", ["a", "$b$"], maps),
            WordAttention(image, "none", [], maps[:0])]  # fmt: skip
    assert draw_attention(rows).startswith(b"\x89PNG")
    assert plain("$") == r"\$"


def test_long_texts_have_further_lines() -> None:
    """No word is left out in silence, and no heading runs out of the picture."""
    from PIL import Image

    image, maps = np.full((8, 8, 3), 200, np.uint8), np.ones((30, 2, 2))

    def drawn(words: int, heading: str) -> np.ndarray:
        row = WordAttention(image, heading, ["word"] * words, maps[:words])
        assert bool(words_left_out([row])) == (words > 20)
        return np.asarray(Image.open(io.BytesIO(draw_attention([row]))).convert("L"))

    five, thirty = (drawn(count, "short") for count in (5, 30))
    assert five.shape == (160, 690) and thirty.shape == (550, 690)
    # Twenty words are four lines of panels, each as grey as the image.
    assert ((thirty == 200).mean(1) > 0.5).sum() / ((five == 200).mean(1) > 0.5).sum() == 4
    long = drawn(1, "a statement of very many words " * 12)
    assert long.shape[0] > five.shape[0] and (long[:, -2:] == 255).all()
