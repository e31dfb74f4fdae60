"""Rates of a ViT's parameters by depth."""

import pytest

from magneto.vision.pretrained import layer_decay_multipliers
from tests.vision.segmentation.small import small_model


def test_groups_are_beit_s() -> None:
    """12 layers have 14 groups: embeddings 0, layer l group l + 1, heads 13."""
    model = small_model(layers=12, feature_layers=(3, 5, 7, 11))
    found = layer_decay_multipliers(model, 12, 0.75)
    assert found.keys() == dict(model.named_parameters()).keys()
    expected = {
        "embedding.proj.weight": 13, "class_token.vector": 13,
        "encoder.position_embedding.table.weight": 13,
        "encoder.layers.0.feed_forward.mlp.fc1.weight": 12,
        "encoder.layers.11.self_attention.before.weight": 1,
        "encoder.layers.10.self_attention.before.weight": 2,
        "pyramid.levels.1.weight": 0, "head.classifier.bias": 0,
    }  # fmt: skip
    for name, power in expected.items():
        assert found[name] == pytest.approx(0.75**power), name


def test_no_decay() -> None:
    assert layer_decay_multipliers(small_model(), 4, 1.0) == {}
