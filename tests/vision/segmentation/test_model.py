"""The segmentation model: its features, its sizes, and that it compiles as one graph."""

import pytest
import torch

from magneto.vision.segmenter import Segmenter
from tests.vision.segmentation.small import small_config, small_model


@pytest.mark.parametrize("token", ["none", "learned"])
def test_features_are_the_layers_own_places(token: str) -> None:
    """Without the class token, row by row, before any norm on top of the stack."""
    model = small_model(class_token=token, feature_layers=(0, 1, 2, 3), placement="pre")
    images = torch.randn(2, 3, 16, 16)
    maps = model.features(images)
    states = model.encoder.features(model.class_token(model.embedding(images)), range(4))
    for found, state in zip(maps, states, strict=True):
        patches = state[:, int(token == "learned") :]
        assert found.shape == (2, 16, 4, 4)
        assert torch.equal(found[:, :, 1, 2], patches[:, 4 + 2])


def test_sizes_of_answers() -> None:
    answer = small_model()(torch.randn(2, 3, 16, 16))
    assert answer.main.shape == (2, 5, 16, 16) and answer.auxiliary.shape == (2, 5, 4, 4)
    assert small_model(auxiliary_level=0)(torch.randn(1, 3, 16, 16)).auxiliary.shape[-1] == 16


def test_every_parameter_is_trained() -> None:
    """None is left without a gradient, which ddp would refuse."""
    model = small_model().train()
    answer = model(torch.randn(2, 3, 16, 16))
    (answer.main.square().sum() + answer.auxiliary.square().sum()).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


def test_it_is_one_graph() -> None:
    model, again = (small_model().train() for _ in range(2))
    for module in (*model.modules(), *again.modules()):
        if isinstance(module, torch.nn.Dropout2d):
            module.p = 0.0
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(compiled(images).main, again(images).main)


def test_the_defaults_are_the_base_model() -> None:
    with torch.device("meta"):
        model = Segmenter(small_config(
            width=768, layers=12, heads=12, ffn_width=3072, image_size=512, patch_size=16,
            classes=150, max_length=1025, feature_layers=(3, 5, 7, 11), head_channels=768,
            pool_scales=(1, 2, 3, 6), auxiliary_channels=256, stride=341,
        ))  # fmt: skip
        answer = model(torch.empty(1, 3, 512, 512))
    assert answer.main.shape == (1, 150, 128, 128) and answer.auxiliary.shape == (1, 150, 32, 32)
