"""Run the command line in a child process, under limits, and note what its user would see."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

import magneto.commands.train  # noqa: F401, what is imported here the children share
from magneto.cli import main

# Exit codes that the documentation promises: done, a mistake, divergence, interrupted.
PROMISED = (0, 2, 3, 130)
# Bytes of address space of a child, so that a fault can't fill the machine.
MEMORY = 12 << 30


@dataclass(frozen=True)
class Seen:
    """What a user saw.

    Attributes:
        code: Exit code; minus a signal's number; None if nothing had happened at the time limit.
        output: All lines of stdout and stderr.
        killed: Whether the child was killed on purpose.
    """

    code: int | None
    output: list[str]
    killed: bool = False

    @property
    def finding(self) -> str:
        """What is wrong with it, or nothing."""
        if any(line.startswith(("Traceback", "Fatal Python")) for line in self.output):
            return "traceback"
        if self.killed:
            return ""
        if self.code is None:
            return "it hangs"
        if self.code not in PROMISED:
            return f"exit code {self.code}"
        said = [line for line in self.output if line.startswith("magneto:")]
        return "no word about it" if self.code == 2 and not said else ""

    @property
    def line(self) -> str:
        """The line that says most: the first of our own where it was refused, else the last."""
        said = [line for line in self.output if line.startswith("magneto:")]
        if self.code == 2 and said:
            return said[0]
        return self.output[-1].strip() if self.output else ""


def watch(
    words: Sequence[str],
    before: Callable[[], object] = lambda: None,
    seconds: float = 300.0,
    kill_after: float | None = None,
) -> Seen:
    """Run the command line with these words in a child.

    Args:
        words: After `magneto`.
        before: Called in the child first: sets limits, closes streams.
        seconds: Limit of time; a child that takes longer is killed, and counts as hanging.
        kill_after: Seconds after which it is killed on purpose (SIGKILL).
    """
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()  # else the child prints it too
        child = os.fork()
        if child == 0:
            _be_child(words, before, output.fileno())
        began, limit = time.monotonic(), seconds if kill_after is None else kill_after
        while time.monotonic() - began < limit:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return Seen(os.waitstatus_to_exitcode(status), _lines(output))
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Seen(None, _lines(output), killed=kill_after is not None)


def _be_child(words: Sequence[str], before: Callable[[], object], output: int) -> None:
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)  # a test may have put others there
        sys.stderr = os.fdopen(2, "w", 1, closefd=False)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        before()
        code = main(list(words))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed
                stream.flush()
        except BaseException:
            code = code or 1
        finally:
            os._exit(code)  # never back into the parent's program, whose folders it would clear


def _lines(output: IO[bytes]) -> list[str]:
    output.seek(0)
    text = output.read().decode("utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def full_disk(size: int) -> Callable[[], None]:
    """Return what lets no file grow beyond a size in a child."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def closed(*streams: int) -> Callable[[], None]:
    """Return what closes standard streams in a child, as `2>&-` does."""

    def close() -> None:
        for number in streams:
            os.close(number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], None)

    return close
