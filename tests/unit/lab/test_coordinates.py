"""The coordinate check: exponents are recovered, and changes are flat with muP."""

import math

import pytest

from magneto.lab.coordinates import FLAT, HEAD, measure_coordinates, power
from magneto.recipe import load_recipe

WIDTHS = (16, 64, 128)
SMALL = {
    "model.width": 16, "model.heads": 2, "model.ffn_width": 32, "model.layers": 2,
    "training.learning_rate": 0.002, "training.batch_size": 16, "training.device": "cpu",
}  # fmt: skip


def test_a_power_of_the_width_is_recovered() -> None:
    assert power({width: 3 * width**0.7 for width in WIDTHS}) == pytest.approx(0.7)
    assert math.isnan(power({16: 1.0, 32: math.inf})) and math.isnan(power({16: 1.0, 32: 0.0}))


def test_changes_grow_with_the_width_but_not_by_maximal_update_parametrisation() -> None:
    pytest.importorskip("sklearn")
    mup = {"model.parametrization": "mup", "model.base_width": 16}
    plain, scaled = (
        measure_coordinates(load_recipe("image-classification/tiny", SMALL | more), WIDTHS, steps=2)
        for more in ({}, mup)
    )
    names = ["encoder.layers.0", "encoder.layers.1", "encoder", HEAD]
    assert [each.name for each in plain] == [each.name for each in scaled] == names
    for one, other in zip(plain[:2], scaled[:2], strict=True):
        assert one.exponent > 0.3 and abs(other.exponent) < FLAT
        assert one.initial[16] == other.initial[16] and one.change[16] == other.change[16]
