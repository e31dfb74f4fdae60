"""Ranks and devices that are not there, signals, freed memory."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from magneto.training import distributed
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    Interrupt,
    World,
    join_world,
    keep_freed_memory,
    one_process,
    pick_device,
    pick_shard_size,
    piece_of,
    rendezvous_options,
    replicate_model,
    shard_model,
    unwrap,
)
from tests.unit.training.toy import Toy


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)


def test_one_process() -> None:
    with join_world(TrainingConfig(device="cpu")) as world:
        assert (world.rank, world.world_size, world.strategy) == (0, 1, "none")
        assert world.is_main_process


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hybrid"])
def test_ranks_need_torchrun(kind: str) -> None:
    settings = TrainingConfig(device="cpu", distributed=kind)
    with pytest.raises(ValueError, match="needs torchrun"), join_world(settings):
        pass


def test_torchrun_needs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = TrainingConfig(device="cpu", distributed="none")
    with (
        pytest.raises(ValueError, match="say --distributed ddp, fsdp or hybrid"),
        join_world(settings),
    ):
        pass


def test_the_shards_of_a_copy_are_those_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"none": 1, "ddp": 1, "fsdp": 8}
    assert {kind: pick_shard_size(TrainingConfig(), kind, 8) for kind in sizes} == sizes
    assert pick_shard_size(TrainingConfig(), "hybrid", 8) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert pick_shard_size(TrainingConfig(), "hybrid", 8) == 4
    assert pick_shard_size(TrainingConfig(shard_size=2), "hybrid", 8) == 2
    assert pick_shard_size(TrainingConfig(shard_size=2), "fsdp", 8) == 8


@pytest.mark.parametrize(("given", "here"), [(3, 4), (8, 4), (None, 3)])
def test_shards_that_do_not_divide_the_ranks_are_refused(
    given: int | None, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torchrun's processes have met."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": here}.items():
        monkeypatch.setenv(name, str(value))
    settings = TrainingConfig(device="cpu", distributed="hybrid", shard_size=given)
    line = f"is {given or here}, which does not divide the 4 processes"
    with pytest.raises(ValueError, match=line), join_world(settings):
        pass


def test_nodes_of_unequal_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda *rest, **more: None)
    monkeypatch.setattr(distributed, "gather_lists", lambda values, world: [*values, 1, 1])
    for name, value in {"get_rank": 0, "get_world_size": 4, "destroy_process_group": None}.items():
        monkeypatch.setattr(distributed.dist, name, lambda value=value: value)
    settings = TrainingConfig(device="cpu", distributed="hybrid")
    with pytest.raises(ValueError, match="nodes have 1 and 2 processes"), join_world(settings):
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


def test_each_start_on_one_machine_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process that is gone left in torchrun's store is not taken for a living one's."""
    kept = torch.distributed.HashStore()
    module = sys.modules["torch.distributed.rendezvous"]
    monkeypatch.setattr(module, "rendezvous", lambda url, timeout: iter([(kept, 1, 2)]))
    assert rendezvous_options() == {}, "not started by torchrun"
    for name, value in {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    stores = []
    for start in ("1", "2"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", start)
        where = rendezvous_options()
        assert (where["rank"], where["world_size"]) == (1, 2)
        assert not where["store"].check(["address"])
        where["store"].set("address", start)
        stores.append(where["store"])
    assert [store.get("address") for store in stores] == [b"1", b"2"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert rendezvous_options() == {}, "machines may count otherwise"


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupt(said.append) as interrupt:
        assert not interrupt.requested
        signal.raise_signal(number)
        assert interrupt.requested and len(said) == 1 and "with a checkpoint" in said[0]
        signal.raise_signal(signal.SIGTERM)  # a scheduler's, and its launcher's
        signal.raise_signal(signal.SIGINT)
    assert len(said) == 1 and signal.getsignal(number) is before


def test_outside_of_the_main_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)

    def enter() -> bool:
        with Interrupt(print) as interrupt:
            return interrupt.requested or signal.getsignal(signal.SIGINT) is not before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is False
    assert signal.getsignal(signal.SIGINT) is before


def test_one_process_has_everything() -> None:
    alone = one_process(torch.device("cpu"))
    model = Toy().build_model()
    assert replicate_model(shard_model(model, alone), alone) is unwrap(model) is model
    piece = piece_of(torch.ones(5, 2, requires_grad=True))
    assert (piece.start, piece.stop, piece.sharded, piece.replica) == (0, 5, False, 0)
    assert not piece.tensor.requires_grad
    assert piece_of(torch.tensor(3.0)).stop == 1


def test_how_a_model_lies_on_ranks_in_words() -> None:
    device = torch.device("cpu")
    assert World(0, 4, device, "hybrid", 2).describe() == "4 x cpu, hybrid (2 copies in 2 shards)"
    assert World(0, 4, device, "fsdp", 4).describe() == "4 x cpu, fsdp"
    assert World(0, 1, device, "none").describe() == "1 x cpu"
    assert [World(0, 4, device, "hybrid", size).replicas for size in (1, 2, 4)] == [4, 2, 1]


@pytest.mark.parametrize(
    ("device", "environment"),
    [("cuda", {}), ("cpu", {"MALLOC_TRIM_THRESHOLD_": "1"}), ("cpu", {"GLIBC_TUNABLES": ""})],
)
def test_freed_memory_is_kept_only_where_that_is_wanted(device: str, environment: dict) -> None:
    with keep_freed_memory(torch.device(device), environment) as done:
        assert not done
