"""What a person sees of long work: a bar on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any

# Seconds between plain lines where there is no terminal.
EVERY = 10.0


class Reporter:
    """Shows one piece of long work at a time, with its rate and the time left."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.what = ""
        self.bar: Any = None
        self.task: Any = None
        self.first = self.started = self.shown = 0.0

    def say(self, line: str) -> None:
        """Print one line."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def __call__(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show that `done` of `total` of `what` is done; a new `what` begins a new piece of work."""
        if self.quiet:
            return
        now = time.monotonic()
        if what != self.what:
            self.finish()
            self.what, self.first, self.started, self.shown = what, done, now, now
            if sys.stderr.isatty():
                self._open(what, total)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total, note=note)
        elif now - self.shown >= EVERY or done == total:
            self.shown = now
            self.say(self._line(done, total, note, now))
        if done == total:
            self.finish()

    def _open(self, what: str, total: int | None) -> None:
        from rich import progress
        from rich.console import Console

        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self.bar.start()
        self.task = self.bar.add_task(what, total=total, note="")

    def _line(self, done: int, total: int | None, note: str, now: float) -> str:
        rate = (done - self.first) / max(now - self.started, 1e-9)
        left = f", {clock((total - done) / rate)} left" if total and rate > 0 else ""
        return f"{self.what} {done}/{total or '?'}, {rate:.3g}/s{left}{', ' + note if note else ''}"

    def finish(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.what = None, ""


def clock(seconds: float) -> str:
    """Write seconds as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
