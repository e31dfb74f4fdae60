"""What is measured beside a grid."""

from pathlib import Path

import pytest

from magneto.lab.probe import measurements
from magneto.lab.probe.measurements import bounds_over, measure
from magneto.lab.sweep.cells import PLACEMENT, RATE, SEED, Sweep
from magneto.theory.bounds import bound
from magneto.theory.depth import Depth
from magneto.theory.placement import PLACEMENTS
from magneto.theory.scales import derived_scales

SMALL = {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.ffn_width": 32}


def sweep(*placements: str) -> Sweep:
    grid = {PLACEMENT: list(placements), RATE: [1e-3, 1e-2], SEED: [1, 2]}
    return Sweep("image-classification/tiny", SMALL | {"training.batch_size": 8}, grid)


def test_each_placement_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "DEPTHS", (2, 4))
    monkeypatch.setattr(measurements, "SEEDS", (0, 1))
    found = measure(tmp_path, sweep("post", "sub"))
    assert found["width"] == 16 and found["depths"] == [2, 4]
    assert {name: len(layers) for name, layers in found["activations"].items()} == {
        "post": 2, "sub": 2,
    }  # fmt: skip
    # A norm after every sum leaves an RMS of 1; without one, it grows.
    post, sub = (list(found["activations"][name].values()) for name in ("post", "sub"))
    assert post == pytest.approx([1, 1], abs=0.01) and sub[1] > sub[0] > 0
    assert len(found["updates"]) == 2 * 2 * 2 * 4
    assert {part["placement"] for part in found["growth"]} == {"post", "sub"}

    monkeypatch.setattr(measurements, "measure_recipes", None)
    assert measure(tmp_path, sweep("post", "sub")) == found
    with pytest.raises(TypeError):
        measure(tmp_path, sweep("post", "pre"))  # another grid's are not taken for its own


def test_bounds_are_of_the_placement_and_depth() -> None:
    rows = {row.name: row for row in PLACEMENTS.values()}
    found = bounds_over(rows["sub"], (6, 12), "encoder")["paper"]
    again = [bound(rows["sub"], derived_scales(rows["sub"], Depth("encoder", n))) for n in (6, 12)]
    assert found == pytest.approx(again) and found[1] == pytest.approx(2.9794, abs=1e-4)
    assert bounds_over(rows["peri"], (6, 12), "encoder") == {}
