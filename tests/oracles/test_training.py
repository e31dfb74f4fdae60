"""A training step against torch's own: clipping, AdamW, a plain loop, compiled code."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from magneto.progress import ProgressBars
from magneto.training.config import learning_rate
from magneto.training.distributed import single_process
from magneto.training.logging import read_metrics
from magneto.training.loop import Hook, build_state
from tests.unit.training.toy import Toy, config, furthest, run_toy, tensors


@pytest.mark.parametrize(
    ("clip_norm", "kind"), [(None, "adamw"), (0.5, "adamw"), (500.0, "adamw"), (0.5, "sgd")]
)
def test_a_run_is_a_plain_loop_of_torch(tmp_path: Path, clip_norm: float | None, kind: str) -> None:
    """The mean loss, its gradient clipped but never scaled up, a step at the schedule's rate."""
    changes = {"steps": 10, "clip_norm": clip_norm, "gradient_accumulation_steps": 2}
    changes["optimizer"] = kind
    settings = config(**changes)
    run_toy(tmp_path, log_every=1, **changes)
    logged = iter(read_metrics(tmp_path))
    task, world = Toy(), single_process(torch.device("cpu"))
    state = build_state(task, settings, tmp_path, 3, world, ProgressBars(quiet=True))
    model, stream = state.model, task.train_stream(16, 3)
    decays = [{"params": [p for p in model.parameters() if (p.ndim > 1) == matrix],
               "weight_decay": 0.01 * matrix} for matrix in (True, False)]  # fmt: skip
    optimizer: torch.optim.Optimizer = torch.optim.SGD(decays)
    if kind == "adamw":
        optimizer = torch.optim.AdamW(decays, betas=(0.9, 0.98), foreach=False, fused=False)
    for step in range(10):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        loss = task.loss(model, stream.batch(step)[0])
        (loss.total / loss.count).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)
        row = next(row for row in logged if "gradient_norm" in row)
        assert row["gradient_norm"] == pytest.approx(norm.item(), rel=1e-5), "before clipping"
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in tensors(tmp_path / "final").items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_compiled_by_inductor(tmp_path: Path) -> None:
    """The one test by inductor, which takes long to compile."""
    run_toy(tmp_path / "plain")
    seen: list[object] = []
    hook = Hook(30, lambda state: seen.append(state.model._compiled_call_impl))
    run_toy(tmp_path / "compiled", compile=True, hooks=[hook])
    assert seen[0] is not None
    assert furthest(tmp_path / "plain" / "final", tmp_path / "compiled" / "final") < 1e-4
