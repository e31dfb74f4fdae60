"""Rows of metrics of a run: metrics.jsonl, and TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magneto.files import plain, write_text

METRICS_FILE = "metrics.jsonl"


class MetricsLogger:
    """Rows of metrics, appended to metrics.jsonl and, if asked, to TensorBoard.

    Rows of a step beyond the checkpoint that a run resumes from are cut away first: those steps
    will be taken, and recorded, again.
    """

    def __init__(
        self, run: Path, from_step: int, tensorboard: bool, say: Callable[[str], None] = print
    ) -> None:
        self.path = run / METRICS_FILE
        if self.path.exists():
            cut_after(self.path, from_step)
        self.file = self.path.open("a", encoding="utf-8")
        self.writer: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter  # takes seconds to import
            except ImportError:
                say("no TensorBoard files: the package tensorboard is not installed")
            else:
                self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=from_step + 1)

    def add(self, row: dict[str, Any]) -> None:
        """Write one row; it has the key "step".

        Raises:
            FileNotFoundError: If the file is not there any more.
        """
        self.check()
        self.file.write(json.dumps(plain(row)) + "\n")
        self.file.flush()
        if self.writer is not None:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self.writer.add_scalar(key, value, row["step"])

    def check(self) -> None:
        """See that the records are still where they were opened.

        An open file of a directory that was removed can be written to as before, and all is lost.

        Raises:
            FileNotFoundError: If the file is not there any more.
        """
        if not self.path.exists():
            raise FileNotFoundError(
                f"{self.path} is gone: the run's directory was removed or moved while it trained"
            )

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.writer is not None:
            self.writer.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read a run's rows."""
    return read_rows(run / METRICS_FILE)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object with a "step" per line; other lines are left out.

    Such are a last line cut short by a kill, and what a disk or an editor has damaged.
    """
    return [row for line in path.read_bytes().split(b"\n") if (row := as_row(line)) is not None]


def as_row(line: bytes) -> dict[str, Any] | None:
    """Return the row that a line holds, or None if it holds none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def cut_after(path: Path, step: int) -> None:
    """Keep the rows up to and with a step, aside and renamed."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
