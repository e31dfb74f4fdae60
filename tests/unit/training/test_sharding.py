"""Sharded runs: the same first bits, no whole model anywhere, any number of ranks goes on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.training.checkpoint import load_weights
from magneto.training.distributed import (
    World,
    one_process,
    piece_of,
    replicate_model,
    shard_model,
    unwrap,
)
from magneto.training.logging import read_metrics
from magneto.weights import list_checkpoints, open_tensors, undamaged
from tests.ranks import run_alone, run_ranks
from tests.unit.training.toy import Toy, ToyData, run_toy

TOY = "tests/unit/training/toy.py"


def read(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(directory).items()}


def equal(first: Path, second: Path) -> bool:
    a, b = read(first), read(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def furthest(first: Path, second: Path) -> float:
    a, b = read(first), read(second)
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


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


@pytest.mark.distributed
def test_all_begin_with_the_same_bits_and_no_rank_holds_the_whole(tmp_path: Path) -> None:
    for ranks, strategy in ((1, "none"), (2, "ddp"), (2, "fsdp"), (4, "fsdp"), (4, "hybrid")):
        out = tmp_path / f"{strategy}-{ranks}"
        words = ("tests/unit/training/sharded.py", str(out), strategy)
        run_alone(*words) if strategy == "none" else run_ranks(ranks, *words)
        assert equal(tmp_path / "none-1" / "initial", out / "initial"), strategy
        for path in out.glob("rank-*.json"):
            held = json.loads(path.read_text())
            if strategy != "ddp":  # whose buckets are as large as all gradients
                # A few numbers more: the ranks of the mesh.
                assert held["most"] <= held["share"] + held["largest"] + 16, (ranks, held)
            if strategy in ("fsdp", "hybrid"):
                assert held["most"] < 0.8 * held["whole"], (ranks, held)


@pytest.mark.distributed
def test_no_file_of_a_rank_holds_a_whole_tensor(tmp_path: Path) -> None:
    run_ranks(2, TOY, str(tmp_path), "distributed=fsdp", "ema_decay=0.9", "steps=14")
    checkpoint = list_checkpoints(tmp_path)[-1]
    for directory in (checkpoint, tmp_path / "final", tmp_path / "best"):
        names = {path.name for path in directory.glob("model*")}
        parts = {f"model-{rank:05d}-of-00002.safetensors" for rank in (1, 2)}
        assert names == {"model.index.json", *parts} and not undamaged([directory])[1]
    for kind in ("model", "optimizer", "ema"):
        index = json.loads((checkpoint / f"{kind}.index.json").read_text())
        assert any(len(entry["pieces"]) == 2 for entry in index.values())
        for name, entry in index.items():
            if entry["shape"] and entry["shape"][0] > 1:
                assert [piece["rows"][0] for piece in entry["pieces"]] != [0], (kind, name)
    content = bytearray((tmp_path / "best" / "model-00002-of-00002.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "best" / "model-00002-of-00002.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model-00002-of-00002.*undamaged are final"):
        load_weights(Toy().build_model(), tmp_path)
    load_weights(Toy().build_model(), tmp_path, "final")


def cut(run: Path, step: int) -> None:
    """Take a run back to a step."""
    for path in (run / "final", run / "averaged", *list_checkpoints(run)):
        if path.name in ("final", "averaged") or int(path.name[-8:]) > step:
            shutil.rmtree(path)


SETTINGS: dict[str, Any] = {
    "clip_norm": 0.5, "ema_decay": 0.9, "keep_checkpoints": 9, "average_checkpoints": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process trains, from beginning to end."""
    run = tmp_path_factory.mktemp("one") / "run"
    run_toy(run, task=Toy(ToyData(wrong_way=True)), **SETTINGS)
    return run


@pytest.mark.distributed
@pytest.mark.parametrize("async_save", [0, 1])
def test_any_number_of_ranks_goes_on_from_any_other(
    tmp_path: Path, one: Path, async_save: int
) -> None:
    """2 sharded, 4 sharded, 1, 2 copies: as one process from beginning to end, to 1e-5."""
    task = Toy(ToyData(wrong_way=True))
    words = [*(f"{key}={value}" for key, value in SETTINGS.items()), f"async_save={async_save}"]
    run = tmp_path / "many"
    run_ranks(2, TOY, str(run), *words, "wrong_way=1", "distributed=fsdp")
    assert furthest(one / "final", run / "final") < 1e-5
    assert furthest(one / "averaged", run / "averaged") < 1e-5

    again = tmp_path / "again"
    shutil.copytree(run, again)
    cut(again, 14)
    run_ranks(2, TOY, str(again), *words, "wrong_way=1", "distributed=fsdp")
    assert equal(run / "final", again / "final"), "resumed on as many ranks: the same bits"

    for step, ranks, strategy in ((7, 4, "fsdp"), (14, 1, "none"), (21, 2, "ddp"), (28, 2, "fsdp")):
        cut(run, step)
        if strategy == "none":
            run_toy(run, resume=True, task=task, **SETTINGS)
        else:
            run_ranks(ranks, TOY, str(run), *words, "wrong_way=1", f"distributed={strategy}")
        for name in ("final", "averaged"):
            assert furthest(one / name, run / name) < 1e-5, (ranks, strategy)


@pytest.mark.distributed
def test_copies_in_shards(tmp_path: Path, one: Path) -> None:
    """2 copies in 2 shards are as one process; any number of ranks goes on, and the other way."""
    task = Toy(ToyData(wrong_way=True))
    words = [*(f"{key}={value}" for key, value in SETTINGS.items()), "wrong_way=1"]
    hybrid, run = ["distributed=hybrid", "shard_size=2"], tmp_path / "many"
    run_ranks(4, TOY, str(run), *words, *hybrid)
    for name in ("final", "averaged"):
        assert furthest(one / name, run / name) < 1e-5
    for row, expected in zip(losses(run), losses(one), strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    # One copy is written, each rank's rows by the rank's place in it.
    for directory in (*list_checkpoints(run), run / "final", run / "best"):
        parts = {f"model-{rank:05d}-of-00002.safetensors" for rank in (1, 2)}
        assert {p.name for p in directory.glob("model*")} == {"model.index.json", *parts}
        assert not undamaged([directory])[1]

    for step, ranks, how in (
        (21, 2, ["distributed=ddp"]),
        (14, 4, hybrid),
        (7, 4, ["distributed=fsdp"]),
        (7, 1, []),
    ):
        cut(run, step)
        if ranks == 1:
            run_toy(run, resume=True, task=task, **SETTINGS)
        else:
            run_ranks(ranks, TOY, str(run), *words, *how)
        for name in ("final", "averaged"):
            assert furthest(one / name, run / name) < 1e-5, (ranks, how)
    cut(run, 7)  # of the sharded, by ranks that are copies in shards
    run_ranks(4, TOY, str(run), *words, *hybrid)
    assert furthest(one / "final", run / "final") < 1e-5


def losses(run: Path) -> list[dict[str, float]]:
    timed = ("rows_per_second", "flops_utilisation", "data_wait_seconds")
    return [{k: v for k, v in row.items() if k not in timed} for row in read_metrics(run)]
