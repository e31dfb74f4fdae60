"""Batches made ahead on a thread."""

import time

import pytest

from magneto.training.prefetch import Prefetch


class Numbers:
    def __init__(self, pause: float = 0.0, last: int = 1000) -> None:
        self.position, self.pause, self.last = 0, pause, last

    def next(self, parts, wanted):
        time.sleep(self.pause)
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


def test_waiting_is_measured() -> None:
    batches = Prefetch(Numbers(pause=0.05), 1, [0])
    taken = iter(batches)
    for _ in range(4):
        next(taken)
    assert 0.15 < batches.read_waited() < 2
    assert batches.read_waited() == 0
    batches.close()


def test_a_failing_stream_fails_the_consumer() -> None:
    batches = Prefetch(Numbers(last=3), 1, [0])
    with pytest.raises(ValueError, match="the disk is gone"):
        list(batches)
    batches.close()
