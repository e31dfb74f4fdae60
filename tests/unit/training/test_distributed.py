"""Ranks and devices that are not there, signals, freed memory."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from magneto.training import distributed
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    Interrupt,
    World,
    join_world,
    keep_freed_memory,
    pick_device,
    pick_shard_size,
    piece_of,
    rendezvous_options,
    shard_model,
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    for name in names:
        monkeypatch.delenv(name, raising=False)


def ranks(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    """Set what torchrun tells its processes."""
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def refused(line: str, **settings: Any) -> None:
    config = TrainingConfig(device="cpu", **settings)
    with pytest.raises(ValueError, match=line), join_world(config):
        pass


def test_ranks_and_torchrun_need_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("ddp", "fsdp", "hybrid"):
        refused("needs torchrun", distributed=kind)
    ranks(monkeypatch, WORLD_SIZE=2)
    refused("set --distributed ddp, fsdp or hybrid", distributed="none")


def test_the_shards_of_a_copy_are_those_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"none": 1, "ddp": 1, "fsdp": 8}
    assert {kind: pick_shard_size(TrainingConfig(), kind, 8) for kind in sizes} == sizes
    assert pick_shard_size(TrainingConfig(), "hybrid", 8) == 8
    ranks(monkeypatch, LOCAL_WORLD_SIZE=4)
    assert pick_shard_size(TrainingConfig(), "hybrid", 8) == 4
    assert pick_shard_size(TrainingConfig(shard_size=2), "hybrid", 8) == 2
    assert pick_shard_size(TrainingConfig(shard_size=2), "fsdp", 8) == 8


def test_shards_that_do_not_divide_the_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torchrun's processes have met."""
    for given, here in ((3, 4), (8, 4), (None, 3)):
        ranks(monkeypatch, RANK=0, WORLD_SIZE=4, LOCAL_WORLD_SIZE=here)
        line = f"is {given or here}, which does not divide the 4 processes"
        refused(line, distributed="hybrid", shard_size=given)


def test_nodes_of_unequal_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(monkeypatch, RANK=0, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2)
    answers = {"init_process_group": None, "get_rank": 0, "get_world_size": 4,
               "destroy_process_group": None}  # fmt: skip
    for name, given in answers.items():
        monkeypatch.setattr(distributed.dist, name, Mock(return_value=given))
    monkeypatch.setattr(distributed, "gather_lists", lambda values, world: [*values, 1, 1])
    refused("nodes have 1 and 2 processes", distributed="hybrid")


def test_every_layer_is_sharded_and_then_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))
    model, shard = torch.nn.Sequential(layers, torch.nn.Linear(2, 2)), Mock()
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", shard)
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", Mock())
    shard_model(model, World(0, 2, torch.device("cpu"), "fsdp", 2))
    assert [call.args[0] for call in shard.call_args_list] == [*layers, model]


@pytest.mark.parametrize("rows", [0, 3, 5, 8])
def test_rows_of_a_rank_begin_where_torchs_chunk_cuts(rows: int) -> None:
    whole = torch.arange(rows)
    parts = [*whole.chunk(4), *[whole[:0]] * 4][:4]
    for rank, part in enumerate(parts):
        mesh = Mock(ndim=1)
        mesh.get_local_rank.return_value, mesh.size.return_value = rank, 4
        sharded = Mock(device_mesh=mesh, shape=whole.shape)
        sharded.detach.return_value, sharded.to_local.return_value = sharded, part
        piece = piece_of(sharded)
        assert torch.equal(whole[piece.start : piece.stop], part) and piece.start <= rows


def test_each_start_on_one_machine_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process that is gone left in torchrun's store is not taken for a living one's."""
    kept = torch.distributed.HashStore()
    module = sys.modules["torch.distributed.rendezvous"]
    monkeypatch.setattr(module, "rendezvous", lambda url, timeout: iter([(kept, 1, 2)]))
    assert rendezvous_options() == {}, "not started by torchrun"
    for start in (1, 2):
        ranks(monkeypatch, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, TORCHELASTIC_RESTART_COUNT=start)
        where = rendezvous_options()
        assert (where["rank"], where["world_size"]) == (1, 2)
        assert not where["store"].check(["address"])
        where["store"].set("address", "somewhere")
    ranks(monkeypatch, LOCAL_WORLD_SIZE=1)
    assert rendezvous_options() == {}, "machines may count otherwise"


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == pick_device("cpu:3") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"training.device meta: "):
        pick_device("meta")  # it has shapes, and no numbers
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)

    def ones(size: int, device: torch.device) -> Mock:
        if device.index not in (0, 1):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 MiB.\nSee its manual.")
        return Mock()

    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("auto") == pick_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "2")
    for name, why in (
        ("cuda", "CUDA out of memory"), ("cuda:3", "CUDA out of memory"),
        ("gpu", "Expected one of cpu, .*"),
    ):  # fmt: skip
        words = rf"^training.device {name}: .* \({why}\)\. torch finds 2 GPUs"
        with pytest.raises(ValueError, match=words):
            pick_device(name)
    assert chosen == [torch.device("cuda:1")] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    messages: list[str] = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupt(messages.append) as interrupt:
        assert not interrupt.requested
        signal.raise_signal(number)
        assert interrupt.requested and len(messages) == 1 and "with a checkpoint" in messages[0]
        signal.raise_signal(signal.SIGTERM)  # a scheduler's, and its launcher's
        signal.raise_signal(signal.SIGINT)
    assert len(messages) == 1 and signal.getsignal(number) is before


def test_outside_of_the_main_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        interrupt = pool.submit(Interrupt(print).__enter__).result()
    assert not interrupt.requested and signal.getsignal(signal.SIGINT) is before


def test_freed_memory_is_kept_only_where_that_is_wanted() -> None:
    for device, name in (
        ("cuda", ""),
        ("cpu", "MALLOC_TRIM_THRESHOLD_"),
        ("cpu", "GLIBC_TUNABLES"),
    ):
        with keep_freed_memory(torch.device(device), {name: "1"}) as done:
            assert not done
