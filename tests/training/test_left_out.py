"""What was left out of training is said once, and kept in the run."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from magneto.training import left_out
from magneto.training.distributed import one_process
from magneto.training.left_out import record_left_out


@dataclass
class Leaving:
    """A task, and a progress that remembers."""

    found: dict[str, str] | None
    lines: list[str] = field(default_factory=list)

    def left_out(self) -> dict[str, str] | None:
        return self.found

    def say(self, line: str) -> None:
        self.lines.append(line)


@dataclass
class State:
    run: Path
    task: Any
    report: Any
    world: Any


def state(run: Path, found: dict[str, str] | None) -> Any:
    both = Leaving(found)
    return State(run, both, both, one_process(torch.device("cpu")))


def kept(run: Path) -> Any:
    return json.loads((run / "excluded.json").read_text())


def test_new_ones_are_said_and_old_ones_stay(tmp_path: Path) -> None:
    first = state(tmp_path, {"a": "cut off"})
    record_left_out(first)
    assert kept(tmp_path) == {"a": "cut off"}
    again = state(tmp_path, {"a": "cut off", "b": "silent", "c": "silent", "d": "late"})
    record_left_out(again)
    record_left_out(again)
    assert kept(tmp_path) == {"a": "cut off", "b": "silent", "c": "silent", "d": "late"}
    assert again.report.lines == ["left out of training: b, c (silent)",
                                  "left out of training: d (late)"]  # fmt: skip


def test_nothing(tmp_path: Path) -> None:
    record_left_out(state(tmp_path, None))
    assert not list(tmp_path.iterdir())  # a task that never leaves anything out
    record_left_out(state(tmp_path, {}))
    assert kept(tmp_path) == {}
    (tmp_path / "excluded.json").write_text("{dam")
    record_left_out(state(tmp_path, {"a": "cut off"}))
    assert kept(tmp_path) == {"a": "cut off"}


def test_many_are_not_all_said(tmp_path: Path) -> None:
    many = state(tmp_path, {str(n): "silent" for n in range(left_out.NAMED + 8)})
    record_left_out(many)
    (line,) = many.report.lines
    assert line.endswith(", 31 and 8 more (silent)")


def test_of_all_ranks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(left_out, "gather_lists", lambda mine, world: [*mine, ("z", "far")])
    record_left_out(state(tmp_path, {"a": "near"}))
    assert kept(tmp_path) == {"a": "near", "z": "far"}
