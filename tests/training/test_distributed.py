"""World that are not there, and devices that are not there."""

import pytest
import torch

from magneto.training.config import TrainingConfig
from magneto.training.distributed import join_world, pick_device


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_one_process() -> None:
    with join_world(TrainingConfig(device="cpu")) as world:
        assert (world.rank, world.world_size, world.strategy) == (0, 1, "none")
        assert world.is_main_process


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_need_torchrun(kind: str) -> None:
    settings = TrainingConfig(device="cpu", distributed=kind)
    with pytest.raises(ValueError, match="needs torchrun"), join_world(settings):
        pass


def test_torchrun_needs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = TrainingConfig(device="cpu", distributed="none")
    with pytest.raises(ValueError, match="say --distributed ddp or fsdp"), join_world(settings):
        pass


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="no device 'gpu'"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU that torch can use"):
            pick_device("cuda")
