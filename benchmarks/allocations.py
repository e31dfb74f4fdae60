"""Bytes that torch's allocator has given out, by the profiler's record of every allocation."""

from __future__ import annotations

from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

MARK = "benchmarks: counted from here"


def recorded() -> profile:
    """Return a profiler that notes every allocation on the CPU while it is entered."""
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def count_from_here() -> None:
    """Begin what is counted, again if it was begun before."""
    with record_function(MARK):
        pass


def most_allocated(record: profile) -> int:
    """Return the most bytes that were given out at once since `count_from_here`.

    What was given out before the profiler was entered is not known to it, and not counted.
    """
    assert record.profiler is not None
    events: Any = record.profiler.kineto_results.events()  # pyright: ignore
    last = max(event.start_ns() for event in events if event.name() == MARK)
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for when, size in changes:
        now += size
        most = max(most, now) if when >= last else most
    return most
