"""Rows of metrics."""

import json
from pathlib import Path

import pytest
import torch

from magneto.training.logging import (
    METRICS_FILE,
    MetricsLogger,
    TensorBoard,
    environment,
    read_metrics,
)


def write(run: Path, from_step: int, steps: range, tensorboard: bool = False) -> None:
    recipe = {"seed": 3, "training": {"betas": [0.9, 0.98], "clip_norm": None}}
    trackers = [TensorBoard(run, from_step, recipe)] if tensorboard else []
    logger = MetricsLogger(run, from_step, trackers)
    for step in steps:
        logger.add({"step": step, "loss": 1 / step})
    logger.close()


def test_rows_after_the_checkpoint_are_cut_away(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 9))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')  # killed while writing
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 9))
    write(tmp_path, 5, range(6, 8))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]


def test_a_bad_row_loses_no_other(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 7))
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    lines[1], lines[2], lines[3] = b'{"step": 2, "lo', b'"a \xff word"', b"[4]"
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 5, 6]
    write(tmp_path, 5, range(6, 8))
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 5, 6, 7]


def test_rows_of_a_folder_that_is_gone_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    logger = MetricsLogger(tmp_path / "run", 0)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="removed or moved while it trained"):
        logger.add({"step": 1})
    logger.close()


def test_what_json_has_not_is_null(tmp_path: Path) -> None:
    logger = MetricsLogger(tmp_path, 0)
    logger.add({"step": 1, "loss": float("nan")})
    logger.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": null}\n'


def test_tensorboard_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, 0, range(1, 4), tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")][1] == (2, 0.5)


def test_environment_names_versions_and_machine() -> None:
    found = environment()
    assert found["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["cores"] >= 1 and found["platform"] and found["python"]


def test_a_line_nested_too_deeply_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    path.write_text('{"step": 1}\n' + "[" * 100_000 + '\n{"step": 2}\n')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
