"""Rows of metrics of a run: metrics.jsonl, and whatever else shows them."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magneto.files import fingerprint, plain, write_text
from magneto.training.trackers import Tracker, grouped

METRICS_FILE = "metrics.jsonl"


class MetricsLogger:
    """Rows of metrics, appended to metrics.jsonl and given to trackers, with names in groups.

    Rows of a step beyond the checkpoint that a run resumes from are cut away first: those steps
    will be taken, and recorded, again.

    Attributes:
        written: Size and checksum of metrics.jsonl, as `fingerprint` gives them.
    """

    def __init__(self, run: Path, from_step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path = run / METRICS_FILE
        if self.path.exists():
            cut_after(self.path, from_step)
        self.file = self.path.open("ab")
        self.written = fingerprint(self.path, sync=False)
        self.trackers = trackers

    def add(self, row: dict[str, Any]) -> None:
        """Write one row; it has the key "step".

        Raises:
            FileNotFoundError: If the file is not there any more.
        """
        self.check()
        line = json.dumps(plain(row)).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        size, checksum = self.written["bytes"] + len(line), zlib.crc32(line, self.written["crc32"])
        self.written = {"bytes": size, "crc32": checksum}
        values = {
            grouped(key): value
            for key, value in row.items()
            if key != "step" and isinstance(value, int | float)
        }
        for tracker in self.trackers:
            tracker.add(values, row["step"])

    def check(self) -> None:
        """See that the records are still where they were opened.

        An open file of a directory that was removed can be written to as before, and all is lost.

        Raises:
            FileNotFoundError: If the file is not there any more, or another run's is.
        """
        held = os.fstat(self.file.fileno())
        if not self.path.exists() or not os.path.samestat(self.path.stat(), held):
            raise FileNotFoundError(
                f"{self.path} is gone: the run's directory was removed or moved while it trained"
            )

    def close(self) -> None:
        """Close the file and the trackers."""
        self.file.close()
        for tracker in self.trackers:
            tracker.close()


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
