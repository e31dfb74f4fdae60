"""Worker processes change neither order nor content, and end with the main process."""

import json
import mmap
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from magneto.data import workers
from magneto.data.stream import BatchStream, example_stream, named_tensors, shuffled
from magneto.data.workers import AHEAD, BatchError, BatchPrefetcher, share
from tests.commands import wait_until
from tests.unit.data.test_stream import nested

BATCH = 8
SELF = Path("/proc/self/maps")


def in_order(count: int, size: int, make: Callable[[list[int]], Any]) -> BatchStream:
    def plan(step: int) -> list[int]:
        return [number % count for number in range(step * size, (step + 1) * size)]

    return BatchStream(plan, make, lambda piece: f"examples {', '.join(map(str, piece))}")


def shuffled_rows() -> BatchStream:
    def make(numbers: np.ndarray, draws: np.ndarray) -> list[list[float]]:
        keys = zip(draws, numbers, strict=True)
        noise = [np.random.default_rng([3, *key]).random() for key in keys]
        return [numbers.tolist(), noise]

    return example_stream(shuffled(37, BATCH, 1), make)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_number_of_workers_changes_nothing() -> None:
    expected = [shuffled_rows().batch(step, 4, [1, 2]) for step in range(12)]
    for count, first in ((0, 7), (1, 0), (2, 7), (4, 0)):
        with closing(BatchPrefetcher(shuffled_rows(), 4, [1, 2], num_workers=count)) as batches:
            taken = list(islice(batches.start(first), 12 - first))
        assert taken == expected[first:], (count, first)


def test_a_killed_worker_is_an_error_that_names_its_step() -> None:
    outlived = mmap.mmap(-1, 1)  # shared with the workers

    def make(numbers: list[int]) -> list[int]:
        if 24 in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        if {20, 24} & {*numbers}:  # the step before, which is awaited, is being made
            time.sleep(20)
            outlived[0] = 1
        return numbers

    with closing(BatchPrefetcher(in_order(64, 4, make), 1, [0], num_workers=2)) as batches:
        taken = batches.start()
        processes = [process.pid for process in batches.processes]
        with pytest.raises(BatchError) as caught:
            for _ in taken:
                pass
    found = re.fullmatch(
        r"the data worker with process ID (\d+) was killed by SIGKILL at the batch of step 7 "
        r"\(examples 24, 25, 26, 27\); if memory ran out.*",
        str(caught.value),
    )
    assert found and int(found[1]) in processes
    assert not outlived[0], "closing does not wait for what a worker does"


@pytest.mark.parametrize(("num_workers", "error", "words"), [
    (0, OSError("photo.jpg: not an image"), "example 5: photo.jpg: not an image"),
    (2, KeyError("label"), "example 5: KeyError: 'label'"),
])  # fmt: skip
def test_an_error_names_its_example(num_workers: int, error: Exception, words: str) -> None:
    def make(numbers: np.ndarray, draws: np.ndarray) -> np.ndarray:
        if 5 in numbers:
            raise error
        return numbers

    stream = example_stream(shuffled(20, 4, 1), make)
    batches = BatchPrefetcher(stream, 1, [0], num_workers=num_workers)
    with closing(batches), pytest.raises(ValueError) as caught:
        for _ in batches.start():
            pass
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_batch_that_cannot_be_sent_is_an_error() -> None:
    stream = in_order(9, 4, lambda _: lambda: 0)
    batches = BatchPrefetcher(stream, 1, [0], num_workers=1)
    words = r"making the batch of step 1 failed: .*pickle"
    with closing(batches), pytest.raises(BatchError, match=words):
        next(batches.start())


def test_waiting_is_measured_and_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by 3 while a batch is made, and by 100 while it is used."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(workers, "time", clock)
    batches = BatchPrefetcher(in_order(9, 1, list), 1, [0])

    def slow(step: int) -> Future:
        future: Future = Future()
        future.result = lambda: setattr(clock, "now", clock.now + 3)  # type: ignore[method-assign]
        return future

    monkeypatch.setattr(batches, "_ask", slow)
    taken = batches.start()
    for _ in range(4):
        next(taken)
        clock.now += 100
    assert batches.read_wait_seconds() == 4 * 3
    assert batches.read_wait_seconds() == 0
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

    def make(numbers: list[int]) -> torch.Tensor:
        made[numbers[0]] = 1
        return torch.tensor(numbers)

    with closing(
        BatchPrefetcher(in_order(64, 1, make), 1, [0], num_workers=num_workers)
    ) as batches:
        most = AHEAD * num_workers - 1
        taken = batches.start()
        for count in range(1, 20):
            next(taken)
            wait_until(lambda wanted=count + most: sum(made[:]) >= wanted)
            assert sum(made[:]) == count + most
        if SELF.exists():  # nothing of a batch stays, neither here nor in a worker
            for process in (os.getpid(), *(worker.pid for worker in batches.processes)):
                mapped = Path(f"/proc/{process}/maps").read_text().count("magneto-batch")
                assert mapped <= most + 2 and len(open_batches(process)) <= most + 2


def test_signals_are_left_to_the_main_process() -> None:
    stream = in_order(37, BATCH, list)
    with closing(BatchPrefetcher(stream, 1, [0], num_workers=2)) as batches:
        taken = batches.start()
        found = [next(taken)]
        processes = [worker.pid for worker in batches.processes]
        for process in processes:
            os.kill(process, signal.SIGINT)
            os.kill(process, signal.SIGTERM)
        found += [next(taken) for _ in range(11)]
        assert len(processes) == 2 and all(map(alive, processes))
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*workers.SIGNALS}, "nor held up"
    assert not any(map(alive, processes))
    assert found == [stream.batch(step) for step in range(12)]


def test_a_worker_has_one_thread_and_no_gradients_and_ends_with_the_main_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The main process is killed; the worker has the writing end of a pipe as long as it lives."""

    def make(numbers: list[int]) -> list[Any]:
        tokenizers = os.environ["TOKENIZERS_PARALLELISM"]
        return [os.getpid(), torch.get_num_threads(), torch.is_grad_enabled(), tokenizers]

    def train() -> None:
        torch.set_num_threads(3)
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        batches = BatchPrefetcher(in_order(9, 1, make), 1, [0], num_workers=1)
        os.write(end, json.dumps(next(batches.start())[0]).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    clock = SimpleNamespace(sleep=lambda _: time.sleep(0.01), perf_counter=time.perf_counter)
    monkeypatch.setattr(workers, "time", clock)
    start, end = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    os.close(end)
    process.join()
    worker, *found = json.loads(os.read(start, 100))
    try:
        assert found == [1, False, "false"]
        assert select([start], [], [], 60)[0] and os.read(start, 1) == b"", "it has ended"
    finally:
        os.close(start)
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_shared_memory_keeps_structure_types_and_strides() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    batch = {
        **nested(), "image": image, "empty": torch.zeros(0, 3), "one": torch.tensor(2.0),
        "flags": torch.tensor([True, False, True]), "half": torch.arange(5).bfloat16(),
    }  # fmt: skip
    shared = share(batch)
    found = shared.attach()
    os.close(shared.file)
    given, taken = named_tensors(batch), named_tensors(found)
    assert found["rows"].lengths == batch["rows"].lengths and given.keys() == taken.keys()
    for name, tensor in given.items():
        torch.testing.assert_close(taken[name], tensor, rtol=0, atol=0, check_stride=True)
