"""A training step against torch's own: clipping, AdamW, a plain loop, compiled code."""

from pathlib import Path

import pytest
import torch
from torch import nn

from magneto.progress import ProgressBars
from magneto.training.config import learning_rate
from magneto.training.distributed import single_process
from magneto.training.loop import build_state
from magneto.training.optimizer import scale_gradients
from tests.unit.training.toy import Toy, config, furthest, run_toy, tensors


def test_clipping_is_torchs() -> None:
    world = single_process(torch.device("cpu"))
    for clip_norm in (0.5, 50.0, 500.0):  # the last is never reached: nothing is scaled up
        ours, theirs = ([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))] for _ in "ab")
        for given in (ours, theirs):
            given[0].grad, given[1].grad = torch.tensor([0.0, 30.0]), torch.tensor([-40.0])
        norm = scale_gradients(ours, torch.tensor(1.0), clip_norm, world)
        assert norm == pytest.approx(nn.utils.clip_grad_norm_(theirs, clip_norm)), "before clipping"
        torch.testing.assert_close([p.grad for p in ours], [p.grad for p in theirs])


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_run_is_a_plain_loop_of_torch(tmp_path: Path, clip_norm: float | None) -> None:
    """The mean loss, its gradient clipped, AdamW at the schedule's rate."""
    settings = config(steps=10, clip_norm=clip_norm, gradient_accumulation_steps=2)
    run_toy(tmp_path, steps=10, clip_norm=clip_norm, gradient_accumulation_steps=2)
    task, world = Toy(), single_process(torch.device("cpu"))
    state = build_state(task, settings, tmp_path, 3, world, ProgressBars(quiet=True))
    model, stream = state.model, task.train_stream(16, 3)
    decays = [{"params": [p for p in model.parameters() if (p.ndim > 1) == matrix],
               "weight_decay": 0.01 * matrix} for matrix in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(decays, betas=(0.9, 0.98), eps=1e-8, foreach=False, fused=False)
    for step in range(10):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        loss = task.loss(model, stream.batch(step)[0])
        (loss.total / loss.count).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in tensors(tmp_path / "final").items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_compiled_by_inductor(tmp_path: Path) -> None:
    """The one test by inductor, which takes long to compile."""
    run_toy(tmp_path / "plain")
    run_toy(tmp_path / "compiled", compile=True)
    assert furthest(tmp_path / "plain" / "final", tmp_path / "compiled" / "final") < 1e-4
