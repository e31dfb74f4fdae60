"""Packings of batches; that tokens find their places and come back, test_multiway.py proves."""

import pytest
import torch

from magneto.nn.multiway import Packing, check_order, pack

SIZES = ([3, 2, 4, 0], [0, 3, 1, 4])


def test_full_rows_have_no_mask() -> None:
    """So that attention can take its fastest kernel."""
    assert pack([2, 2], [3, 3]).mask().allowed is None
    assert pack([2, 2], [3, 3], length=6).attention_mask is not None
    assert pack([], []).rows == 0


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (([2, 2], [1, 0]), "sample 1 is out of order: images alone come first"),
        (([0, 2], [1, 1]), "sample 1 is out of order"),
        (([2, 0], [0, 0]), "sample 1 has 0 vision and 0 language tokens"),
        (([-1], [3]), "sample 0 has -1 vision"),
        (([5], [3]), "a sample of 8 tokens is longer than a row of 7"),
    ],
)
def test_impossible_batches(sizes: tuple[list[int], list[int]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pack(*sizes, length=7)
    with pytest.raises(ValueError, match="is longer than argument"):
        pack([1], [1, 2])
    check_order([(1, 0), (1, 1), (0, 1)])


def test_a_packing_goes_with_its_batch() -> None:
    """To a device, as the loop sends every batch."""
    from magneto.data.stream import to_device

    there = to_device({"packing": pack(*SIZES)}, torch.device("meta"))["packing"]
    assert isinstance(there, Packing) and there.vision_place.is_meta and there.rows == 4


def test_what_is_looked_at_of_a_batch() -> None:
    packing = pack([3, 2, 2, 0], [0, 3, 1, 4])
    assert packing.first_of_each_kind(1).tolist() == [0, 1, 3]
    assert packing.first_of_each_kind(2).tolist() == [0, 1, 1, 2, 3, 3]
    assert pack([0, 0], [2, 5]).first_of_each_kind(1).tolist() == [0]
    assert packing.real().sum(1).tolist() == [3, 5, 3, 4]
    vision, language = torch.arange(7.0)[:, None], torch.arange(8.0)[:, None]
    means = packing.means(vision, packing.vision_place)
    assert means.flatten().tolist() == [1, 1, 1, 3.5, 3.5, 5.5, 5.5]
    means = packing.means(language, packing.language_place)
    assert means.flatten().tolist() == [1, 1, 1, 3, 5.5, 5.5, 5.5, 5.5]
