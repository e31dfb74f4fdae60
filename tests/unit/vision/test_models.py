"""Models of images: stems, poolings, features of every layer; segmenters and their windows."""

import pytest
import torch
from torch import Tensor, nn

from magneto.nn.embedding import ConvolutionalStem, PatchEmbedding
from magneto.nn.position import resize_positions
from magneto.vision.models import (
    SegmentationLogits,
    classes_of,
    for_grid,
    pixel_logits,
    sliding_logits,
    window_places,
)
from tests.unit.vision.small import small_config, small_model


@pytest.mark.parametrize("patch", [1, 3, 4, 16])
def test_a_convolutional_stem_has_a_vector_for_each_patch(patch: int) -> None:
    images = torch.randn(2, 2, 5 * patch, 5 * patch)
    stem = ConvolutionalStem(2, patch, 32)
    assert stem(images).shape == PatchEmbedding(2, patch, 32)(images).shape
    # A vector stands where its patch does: no far pixel moves it as much.
    pixels = images.clone().requires_grad_()
    stem(pixels)[:, 0].square().sum().backward()
    assert pixels.grad is not None
    seen = pixels.grad.abs().mean((0, 1))
    assert seen[:patch, :patch].mean() > 3 * seen[-patch:, -patch:].mean()


class Brightness(nn.Module):
    """Answers each pixel by itself, at the window's size: what windows give must be the same."""

    def __init__(self, **changes) -> None:
        super().__init__()
        self.config = small_config(**changes)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> SegmentationLogits:
        self.seen += list(images)
        return SegmentationLogits(images[:, :1] * torch.arange(1.0, 6)[:, None, None], images)


def test_windows_of_ade20k() -> None:
    """512 pixels, 341 apart; the last one ends at the edge (mmsegmentation's slide_inference)."""
    known = {512: [0], 513: [0, 1], 683: [0, 171], 853: [0, 341], 854: [0, 341, 342]}
    for length, expected in known.items():
        places = window_places((length, 512), (512, 512), 341)
        assert [rows.start for rows, _ in places] == expected


def test_overlapping_windows_are_averaged() -> None:
    model = Brightness(stride=5)
    images = [torch.randn(3, 21, 33), torch.randn(3, 16, 40), torch.randn(3, 9, 7)]
    for image, logits in zip(images, sliding_logits(model, images), strict=True):  # type: ignore
        assert logits.shape == (5, *image.shape[1:])
        expected = image[:1] * torch.arange(1.0, 6)[:, None, None]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert all(window.shape == (3, 16, 16) for window in model.seen)
    assert not model.seen[-1][:, 9:].any() and not model.seen[-1][:, :, 7:].any()


def test_mean_weighs_every_window_alike() -> None:
    """Three windows over one row of 20: what each says of its own pixels is averaged."""

    class Numbered(Brightness):
        def forward(self, images: Tensor) -> SegmentationLogits:
            numbers = torch.arange(1.0, len(images) + 1)[:, None, None, None]
            return SegmentationLogits(numbers.expand(-1, 5, 16, 16), images)

    (logits,) = sliding_logits(Numbered(stride=2), [torch.zeros(3, 16, 20)])  # type: ignore
    expected = torch.tensor([1, 1, 1.5, 1.5] + [2] * 12 + [2.5, 2.5, 3, 3])
    torch.testing.assert_close(logits[0, 0], expected)


def test_a_whole_image_of_another_size_has_interpolated_positions() -> None:
    """14 x 14 patches were trained on, 32 x 32 are seen: as `resize_positions` does it."""
    model = small_model(image_size=56, max_length=197, inference="whole", stride=56)
    wide = for_grid(model, 32, 32)
    square = small_config(image_size=128, max_length=1025)
    expected = resize_positions(model.state_dict(), model.config, square)
    table = "encoder.position_embedding.table.weight"
    assert wide.state_dict()[table].shape == (1025, 16)
    torch.testing.assert_close(wide.state_dict()[table], expected[table])
    shared = "head.fuse.0.weight"
    assert wide.get_parameter(shared).data_ptr() == model.get_parameter(shared).data_ptr()
    (logits,) = pixel_logits(model, [torch.randn(3, 61, 30)])
    assert logits.shape == (5, 61, 30) and logits.isfinite().all()


def test_logits_are_resized_before_classes_are_chosen() -> None:
    """Between class 0 and class 2 lies no class 1, as resized numbers of classes would say."""
    logits = torch.tensor([[[5.0, -5.0]], [[0.0, 0.0]], [[-5.0, 5.0]]])
    found = classes_of(logits, (1, 8))
    assert found.tolist() == [[0, 0, 0, 0, 2, 2, 2, 2]]
