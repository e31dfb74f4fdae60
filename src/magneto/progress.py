"""Progress bars on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

# Seconds between plain lines where there is no terminal, and their share of what has passed: an
# hour gets some 80 lines, a day 150.
EVERY, SHARE = 10.0, 0.05
# Seconds between drawings of the bars.
DRAWN_EVERY = 0.1


class Progress(Protocol):
    """What reports progress: how far some work is, and lines of text."""

    def update(self, what: str, done: int, total: int | None) -> None:
        """Say that `done` of `total` (None: unknown) of `what` is done."""
        ...

    def say(self, line: str) -> None:
        """Say one line."""
        ...


class Silent:
    """A `Progress` that shows nothing."""

    def update(self, what: str, done: int, total: int | None) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Say nothing."""


SILENT = Silent()


@dataclass
class Piece:
    """One piece of work under way: how much was done when it began and when it was last shown."""

    first: int
    started: float
    shown: float
    shown_done: int
    spoken: bool = False
    row: Any = None


class ProgressBars:
    """Shows pieces of work, which may lie inside each other, with their rate and the time left.

    Bars are drawn here and nowhere else, one thread at a time: a thread of rich's that draws them
    meanwhile may wipe away a line that was said. What can't be written is let go: a full disk or a
    closed terminal must not end a run.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.pieces: dict[str, Piece] = {}
        self.bars: Any = None
        self.drawn = 0.0
        self.said: set[str] = set()
        self.lock = RLock()

    def say(self, line: str) -> None:
        """Print one line; one that was printed already (of data read twice, say) is left out."""
        if not self.quiet and line not in self.said:
            self.said.add(line)
            self._print(line)

    def _print(self, line: str) -> None:
        with self.lock, suppress(OSError, ValueError):
            if self.bars is not None:
                self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def update(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show that `done` of `total` of `what` is done; all done takes its bar away."""
        if self.quiet:
            return
        with self.lock, suppress(OSError, ValueError):
            self._show(what, done, total, note, time.monotonic())

    def _show(self, what: str, done: int, total: int | None, note: str, now: float) -> None:
        if what not in self.pieces:
            self.pieces[what] = Piece(done, now, now, done)
            if sys.stderr.isatty():
                self._bar(what, total)
        piece = self.pieces[what]
        if self.bars is not None:
            self.bars.update(piece.row, completed=done, total=total, note=note)
            if now - self.drawn >= DRAWN_EVERY:
                self.drawn = now
                self.bars.refresh()
        elif done > piece.shown_done and (
            now - piece.shown >= max(EVERY, SHARE * (now - piece.started))
            or (done == total and piece.spoken)
        ):
            piece.shown, piece.shown_done, piece.spoken = now, done, True
            self._print(line_of(what, piece, done, total, note, now))
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
                auto_refresh=False,
            )
            self.bars.start()
        self.pieces[what].row = self.bars.add_task(what, total=total, note="")

    def _remove(self, what: str) -> None:
        piece = self.pieces.pop(what)
        if self.bars is not None:
            self.bars.remove_task(piece.row)
            if not self.pieces:
                self.bars.stop()
                self.bars = None

    def finish(self) -> None:
        """Take every bar away."""
        with self.lock, suppress(OSError, ValueError):
            for what in list(self.pieces):
                self._remove(what)


def line_of(what: str, piece: Piece, done: int, total: int | None, note: str, now: float) -> str:
    """Write a plain line of progress."""
    rate = (done - piece.first) / max(now - piece.started, 1e-9)
    left = f", {clock((total - done) / rate)} left" if total and rate > 0 else ""
    return f"{what} {done}/{total or '?'}, {rate:.3g}/s{left}{', ' + note if note else ''}"


def clock(seconds: float) -> str:
    """Write seconds as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
