"""Tensors in files: whole or in pieces, read by rows."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from magneto.files import write_json
from magneto.weights import find_weights, list_steps, open_tensors


@pytest.fixture
def cut(tmp_path: Path) -> torch.Tensor:
    """A tensor of 5 rows in two files, and a scalar."""
    whole = torch.arange(15.0).view(5, 3)
    save_file({"a": whole[:3].clone(), "s": torch.tensor(7.0)}, tmp_path / "one.safetensors")
    save_file({"a": whole[3:].clone()}, tmp_path / "two.safetensors")
    one, two = "one.safetensors", "two.safetensors"
    pieces = [{"file": one, "rows": [0, 3]}, {"file": two, "rows": [3, 5]}]
    index = {
        "a": {"shape": [5, 3], "dtype": "float32", "pieces": pieces},
        "s": {"shape": [], "dtype": "float32", "pieces": [{"file": one, "rows": [0, 1]}]},
    }
    write_json(tmp_path / "model.index.json", index)
    return whole


def test_any_rows_of_a_tensor_in_pieces(cut: torch.Tensor, tmp_path: Path) -> None:
    stored = open_tensors(tmp_path)
    assert stored["a"].shape == (5, 3) and torch.equal(stored["a"].read(), cut)
    for start in range(5):
        for stop in range(start + 1, 6):
            assert torch.equal(stored["a"].rows(start, stop), cut[start:stop])
    assert stored["s"].read() == stored["s"].rows(0, 1) == 7


def test_the_best_weights_are_taken_then_the_final_then_the_last(tmp_path: Path) -> None:
    places = ["best", "final", "checkpoints/step-00000009", "checkpoints/step-00000010"]
    for name in places:
        write_json(tmp_path / name / "manifest.json", {})
    assert find_weights(tmp_path, "9") == tmp_path / places[2]
    for name in (places[0], places[1], places[3]):
        assert find_weights(tmp_path) == tmp_path / name
        shutil.rmtree(tmp_path / name)


def test_steps_are_in_order_and_other_names_left_out(tmp_path: Path) -> None:
    for name in ("step-00000009", "step-100000000", "step-00000010", "step-abc", "step-1.old", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000003").write_text("a file")
    assert [path.name[5:] for path in list_steps(tmp_path)] == ["00000009", "00000010", "100000000"]
    assert list_steps(tmp_path / "nowhere") == []
