"""Training by processes: killed at any moment, on several ranks, by the command."""

import json
import os
import random
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.cli import main
from magneto.runs import load_weights
from magneto.training.config import TrainingConfig
from magneto.training.distributed import (
    World,
    glibc,
    join_world,
    keep_freed_memory,
    replicate_model,
    shard_model,
)
from magneto.training.evaluation import evaluate
from magneto.training.logging import read_metrics
from magneto.weights import find_weights, list_checkpoints, undamaged
from tests.commands import answer
from tests.evaluating import measured
from tests.problems import listed
from tests.ranks import run_alone, run_ranks, start
from tests.system.conftest import SMALL
from tests.unit.training.toy import (
    Moving,
    Toy,
    ToyData,
    config,
    equal,
    flip_a_bit,
    furthest,
    rows,
    run_toy,
    same,
    toy_model,
)

TOY = "tests/unit/training/toy.py"


@pytest.mark.parametrize(
    ("kills", "async_save"),
    [
        pytest.param(3, 0, marks=pytest.mark.distributed),
        pytest.param(20, 0, marks=pytest.mark.slow),
        pytest.param(20, 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_again_and_again(tmp_path: Path, kills: int, async_save: int) -> None:
    """Kill -9 it at random moments; it must end as if nothing had happened."""
    extra = ["pause=0.03", "save_every=3", "steps=40", f"async_save={async_save}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_alone(TOY, str(whole), *extra)
    chance = random.Random(0)
    for _ in range(kills):
        process = start([TOY, str(cut), *extra], os.environ, tmp_path / "output")
        started = time.time()
        environment_file = cut / "environment.json"
        while process.exitcode is None:
            if environment_file.exists() and environment_file.stat().st_mtime > started:
                break  # it is about to take steps
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 1.2))
        process.kill()
        process.join()
    run_alone(TOY, str(cut), *extra)
    assert same(whole, cut)


@pytest.mark.distributed
def test_all_begin_with_the_same_bits_and_no_rank_holds_the_whole(tmp_path: Path) -> None:
    for ranks, strategy in ((1, "none"), (2, "ddp"), (2, "fsdp"), (4, "fsdp"), (4, "hybrid")):
        out = tmp_path / f"{strategy}-{ranks}"
        words = ("tests/system/initial_weights.py", str(out), strategy)
        run_alone(*words) if strategy == "none" else run_ranks(ranks, *words)
        assert equal(tmp_path / "none-1" / "initial", out / "initial"), strategy
        for path in out.glob("rank-*.json"):
            held = json.loads(path.read_text())
            if strategy != "ddp":  # whose buckets are as large as all gradients
                # A few numbers more: the ranks of the mesh.
                assert held["most"] <= held["share"] + held["largest"] + 16, (ranks, held)
            if strategy in ("fsdp", "hybrid"):
                assert held["most"] < 0.8 * held["whole"], (ranks, held)


def check_parts(*directories: Path) -> None:
    """Fail unless the model in each directory is written in two parts, whole."""
    for directory in directories:
        names = {path.name for path in directory.glob("model*")}
        parts = {f"model-{rank:05d}-of-00002.safetensors" for rank in (1, 2)}
        assert names == {"model.index.json", *parts} and not undamaged([directory])[1]


@pytest.mark.distributed
def test_no_file_of_a_rank_holds_a_whole_tensor(tmp_path: Path) -> None:
    run_ranks(2, TOY, str(tmp_path), "distributed=fsdp", "ema_decay=0.9", "steps=14")
    checkpoint = list_checkpoints(tmp_path)[-1]
    check_parts(checkpoint, tmp_path / "final", tmp_path / "best")
    for kind in ("model", "optimizer", "ema"):
        index = json.loads((checkpoint / f"{kind}.index.json").read_text())
        assert any(len(entry["pieces"]) == 2 for entry in index.values())
        for name, entry in index.items():
            if entry["shape"] and entry["shape"][0] > 1:
                assert [piece["rows"][0] for piece in entry["pieces"]] != [0], (kind, name)
    flip_a_bit(tmp_path / "best" / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"model-00002-of-00002.*undamaged weights: final"):
        find_weights(tmp_path)
    load_weights(Toy().build_model(), find_weights(tmp_path, "final"))


# What one process trains from beginning to end, and any number of ranks as well as it.
SETTINGS: dict[str, Any] = {
    "clip_norm": 0.5, "ema_decay": 0.9, "keep_checkpoints": 9, "average_checkpoints": 3,
}  # fmt: skip
WORDS = [*(f"{key}={value}" for key, value in SETTINGS.items()), "wrong_way=1"]
DDP, FSDP, HYBRID = (["distributed=ddp"], ["distributed=fsdp"],
                     ["distributed=hybrid", "shard_size=2"])  # fmt: skip


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    run_toy(run, task=Toy(ToyData(wrong_way=True)), gradient_accumulation_steps=2, **SETTINGS)
    return run


def train_on(ranks: int, run: Path, *how: str) -> None:
    """Begin a run on ranks, or go on with it; 1 is this process."""
    if ranks == 1:
        run_toy(run, resume=True, task=Toy(ToyData(wrong_way=True)), **SETTINGS)
    else:
        run_ranks(ranks, TOY, str(run), *WORDS, *how)


def check(run: Path, one: Path) -> None:
    for name in ("final", "averaged"):
        assert furthest(one / name, run / name) < 1e-5
    for row, expected in zip(rows(run), rows(one), strict=True):
        assert row == pytest.approx(expected, abs=1e-5)


def cut(run: Path, step: int) -> None:
    """Take a run back to a step."""
    for path in (run / "final", run / "averaged", *list_checkpoints(run)):
        if path.name in ("final", "averaged") or int(path.name[-8:]) > step:
            shutil.rmtree(path)


@pytest.mark.distributed
@pytest.mark.parametrize("async_save", [0, 1])
def test_any_number_of_ranks_goes_on_from_any_other(
    tmp_path: Path, one: Path, async_save: int
) -> None:
    """2 sharded, 4 sharded, 1, 2 copies: as one process from beginning to end, to 1e-5."""
    saving, run, again = f"async_save={async_save}", tmp_path / "many", tmp_path / "again"
    train_on(2, run, *FSDP, saving)
    check(run, one)
    shutil.copytree(run, again)
    cut(again, 14)
    train_on(2, again, *FSDP, saving)
    assert equal(run / "final", again / "final"), "resumed on as many ranks: the same bits"
    for step, ranks, how in ((7, 4, FSDP), (14, 1, []), (21, 2, DDP), (28, 2, FSDP)):
        cut(run, step)
        train_on(ranks, run, *how, saving)
        check(run, one)


@pytest.mark.distributed
def test_copies_in_shards(tmp_path: Path, one: Path) -> None:
    """2 copies in 2 shards are as one process; any number of ranks goes on, and the other way."""
    run = tmp_path / "many"
    train_on(4, run, *HYBRID)
    check(run, one)
    # One copy is written, each rank's rows by the rank's place in it.
    check_parts(*list_checkpoints(run), run / "final", run / "best")
    # The last goes on from what was sharded, as copies in shards.
    later = [(21, 2, DDP), (14, 4, HYBRID), (7, 4, FSDP), (7, 4, HYBRID), (7, 1, [])]
    for step, ranks, how in later:
        cut(run, step)
        train_on(ranks, run, *how)
        check(run, one)


@pytest.mark.distributed
def test_ranks_agree_on_values_of_data_and_list_what_all_found(tmp_path: Path) -> None:
    run_toy(tmp_path / "one", task=Moving(), steps=12)
    run_ranks(2, TOY, str(tmp_path / "two"), "task=moving", "distributed=ddp", "steps=12")
    assert furthest(tmp_path / "one" / "final", tmp_path / "two" / "final") < 1e-5
    run_ranks(2, TOY, str(tmp_path / "run"), "task=noting", "distributed=ddp", "steps=4")
    found = listed(tmp_path / "run")
    assert sorted(name for _, name, _ in found) == ["of all", "of rank 0", "of rank 1"]


def test_the_command_repeats_the_last_evaluation_of_training(
    book: Path, tmp_path: Path, capsys
) -> None:
    """Bit for bit, on a CPU; in bf16 the numbers are others than in fp32."""
    words = ["train", "causal-lm/tiny", "--data", str(book), "--out", str(tmp_path / "run"), *SMALL]
    words += ["--training.evaluate_limit", "5", "--training.precision", "bf16"]
    assert main(words) == 0
    trained = [row for row in read_metrics(tmp_path / "run") if "validation_loss" in row][-1]
    command = ["evaluate", tmp_path / "run", "--weights", "final", "--limit", "5"]
    found = answer(capsys, *command)
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert found[name] == trained[f"validation_{name}"]
    other = answer(capsys, *command, "--training.precision", "fp32")
    assert other["loss"] != found["loss"]
    assert other["loss"] == pytest.approx(found["loss"], rel=0.02)


def resident() -> int:
    """Return this process's bytes in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(glibc() is None, reason="needs glibc")
def test_a_freed_block_stays_until_the_end() -> None:
    block, libc = 128 << 20, glibc()
    assert libc is not None
    libc.malloc_trim(0)  # room that the heap has for the block is not in memory now
    before = resident()

    def kept() -> float:
        torch.ones(block // 4)
        return (resident() - before) / block

    assert kept() < 0.2
    with keep_freed_memory(torch.device("cpu"), {}) as done:
        assert done and kept() > 0.8
    assert (resident() - before) / block < 0.2


LIMITS = (None, 1, 3, 99)


def evaluate_toy(settings: TrainingConfig) -> None:
    """Be one of several ranks; the first prints the metrics under each limit."""
    with join_world(settings) as world:
        found = metrics_by_limit(world)
        if world.is_main_process:
            print(json.dumps(found))


def metrics_by_limit(world: World) -> list[dict[str, float]]:
    # A function, so that the model is gone before the ranks part: torch may wait for ever where a
    # DistributedDataParallel is the last that holds their group.
    model = replicate_model(shard_model(toy_model(), world), world)
    return [evaluate(Toy(), model, world, "fp32", limit).metrics for limit in LIMITS]


@pytest.mark.distributed
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 3), ("fsdp", 2)])
def test_ranks_agree_with_one_process(kind: str, ranks: int) -> None:
    """With five batches, and with fewer than ranks; predictions agree exactly."""
    output = run_ranks(ranks, __file__, kind).splitlines()
    found = json.loads(next(line for line in output if line.startswith("[{")))
    for theirs, limit in zip(found, LIMITS, strict=True):
        mine = measured(Toy(), toy_model(), limit)
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5)
        assert theirs["sign"] == mine["sign"]


if __name__ == "__main__":
    evaluate_toy(config(distributed=sys.argv[1]))
