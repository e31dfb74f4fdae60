"""Batches come in pinned memory where a GPU is to copy from it, and only there."""

from pathlib import Path

import pytest
import torch

from magneto.data.stream import named_tensors, pinned, to_device
from tests.gpu.tiny import FAMILIES, TINY, batches, begun, cases


@pytest.mark.parametrize(("name", "device"), cases(), indirect=["device"])
def test_batches_are_pinned_for_a_gpu(name: str, device: torch.device, tmp_path: Path) -> None:
    with begun(name, device, tmp_path, batch_size=6) as (_, taken):
        pieces = next(taken)
    tensors = named_tensors(pieces)
    assert tensors
    for tensor in tensors.values():
        assert tensor.is_pinned() == (device.type == "cuda")
    arrived = named_tensors(to_device(pieces, device))
    assert all(torch.equal(arrived[key].cpu(), tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    "name", [n if n in FAMILIES else pytest.param(n, marks=pytest.mark.slow) for n in TINY]
)
def test_pinning_keeps_what_is_no_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 0)
    batch = batches(name, torch.device("cpu"), 1)[0]
    first, second = named_tensors(batch), named_tensors(pinned(batch))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert first.keys() == second.keys() and str(type(batch)) == str(type(pinned(batch)))
