"""World that are not there, and devices that are not there."""

from datetime import timedelta

import pytest
import torch

from magneto.training import distributed
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


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("auto") == pick_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    for name in ("cuda", "cuda:3"):
        with pytest.raises(ValueError, match=r"there is no cuda:[23], torch sees 2 GPUs"):
            pick_device(name)
    assert chosen == [torch.device("cuda:1")] * 2


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda:0", "nccl")])
def test_ranks_wait_for_data_that_takes_hours(
    device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL gives up after ten minutes, in which no large corpus is tokenised."""
    given: dict = {}
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(distributed, "pick_device", lambda name: torch.device(name))
    monkeypatch.setattr(
        distributed.dist, "init_process_group", lambda name, **rest: given.update(rest, name=name)
    )
    for name, value in {"get_rank": 0, "get_world_size": 1, "destroy_process_group": None}.items():
        monkeypatch.setattr(distributed.dist, name, lambda value=value: value)
    with join_world(TrainingConfig(device=device, distributed="ddp")):
        assert given["name"] == backend and given["timeout"] >= timedelta(hours=1)
    assert given.get("device_id") == (torch.device(device) if backend == "nccl" else None)
