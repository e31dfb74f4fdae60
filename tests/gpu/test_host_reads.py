"""No step waits for the device: not in a task's loss, backward, nor in what the loop does."""

from pathlib import Path

import pytest
import torch

from magneto.training.logging import read_steps
from magneto.training.loop import train_step
from tests.gpu.tiny import begun, cases
from tests.watched import no_host_reads

WAITS = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "condition": lambda x: 1 if x.sum() > 0 else 2,
    "mask as index": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "new_tensor": lambda x: x.new_tensor(3.0),
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "unique": lambda x: x.unique(),
}


# Their batches count groups.
GROUPED = ("transducer/tiny", "translation/tiny")


@pytest.mark.parametrize("what", WAITS)
def test_what_waits_is_found(what: str, device: torch.device) -> None:
    x = torch.randn(3, 4, device=device)
    with pytest.raises(RuntimeError), no_host_reads(device):
        WAITS[what](x)


@pytest.mark.parametrize(("name", "device"), cases(), indirect=["device"])
def test_a_step_waits_for_nothing(name: str, device: torch.device, tmp_path: Path) -> None:
    check(name, "fp32", device, tmp_path)


# Without instructions for it a CPU computes in bf16 a hundred times slower than in fp32.
@pytest.mark.parametrize(("name", "device"), cases(()), indirect=["device"])
def test_a_step_in_bf16_waits_for_nothing(name: str, device: torch.device, tmp_path: Path) -> None:
    check(name, "bf16", device, tmp_path)


def check(name: str, precision: str, device: torch.device, tmp_path: Path) -> None:
    """After two steps, in which the optimizer makes its state.

    On CUDA torch's own CTC loss waits for the lengths that it copies; all else is checked.
    """
    settings = {"precision": precision, "clip_norm": 1.0, "ema_decay": 0.9}
    settings["batch_size"] = 2 if name in GROUPED else 6
    with begun(name, device, tmp_path, gradient_accumulation_steps=2, **settings) as (loop, taken):
        for _ in range(2):
            train_step(loop, next(taken))
        pieces = next(taken)
        with pytest.MonkeyPatch.context() as patch, no_host_reads(device):
            if device.type == "cuda":
                patch.setattr("magneto.speech.model.ctc_loss", lambda x, *_: x.float().sum((1, 2)))
            train_step(loop, pieces)
    assert loop.step == 3
    assert all(step["count"] > 0 for step in read_steps(loop.pending))
