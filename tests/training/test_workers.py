"""Worker processes change neither order nor content, and end with the main process."""

import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from magneto.data.batching import NumberedRows, ShuffledExamples, StreamedWindows
from magneto.data.length_buckets import LengthBuckets
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.training.hooks import Hook, Stop
from magneto.training.loop import train
from magneto.training.metrics_logger import read_metrics
from magneto.training.prefetch import AHEAD as READY
from magneto.training.prefetch import Prefetch
from magneto.training.workers import AHEAD, BatchError
from tests.training.test_shared_memory import same
from tests.translation import test_batching as translation

BATCH = 8
SELF = Path("/proc/self/maps")
TIMED = ("_per_second", "flops_utilisation", "data_wait_seconds")


def rows(numbers: np.ndarray) -> dict[str, torch.Tensor]:
    return {"numbers": torch.from_numpy(numbers), "halves": torch.from_numpy(numbers) / 2}


def shuffled() -> ShuffledExamples:
    return ShuffledExamples(37, BATCH, 1, rows)


class InOrder(ShuffledExamples):
    def order(self, epoch: int) -> np.ndarray:
        return np.arange(self.count)


def buckets() -> LengthBuckets:
    return LengthBuckets(np.arange(37) % 11, BATCH, 1, rows)


def streamed() -> StreamedWindows:
    def encode(texts: list[str]) -> np.ndarray:
        return np.frombuffer("".join(texts).encode(), np.uint8).astype(np.int64)

    documents = [f"document {i} " + "abc" * i for i in range(23)]
    return StreamedWindows(lambda: iter(documents), encode, 16, 4, BATCH, 5)


def numbered() -> NumberedRows:
    def noise(piece: dict[str, torch.Tensor], numbers: np.ndarray) -> torch.Tensor:
        draws = [np.random.default_rng([3, number]).random() for number in numbers]
        return piece["halves"] + torch.tensor(draws)

    return NumberedRows(shuffled(), BATCH, noise)


def groups() -> Any:
    return translation.stream(batch_size=BATCH, block=500)


KINDS = {"shuffled": shuffled, "buckets": buckets, "streamed": streamed, "numbered": numbered,
         "groups": groups}  # fmt: skip


def take(stream: Any, steps: int, num_workers: int) -> list:
    batches = Prefetch(stream, 4, [1, 2], num_workers=num_workers)
    try:
        return [item for item, _ in zip(batches, range(steps), strict=False)]
    finally:
        batches.close()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_workers_changes_nothing(kind: str) -> None:
    expected = take(KINDS[kind](), 12, 0)
    for num_workers in (1, 2, 4):
        assert same(take(KINDS[kind](), 12, num_workers), expected), num_workers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 1), (0, 2), (2, 0)])
def test_a_resumed_stream_goes_on_with_any_number_of_workers(
    kind: str, before: int, after: int
) -> None:
    expected = take(KINDS[kind](), 12, 0)
    first = take(KINDS[kind](), 7, before)
    resumed = KINDS[kind]()
    resumed.load_state_dict(json.loads(json.dumps(first[-1][1])))
    assert same(first + take(resumed, 5, after), expected)


def weights_of(recipe: str, run: Path, stop_at: int = 0, resume: bool = False, **changes: Any):
    """Train the first steps of a tiny recipe; return its metrics and last weights."""
    small = {
        "training.steps": 8, "training.batch_size": 8, "training.log_every": 1,
        "training.save_every": 3, "training.evaluate_every": 0, "training.evaluate_limit": 1,
        "training.device": "cpu", "training.tensorboard": False, "model.layers": 1,
        "training.gradient_accumulation_steps": 2,
    }  # fmt: skip
    loaded = load_recipe(recipe, {**small, **changes})

    def stop(trainer: Any) -> None:
        trainer.stop = Stop("interrupted")

    hooks = [Hook(stop_at, stop)] if stop_at else []
    task, report = loaded.build_task(), ProgressBars(quiet=True)
    train(task, loaded.training, run, seed=1, resume=resume, hooks=hooks, report=report)
    if stop_at:
        return None
    metrics = [
        {key: value for key, value in row.items() if not key.endswith(TIMED)}
        for row in read_metrics(run)
    ]
    return metrics, load_file(run / "final" / "model.safetensors")


@pytest.mark.parametrize(
    "recipe",
    ["image-classification/tiny", pytest.param("masked-lm/tiny", marks=pytest.mark.distributed)],
)
def test_the_loop_gives_equal_bits(recipe: str, tmp_path: Path) -> None:
    if recipe.startswith("image"):
        pytest.importorskip("sklearn")
    changes: dict[str, Any] = {}
    if recipe == "masked-lm/tiny":
        lines = (f"Line {number} of {'some ' * (number % 9)}text.\n\n" for number in range(2000))
        (tmp_path / "lines.txt").write_text("".join(lines))
        changes = {"data.tokenizer": "bytes", "data.source": str(tmp_path / "lines.txt")}
    expected = weights_of(recipe, tmp_path / "0", **changes)
    for count in (1, 2, 4):
        changes["training.num_workers"] = count
        assert same(weights_of(recipe, tmp_path / str(count), **changes), expected), count
    changes["training.num_workers"] = 2
    weights_of(recipe, tmp_path / "cut", stop_at=5, **changes)
    changes["training.num_workers"] = 1
    assert same(weights_of(recipe, tmp_path / "cut", resume=True, **changes), expected)


def test_a_dead_worker_is_an_error_that_names_the_step() -> None:
    batches = Prefetch(shuffled(), 1, [0], num_workers=2)
    taken = batches.start(100)
    next(taken)
    process = batches.makers.processes[1]
    os.kill(process, signal.SIGKILL)
    with pytest.raises(BatchError) as caught:
        for _ in taken:
            pass
    found = str(caught.value)
    assert (
        f"data worker 1 (process {process}) was ended by SIGKILL at the batch of step 10" in found
    )
    assert re.search(r"of step 10[0-9] \(examples \d+, \d+, .*\); .* memory", found)
    assert "\n" not in found
    batches.close()
    assert not batches._thread.is_alive()


def test_batches_made_before_a_death_are_given_out() -> None:
    def make(numbers: np.ndarray) -> np.ndarray:
        if 24 in numbers:
            os._exit(3)
        return numbers

    stream = InOrder(64, 4, 1, make)
    batches, found = Prefetch(stream, 1, [0], num_workers=2), []
    with pytest.raises(
        BatchError, match=r"exited with 3 at the batch of step 7 \(examples 24, 25, 26, 27\);"
    ):
        found.extend(pieces[0][0] for pieces, _ in batches)
    batches.close()
    assert found == [0, 4, 8, 12, 16, 20]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("photo.jpg: not an image"), "example 5: photo.jpg: not an image"),
        (KeyError("label"), "example 5: KeyError: 'label'"),
    ],
)
def test_an_error_names_its_example(error: Exception, words: str, num_workers: int) -> None:
    def make(numbers: np.ndarray) -> np.ndarray:
        if 5 in numbers:
            raise error
        return numbers

    batches = Prefetch(ShuffledExamples(20, 4, 1, make), 1, [0], num_workers=num_workers)
    with pytest.raises(ValueError) as caught:
        for _ in batches:
            pass
    assert words in str(caught.value) and "\n" not in str(caught.value)
    batches.close()


def test_errors_of_other_streams_name_theirs() -> None:
    def fail(*given: Any) -> Any:
        raise ValueError("no")

    rows_failing = NumberedRows(shuffled(), BATCH, fail)
    with pytest.raises(ValueError, match="rows 0 to 7 since the start: no"):
        rows_failing.next(1, [0])
    text = streamed()
    text.encode = fail
    with pytest.raises(ValueError, match=r"document [0-3] of epoch 0: no"):
        text.next(1, [0])
    sentences = groups()
    sentences.maker.make = fail
    with pytest.raises(ValueError, match=r"sentence \d+ of \w\w-\w\w: no"):
        sentences.next(1, [0])
    together = ShuffledExamples(9, 4, 1, lambda numbers: fail() if len(numbers) > 1 else numbers)
    with pytest.raises(ValueError, match=r"example \d to example \d, together: no"):
        together.next(1, [0])


def test_every_stream_names_what_comes_next() -> None:
    for kind, make in KINDS.items():
        stream, untouched = make(), make()
        name = stream.name_next(4, [1, 2])
        assert same(stream.next(4, [1, 2]), untouched.next(4, [1, 2])), kind
        assert stream.name_next(4, [1, 2]) != name
    assert InOrder(99, 40, 1, rows).name_next(2, [1]).startswith("examples 20, 21, 22, ")
    assert InOrder(99, 40, 1, rows).name_next(1, [0]).endswith(", 31 and 8 more")
    assert re.match(r"sentences \d+ of \w\w-\w\w, ", groups().name_next(1, [0]))
    assert streamed().name_next(1, [0]) == "windows from 0 on after document 0 of epoch 0"


def test_a_batch_that_cannot_be_sent_is_an_error() -> None:
    batches = Prefetch(ShuffledExamples(9, 4, 1, lambda _: lambda: 0), 1, [0], num_workers=1)
    with pytest.raises(BatchError, match=r"the batch of step 1 could not be made: .*pickle"):
        next(iter(batches))
    batches.close()


def open_batches(process: int) -> list[str]:
    found = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.append(os.readlink(file))
    return [name for name in found if "magneto-batch" in name]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_memory_is_bounded(num_workers: int) -> None:
    made = mmap.mmap(-1, 64)  # shared with the workers

    def make(numbers: np.ndarray) -> torch.Tensor:
        made[numbers[0]] = 1
        return torch.from_numpy(numbers)

    batches = Prefetch(InOrder(64, 1, 1, make), 1, [0], num_workers=num_workers)
    most = AHEAD * num_workers + READY
    taken = batches.start(0)
    for count in range(1, 20):
        next(taken)
        wait_until(lambda wanted=count + most: sum(made[:]) >= wanted)
        assert sum(made[:]) == count + most
    if SELF.exists():  # nothing of a batch stays, neither here nor in a worker
        for process in (os.getpid(), *batches.makers.processes.values()):
            mapped = Path(f"/proc/{process}/maps").read_text().count("magneto-batch")
            assert mapped <= most + 1 and len(open_batches(process)) <= most + 1
    batches.close()


def test_signals_are_left_to_the_main_process() -> None:
    batches = Prefetch(shuffled(), 1, [0], num_workers=2)
    taken = iter(batches)
    first = [next(taken)]
    for process in batches.makers.processes.values():
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    first += [next(taken) for _ in range(11)]
    processes = list(batches.makers.processes.values())
    assert len(processes) == 2 and all(map(alive, processes))
    batches.close()
    assert not any(map(alive, processes))
    batches = Prefetch(shuffled(), 1, [0])
    assert same(first, [item for item, _ in zip(batches, range(12), strict=False)])
    batches.close()


def wait_until(true: Callable[[], bool], looks: int = 3000) -> None:
    for _ in range(looks):
        if true():
            return
        time.sleep(0.02)
    pytest.fail("it never came")


def children(process: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def start_training(run: Path, *words: str) -> subprocess.Popen:
    """Start `magneto train` as a terminal does, in a process group of its own; wait for steps."""
    command = [sys.executable, "-m", "magneto", "train", "image-classification/tiny"]
    settings = ["--training.device", "cpu", "--training.log_every", "1", "--model.layers", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(run), "--training.num_workers", "2", *settings, *words],
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_a_run_and_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("sklearn")
    process = start_training(tmp_path / "run", "--training.steps", "100000")
    os.killpg(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "go on with: magneto train --resume" in said
    assert said.count("stopping after this step") == 1 and "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    reached = json.loads((tmp_path / "run" / "result.json").read_text())["step"]
    command = [sys.executable, "-m", "magneto", "train", "--resume", str(tmp_path / "run")]
    more = ["--training.steps", str(reached + 3)]
    subprocess.run([*command, *more], check=True, capture_output=True)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "finished" and result["step"] == reached + 3


@pytest.mark.slow
@pytest.mark.skipif(not SELF.exists(), reason="finds the workers in /proc")
def test_workers_end_with_a_killed_main_process(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    process = start_training(tmp_path / "run", "--training.steps", "100000")
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not any(map(running, workers)))


def running(process: int) -> bool:
    """Return whether a process that is not ours runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_dead_worker_ends_the_command_with_one_line(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    process = start_training(tmp_path / "run", "--training.steps", "100000")
    worker = children(process.pid)[0]
    os.kill(worker, signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and "Traceback" not in said
    assert f"magneto: data worker 0 (process {worker}) was ended by SIGKILL at the batch of" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
