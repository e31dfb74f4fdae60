"""Packed tokens find their places, and come back; gradients too."""

import pytest
import torch

from magneto.nn.multiway import Packing, check_order, from_rows, pack, places, to_rows

SIZES = ([3, 2, 4, 0], [0, 3, 1, 4])


def test_places_of_each_token() -> None:
    packing = pack(*SIZES)
    assert (packing.rows, packing.length) == (4, 5)
    assert packing.vision_place.tolist() == [0, 1, 2, 5, 6, 10, 11, 12, 13]
    assert packing.language_place.tolist() == [7, 8, 9, 14, 15, 16, 17, 18]
    assert (packing.vision_alone, packing.language_paired) == (3, 4)
    assert packing.attention_mask is not None
    assert packing.attention_mask.sum(1).tolist() == [3, 5, 5, 4]
    assert places(torch.tensor([2, 0, 1]), torch.tensor([1, 0, 2]), 4).tolist() == [1, 2, 10]


def test_full_rows_have_no_mask() -> None:
    """So that attention can take its fastest kernel."""
    assert pack([2, 2], [3, 3]).attention_mask is None
    assert pack([2, 2], [3, 3]).mask().allowed is None
    assert pack([2, 2], [3, 3], length=6).attention_mask is not None
    assert pack([], []).rows == 0


@pytest.mark.parametrize("length", [None, 7])
@pytest.mark.parametrize("sizes", [SIZES, ([3, 3], [0, 0]), ([0, 0], [2, 5]), ([2, 2], [3, 3])])
def test_there_and_back(sizes: tuple[list[int], list[int]], length: int | None) -> None:
    torch.manual_seed(0)
    packing = pack(*sizes, length)
    vision, language = (torch.randn(sum(of), 2, 3) for of in sizes)
    rows = to_rows(vision, language, packing)
    assert rows.shape == (packing.rows, packing.length, 2, 3)
    for number, (image, text) in enumerate(zip(*sizes, strict=True)):
        before = [sum(of[:number]) for of in sizes]
        assert torch.equal(rows[number, :image], vision[before[0] :][:image])
        assert torch.equal(rows[number, image:][:text], language[before[1] :][:text])
        assert not rows[number, image + text :].any()
    back = from_rows(rows, packing)
    assert torch.equal(back[0], vision) and torch.equal(back[1], language)


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
    means = packing.means(vision, language)
    assert means[0].flatten().tolist() == [1, 1, 1, 3.5, 3.5, 5.5, 5.5]
    assert means[1].flatten().tolist() == [1, 1, 1, 3, 5.5, 5.5, 5.5, 5.5]
