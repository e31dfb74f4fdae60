"""What watches over a run: divergence, the signals that end it, and its freed memory."""

from __future__ import annotations

import ctypes
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType, TracebackType
from typing import Any

import torch

# Weight of the newest loss in the smoothed one.
NEWEST = 0.1
# Progress below this share of the first loss is noise, not something that could be lost.
PROGRESS = 0.05
# A loss this much above the first one is far above any past.
ABOVE_FIRST = 1.5


@dataclass
class DivergenceDetector:
    """Watches the loss, one step at a time; its state is plain values.

    Attributes:
        share: Share of the progress since the first loss that must be given back.
        patience: Steps in a row for which that must hold.
    """

    share: float
    patience: int
    first: float | None = None
    smooth: float = 0.0
    best: float = math.inf
    bad: int = 0

    def look(self, loss: float) -> str | None:
        """Take in the next loss; return why the run has diverged, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth += NEWEST * (loss - self.smooth)
        self.best = min(self.best, self.smooth)
        progress = self.first - self.best
        given_back = (
            progress > PROGRESS * abs(self.first)
            and self.smooth > self.best + self.share * progress
        )
        far_above = self.smooth > ABOVE_FIRST * abs(self.first) + 1e-12
        self.bad = self.bad + 1 if given_back or far_above else 0
        if self.bad < self.patience:
            return None
        return (
            f"the loss stays at {self.smooth:.3g} for {self.bad} steps; "
            f"it was {self.best:.3g} at best and {self.first:.3g} at first"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from another detector's state."""
        for name in ("first", "smooth", "best", "bad"):
            setattr(self, name, state[name])


class Interrupt:
    """Inside this context a first signal sets `wanted`; a second Ctrl-C raises KeyboardInterrupt.

    SIGTERM only asks, however often it comes: a scheduler and a launcher may both pass it on.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.wanted = False
        self._kept: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.wanted:
            self.wanted = True
            self.say("stopping after this step, with a checkpoint; Ctrl-C stops at once")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        """Listen; only the main thread may handle signals, in others this does nothing."""
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._kept[number] = signal.signal(number, self._handle)
        except ValueError:
            self._kept = {}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._kept.items():
            signal.signal(number, handler)


# glibc's malloc.h: names of settings for mallopt, and their defaults (mallopt(3)).
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
DEFAULT = 128 * 1024
# Blocks up to so many bytes come from the heap, and so many stay free at its end.
LARGEST_BLOCK, LARGEST_REST = 1 << 30, (1 << 31) - 1
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@contextmanager
def keep_freed_memory(
    device: torch.device, environment: Mapping[str, str] = os.environ
) -> Iterator[bool]:
    """Keep freed memory inside; give all back at the end.

    The numbers that are computed do not depend on it. Nothing is done for other devices than a CPU,
    without glibc, and where the environment sets malloc's thresholds itself.

    Args:
        device: Where the training is.
        environment: The process' own, by default.

    Yields:
        Whether anything was done.
    """
    libc = glibc()
    if device.type != "cpu" or libc is None or any(name in environment for name in SETTINGS):
        yield False
        return
    libc.mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)
    libc.mallopt(TRIM_THRESHOLD, LARGEST_REST)
    try:
        yield True
    finally:
        libc.mallopt(MMAP_THRESHOLD, DEFAULT)
        libc.mallopt(TRIM_THRESHOLD, DEFAULT)
        libc.malloc_trim(0)


def glibc() -> ctypes.CDLL | None:
    """Return the C library of this process, if it is glibc."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError):
        return None
    return ctypes.CDLL(None) if version else None
