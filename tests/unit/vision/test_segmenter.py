"""UperNet as transformers has it, features, windows and whole images."""

from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.position import resize_positions
from magneto.vision.models import (
    SegmentationLogits,
    UperNetHead,
    classes_of,
    for_grid,
    pixel_logits,
    sliding_logits,
    whole_logits,
    window_places,
)
from tests.unit.vision.small import small_config, small_model

WIDTH, CHANNELS, CLASSES, SCALES = 12, 8, 5, (1, 2, 3, 6)


def maps(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, WIDTH, size, size + 1, generator=generator) for size in sizes]


def test_a_head_begins_near_ln_classes_and_sees_each_image_alone() -> None:
    torch.manual_seed(0)
    head = UperNetHead(WIDTH, CHANNELS, CLASSES, SCALES, 0.0)
    levels = maps(28, 14, 7, 3)
    logits = head(levels)
    masks = torch.randint(CLASSES, (2, *logits.shape[2:]))
    assert abs(F.cross_entropy(logits, masks).item() - log(CLASSES)) < 0.05
    alone = head([level[:1] for level in levels])
    torch.testing.assert_close(logits[:1], alone, rtol=1e-5, atol=1e-6)


def test_features_are_the_layers_own_places() -> None:
    """Without the class token, row by row, before any norm on top of the stack."""
    for prefix, token in enumerate(("none", "learned")):
        model, images = small_model(class_token=token, placement="pre"), torch.randn(2, 3, 16, 16)
        states = model.encoder.features(model.embed(images), range(4))
        for found, state in zip(model.features(images), states, strict=True):
            assert found.shape == (2, 16, 4, 4)
            assert torch.equal(found[:, :, 1, 2], state[:, prefix + 4 + 2])


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


def test_one_window_is_the_model_s_own_answer() -> None:
    model, image = small_model(), torch.randn(3, 16, 16)
    expected = F.interpolate(
        model(image[None]).main, size=(16, 16), mode="bilinear", align_corners=False
    )
    (slid,) = pixel_logits(model, [image])
    torch.testing.assert_close(slid, expected[0])
    torch.testing.assert_close(whole_logits(model, image), expected[0])


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
