"""Models on the meta device are built without being filled; everything else runs."""

import torch
from torch import nn

from magneto.training.model import FillRecorder


def test_what_has_values_is_filled() -> None:
    with FillRecorder():
        found = nn.init.ones_(torch.empty(3))
    assert found.tolist() == [1, 1, 1]


def test_what_has_none_keeps_its_shape_and_needs_no_fill() -> None:
    called = []
    weight = torch.empty(2, 3, device="meta")
    with FillRecorder():
        for fill in (nn.init.zeros_, nn.init.ones_, nn.init.normal_, nn.init.uniform_):
            called.append(fill(weight))
    assert all(found is weight for found in called)
    with torch.device("meta"), FillRecorder():
        layer = nn.Linear(4, 5)
        out = layer(torch.zeros(2, 4))
    assert out.is_meta and out.shape == (2, 5) and layer.weight.requires_grad
