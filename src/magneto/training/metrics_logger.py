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
        """Write one row; it has the key "step"."""
        self.file.write(json.dumps(plain(row)) + "\n")
        self.file.flush()
        if self.writer is not None:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self.writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.writer is not None:
            self.writer.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read a run's rows."""
    return read_rows(run / METRICS_FILE)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object per line; a last line cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def cut_after(path: Path, step: int) -> None:
    """Keep the rows up to and with a step, aside and renamed."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
