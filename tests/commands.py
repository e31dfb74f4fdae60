"""Commands in this process: what they answer, and the one line with which they refuse."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from magneto.cli import main


def outcome(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed."""
    capsys.readouterr()  # what a fixture's training said
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def printed(capsys: pytest.CaptureFixture, *words: object) -> str:
    """Run a command that succeeds; return what it printed."""
    code, out, err = outcome(capsys, *words)
    assert code == 0, err
    return out


def answer(capsys: pytest.CaptureFixture, *words: object) -> Any:
    """Run a command with --json; return its one line."""
    out = printed(capsys, *words, "--json")
    assert out.count("\n") == 1
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture, *words: object) -> str:
    """Run a command that a user got wrong; return the one line that says so."""
    code, out, err = outcome(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("magneto:")]
    assert code == 2 and out == "" and len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


def spelt(changes: Mapping[str, Any]) -> list[str]:
    """Return the options that make changes of a recipe."""
    return [f"--{key}={'null' if value is None else value}" for key, value in changes.items()]


class Pieces:
    """Standard input that comes in pieces.

    Attributes:
        before: What was printed before each piece was read.
    """

    def __init__(self, *pieces: bytes, printed: Callable[[], Any] = str) -> None:
        self.pieces, self.printed = list(pieces), printed
        self.before: list[Any] = []
        self.buffer = self

    def isatty(self) -> bool:
        return False

    def read1(self, size: int = -1) -> bytes:
        self.before.append(self.printed())
        return self.pieces.pop(0) if self.pieces else b""


def started(*words: object, **how: Any) -> subprocess.Popen:
    """Start a command as a terminal does, in a process group of its own."""
    command = [sys.executable, "-m", "magneto", *map(str, words)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, start_new_session=True, **(silent | how))


def written_at(folder: Path) -> dict[Path, int]:
    """Return when the outcome of each cell in a folder was written.

    A process may rename folders meanwhile, on which `rglob` fails.
    """
    found = (Path(root) / "outcome.json" for root, _, files in os.walk(folder)
             if "outcome.json" in files)  # fmt: skip
    return {path: path.stat().st_mtime_ns for path in found}


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something holds, which it does in seconds; two minutes are for a busy machine."""
    for _ in range(2400):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within two minutes")
