"""Where texts and images of a batch begin."""

import numpy as np
import pytest
import torch

from magneto.data.batch import to_device
from magneto.data.tokenizer import ByteTokenizer
from magneto.vision_language.samples import first_tokens, frame_text, join_samples


def test_texts_one_after_another() -> None:
    samples = join_samples(5, 2, [np.array([1, 7, 2]), np.array([1, 2])], [np.array([1, 8, 9, 2])])
    assert samples.token_ids.tolist() == [1, 7, 2, 1, 2, 1, 8, 9, 2]
    assert samples.token_positions.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert samples.image_starts.tolist() == [0, 5, 10, 15]
    assert samples.text_starts.tolist() == [0, 3, 5]
    packing = samples.packing
    assert (packing.rows, packing.length, packing.vision_alone) == (5, 8, 10)
    assert packing.language_paired == 5
    assert samples.token_ids.dtype == torch.int64


def test_nothing_of_one_kind() -> None:
    images = join_samples(5, 2)
    assert images.token_ids.shape == (0,) and images.text_starts.shape == (0,)
    assert join_samples(5, alone=[np.array([1, 2])]).image_starts.shape == (0,)
    assert first_tokens([]).dtype == torch.int64
    with pytest.raises(ValueError, match="no tokens"):
        join_samples(5, 0, [np.zeros(0, np.int64)])


def test_a_fixed_length_and_moving() -> None:
    samples = join_samples(5, 0, [np.array([1, 2])], length=9)
    assert samples.packing.length == 9
    moved = to_device(samples, torch.device("meta"))
    assert moved.packing.vision_place.device.type == "meta" and moved.packing.rows == 1


def test_framing() -> None:
    tokenizer = ByteTokenizer()
    assert frame_text([65, 66], tokenizer, 8).tolist() == [257, 65, 66, 256]
    assert frame_text(range(10), tokenizer, 5).tolist() == [257, 0, 1, 2, 256]
