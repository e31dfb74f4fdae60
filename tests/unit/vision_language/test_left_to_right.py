"""What words see: the image and what is before them; and which are hidden."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from magneto.data.tokenizer import ByteTokenizer
from magneto.vision_language.caption_decoding import caption_hiding, left_to_right
from magneto.vision_language.config import ImageCaptionerConfig
from magneto.vision_language.model import ImageCaptioner
from magneto.vision_language.samples import Samples, join_samples

SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "vocab_size": 300, "max_length": 12}  # fmt: skip


def samples(*texts: list[int]) -> Samples:
    made = join_samples(5, paired=[np.array(text) for text in texts])
    return replace(made, packing=left_to_right(made.packing, 5))


@pytest.mark.parametrize("experts", ["decoupled", "shared_attention"])
def test_later_words_change_nothing_before_them(experts: Any) -> None:
    torch.manual_seed(0)
    model = ImageCaptioner(ImageCaptionerConfig(**SIZES, experts=experts)).eval()
    images = torch.randn(2, 3, 8, 8)

    def features(*texts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        given = samples(*texts)
        return model.encoder(images, given)

    vision, language = features([1, 2, 3, 4], [5, 6])
    other_vision, other = features([1, 2, 9, 8, 7, 7], [5, 6])
    torch.testing.assert_close(other_vision, vision)  # no image sees a word
    torch.testing.assert_close(other[:2], language[:2])
    torch.testing.assert_close(other[-2:], language[-2:])
    assert (other[2] - language[2]).abs().max() > 1e-3
    seen = model.encoder(images + 1, samples([1, 2], [5]))[1]
    assert (seen[0] - language[0]).abs().max() > 1e-3  # words see the image


def test_all_but_the_beginning_can_be_hidden() -> None:
    """As many as the ratio says, `</s>` among them; four fifths are masked, a tenth stays."""
    tokenizer = ByteTokenizer()
    hiding = caption_hiding(tokenizer, 0.7)
    row = np.array([tokenizer.begin, *range(65, 84), tokenizer.end])
    masked, kept, places = 0, 0, set()
    for number in range(200):
        seen, chosen = hiding(row, np.random.default_rng(number))
        assert len(chosen) == 14 and (np.diff(chosen) > 0).all()
        places |= set(chosen.tolist())
        assert (np.delete(seen, chosen) == np.delete(row, chosen)).all()
        masked += (seen[chosen] == tokenizer.mask).sum()
        kept += (seen[chosen] == row[chosen]).sum()
    assert places == set(range(1, 21))
    assert 0.77 < masked / 2800 < 0.83 and 0.07 < kept / 2800 < 0.13
    seen, chosen = hiding(row[[0, -1]], np.random.default_rng(0))
    assert chosen.tolist() == [1]
