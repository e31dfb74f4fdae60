"""Progress on stderr, as bars in a terminal and as plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

# Without a terminal, lines are at least this many seconds apart, and at least this share of the
# elapsed time: about 80 lines in an hour, 150 in a day.
LINE_SECONDS, LINE_SHARE = 10.0, 0.05
REFRESH_SECONDS = 0.1


class Progress(Protocol):
    """Interface of progress displays."""

    def update(self, what: str, done: int, total: int | None) -> None:
        """Report the progress of the activity `what`: `done` of `total` items.

        An unknown `total` is None.
        """
        ...

    def say(self, line: str) -> None: ...


@dataclass
class Activity:
    """State of an activity, with counts and times at the start and at the latest display."""

    first: int
    started: float
    shown: float
    shown_done: int
    printed: bool = False
    row: Any = None


class ProgressBars:
    """Progress bars or lines, with rate and remaining time.

    Write errors are ignored, because a full disk or a closed terminal must not end a run.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.activities: dict[str, Activity] = {}
        self.bars: Any = None
        self.refreshed = 0.0
        self.printed: set[str] = set()
        self.lock = RLock()

    def say(self, line: str) -> None:
        """Print a line, unless the same line was printed before."""
        if not self.quiet and line not in self.printed:
            self.printed.add(line)
            self._print(line)

    def _print(self, line: str) -> None:
        with self.lock, suppress(OSError, ValueError):
            if self.bars is not None:
                self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def update(self, what: str, done: int, total: int | None, note: str = "") -> None:
        if self.quiet:
            return
        now = time.monotonic()
        with self.lock, suppress(OSError, ValueError):
            if what not in self.activities:
                self.activities[what] = Activity(done, now, now, done)
                if sys.stderr.isatty():
                    self._bar(what, total)
            activity = self.activities[what]
            if self.bars is not None:
                self.bars.update(activity.row, completed=done, total=total, note=note)
                if now - self.refreshed >= REFRESH_SECONDS:
                    self.refreshed = now
                    self.bars.refresh()
            elif done > activity.shown_done and (
                now - activity.shown >= max(LINE_SECONDS, LINE_SHARE * (now - activity.started))
                or (done == total and activity.printed)
            ):
                activity.shown, activity.shown_done, activity.printed = now, done, True
                self._print(progress_line(what, activity, done, total, note, now))
            if done == total:
                self._remove(what)

    def _bar(self, what: str, total: int | None) -> None:
        from rich import progress
        from rich.console import Console

        if self.bars is None:
            self.bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,  # rich's thread could erase a printed line
            )
            self.bars.start()
        self.activities[what].row = self.bars.add_task(what, total=total, note="")

    def _remove(self, what: str) -> None:
        activity = self.activities.pop(what)
        if self.bars is not None:
            self.bars.remove_task(activity.row)
            if not self.activities:
                self.bars.stop()
                self.bars = None

    def finish(self) -> None:
        with self.lock, suppress(OSError, ValueError):
            for what in list(self.activities):
                self._remove(what)


SILENT = ProgressBars(quiet=True)


def progress_line(
    what: str, activity: Activity, done: int, total: int | None, note: str, now: float
) -> str:
    rate = (done - activity.first) / max(now - activity.started, 1e-9)
    left = f", {clock((total - done) / rate)} left" if total and rate > 0 else ""
    return f"{what} {done}/{total or '?'}, {rate:.3g}/s{left}{', ' + note if note else ''}"


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
