"""One rank of DDP and of FSDP, by gloo or by NCCL, trains to the weights of one process."""

from pathlib import Path

import pytest
import torch

from magneto.weights import open_tensors
from tests.gpu.tiny import distance, quick_data
from tests.ranks import run_alone, run_ranks

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.distributed),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def train(out: Path, device: str, source: str, strategy: str) -> dict[str, torch.Tensor]:
    """Train a small language model by the command; return its last weights.

    A large epsilon: Adam divides a gradient that is zero but for rounding by itself.
    """
    words = f"""causal-lm/tiny --data {source} --data.tokenizer bytes --data.max_length 32
        --model.width 32 --model.ffn_width 64 --model.layers 2 --training.steps 4
        --training.batch_size 4 --training.warmup_steps 0 --training.eps 1e-3
        --training.clip_norm 0.5 --training.ema_decay 0.9
        --training.device {device} --training.tensorboard false --training.evaluate_limit 1
        --distributed {strategy} --out {out}""".split()
    command = ("-m", "magneto", "train", *words)
    run_alone(*command) if strategy == "none" else run_ranks(1, *command)
    return {name: tensor.read() for name, tensor in open_tensors(out / "final").items()}


@pytest.mark.parametrize("device", DEVICES)
def test_one_rank_equals_one_process(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    source = quick_data()["builtin:docstrings"]["source"]
    alone = train(tmp_path / "none", device, source, "none")
    for strategy in ("ddp", "fsdp"):
        assert distance(train(tmp_path / strategy, device, source, strategy), alone) < 1e-5
