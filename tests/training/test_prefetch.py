"""Batches made ahead on a thread."""

from types import SimpleNamespace

import pytest

from magneto.training import prefetch
from magneto.training.prefetch import Prefetch


class Numbers:
    def __init__(self, last: int = 1000) -> None:
        self.position, self.last = 0, last

    def next(self, parts, wanted):
        if self.position == self.last:
            raise ValueError("the disk is gone")
        self.position += 1
        return [self.position * 10 + piece for piece in wanted]

    def name_next(self, parts, wanted):
        return f"number {self.position + 1}"

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_each_batch_comes_with_the_state_after_it() -> None:
    batches = Prefetch(Numbers(), 4, [2, 3])
    for position, (pieces, state) in zip(range(1, 20), batches, strict=False):
        assert pieces == [position * 10 + 2, position * 10 + 3]
        assert state == {"position": position}
    batches.close()
    assert not batches._thread.is_alive()


def test_waiting_is_measured_and_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by 3 while a batch is waited for, and by 100 while it is used."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(prefetch, "time", clock)
    batches = Prefetch(Numbers(), 1, [0])
    get = batches._queue.get

    def slow_get():
        clock.now += 3
        return get()

    monkeypatch.setattr(batches._queue, "get", slow_get)
    taken = iter(batches)
    for _ in range(4):
        next(taken)
        clock.now += 100
    assert batches.read_waited() == 4 * 3
    assert batches.read_waited() == 0
    batches.close()


def test_a_failing_stream_fails_the_consumer() -> None:
    batches = Prefetch(Numbers(last=3), 1, [0])
    with pytest.raises(ValueError, match="the disk is gone"):
        list(batches)
    batches.close()
