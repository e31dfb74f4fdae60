"""Ranks and devices that are not there, signals, freed memory."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from magneto.training import distributed
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    Interrupt,
    World,
    any_rank,
    broadcast_from_main,
    call_on_main,
    current_world,
    gather_rows,
    gradient_sync,
    join_world,
    keep_freed_memory,
    local_parts,
    main_process_first,
    pick_device,
    pick_shard_size,
    pick_strategy,
    piece_of,
    rendezvous_options,
    replicate_model,
    reshard,
    shard_model,
    training_process,
)

CPU = torch.device("cpu")


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
    ranks(monkeypatch, RANK=1)
    assert pick_strategy(TrainingConfig()) == "ddp"


def test_each_rank_has_its_own_micro_batches() -> None:
    config = TrainingConfig(batch_size=6, gradient_accumulation_steps=2)
    assert local_parts(config, World(1, 3, CPU, "ddp")) == ([2, 3], 6)
    with pytest.raises(ValueError, match=r"\(6\) is less than .*\(4 x 2\)"):
        local_parts(config, World(1, 4, CPU, "ddp"))


def test_ranks_exchange_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is rank 1 of two; rank 0 says True, "first", and the row 1 2."""
    world, flag, dist = World(1, 2, CPU, "ddp"), 1.0, distributed.dist
    row = torch.tensor([[1, 2]])
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.add_(flag))
    monkeypatch.setattr(dist, "broadcast_object_list", lambda held, src: held.insert(src, "first"))
    gather = lambda held, mine, group: held.__setitem__(slice(2), ([row], mine))  # noqa: E731
    monkeypatch.setattr(dist, "all_gather_object", gather)
    assert any_rank(False, world) and any_rank(True, world)
    flag = 0.0
    assert any_rank(True, world) and not any_rank(False, world)
    assert broadcast_from_main("second", world) == call_on_main(world, pytest.fail) == "first"
    assert gather_rows(torch.tensor([[3, 4], [5, 6]]), world).tolist() == [[1, 2], [3, 4], [5, 6]]
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(dist, name, lambda value=value: value)
    assert current_world(CPU) == world


@pytest.mark.parametrize(("rank", "expected"), [(0, ["work", "wait"]), (1, ["wait", "work"])])
def test_the_main_process_works_first(rank: int, expected: list[str], monkeypatch) -> None:
    order = []
    monkeypatch.setattr(distributed.dist, "barrier", lambda: order.append("wait"))
    with main_process_first(World(rank, 2, CPU, "ddp")):
        order.append("work")
    assert order == expected


def test_gradients_are_exchanged_in_the_last_micro_batch_alone(monkeypatch) -> None:
    copied, sharded = Mock(spec=DistributedDataParallel), Mock()
    assert gradient_sync(copied, False) is copied.no_sync()
    assert isinstance(gradient_sync(copied, True), nullcontext)
    for last in (False, True):
        gradient_sync(sharded, last)
        sharded.set_requires_gradient_sync.assert_called_with(last)
    reshard(sharded)
    sharded.reshard.assert_called_once_with()
    monkeypatch.setattr(distributed, "DistributedDataParallel", wrap := Mock())
    assert replicate_model(sharded, World(0, 2, CPU, "fsdp", 2)) is sharded
    assert replicate_model(sharded, World(0, 2, CPU, "ddp")) is wrap.return_value
    wrap.assert_called_once_with(sharded, broadcast_buffers=False)


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
        line = rf"\({given or here}\) must divide the number of all processes \(4\)"
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
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", mesh := Mock())
    shard_model(model, World(0, 2, CPU, "fsdp", 2))
    assert [call.args[0] for call in shard.call_args_list] == [*layers, model]
    mesh.assert_called_with("cpu", (2,), mesh_dim_names=("shard",))
    world = World(0, 6, CPU, "hybrid", 2)
    shard_model(model, world)
    mesh.assert_called_with("cpu", (3, 2), mesh_dim_names=("replicate", "shard"))
    assert "3 copies, each in 2 shards" in world.describe()


@pytest.mark.parametrize("rows", [0, 3, 5, 8])
def test_rows_of_a_rank_begin_where_torchs_chunk_cuts(rows: int) -> None:
    whole = torch.arange(rows)
    parts = [*whole.chunk(4), *[whole[:0]] * 4][:4]
    for (rank, part), copies in product(enumerate(parts), (1, 3)):
        mesh = Mock(ndim=1 if copies == 1 else 2)
        mesh.get_local_rank = lambda axis, rank=rank, mesh=mesh: (2, rank)[axis - mesh.ndim]
        mesh.size = lambda axis, mesh=mesh: (3, 4)[axis - mesh.ndim]
        sharded = Mock(device_mesh=mesh, shape=whole.shape)
        sharded.detach.return_value, sharded.to_local.return_value = sharded, part
        piece = piece_of(sharded)
        assert torch.equal(whole[piece.start : piece.stop], part) and piece.start <= rows
        assert piece.sharded and piece.replica == (0 if copies == 1 else 2)


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
    with pytest.raises(ValueError, match=r"training.device 'meta': "):
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
        words = rf"^training.device {name!r}: .* \({why}\)\. torch finds 2 GPUs"
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


def test_freed_memory_is_kept_only_where_that_is_wanted(monkeypatch) -> None:
    libc = Mock()
    for device, name in (
        ("cuda", ""),
        ("cpu", "MALLOC_TRIM_THRESHOLD_"),
        ("cpu", "GLIBC_TUNABLES"),
    ):
        with keep_freed_memory(torch.device(device), {name: "1"}) as done:
            assert not done
    monkeypatch.setattr(distributed, "glibc", lambda: libc)
    with keep_freed_memory(CPU, {}) as done:
        assert done and libc.mallopt.call_args_list == [call(-3, 2**30), call(-1, 2**31 - 1)]
    assert libc.mallopt.call_args_list[2:] == [call(-3, 131072), call(-1, 131072)]


def test_a_process_has_the_threads_that_are_asked_for() -> None:
    before, found = torch.get_num_threads(), list[int]()
    for asked in (1, 3, None):
        torch.set_num_threads(2)
        with training_process(TrainingConfig(device="cpu", threads=asked)):
            found.append(torch.get_num_threads())
    torch.set_num_threads(before)
    assert found == [1, 3, 2]
