"""Ctrl-C and SIGTERM end a run after its current step; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


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
