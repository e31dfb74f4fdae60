"""What is told of where a comparison comes from, and what is not."""

import json
from pathlib import Path

import pytest

from magneto.lab.report.provenance import environments, facts, without_places


def record(directory: Path, *records: dict) -> Path:
    directory.mkdir()
    (directory / "environment.json").write_text(json.dumps(records))
    return directory


def test_environments_of_runs_are_told_together(tmp_path: Path) -> None:
    first = {
        "command": ["/home/me/magneto", "train"], "python": "3.12.1", "platform": "Linux-box",
        "packages": {"torch": "2.13.0", "numpy": None}, "processor": "A", "cores": 8, "gpus": [],
        "commit": "abc",
    }  # fmt: skip
    second = first | {"commit": "def", "gpus": ["H200", "H200"]}
    runs = [record(tmp_path / "a", first, first), record(tmp_path / "b", second), tmp_path / "none"]
    assert environments(runs) == {
        "python": ["3.12.1"], "torch": ["2.13.0"], "processor": ["A"], "cores": ["8"],
        "commit": ["abc", "def"], "gpus": ["2 x H200"],
    }  # fmt: skip


def test_without_runs_this_process_is_told() -> None:
    assert {"python", "torch", "cores"} <= set(environments([]))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("magneto compare x --out /home/me/a --lrs 1", "magneto compare x --out a --lrs 1"),
        ("--data=/srv/text/", "--data=text"),
        ("--data ~/text.txt", "--data text.txt"),
        ("'/home/me/a.txt','/b'", "'a.txt','b'"),
        ("runs/x", "runs/x"),
        ("hf:owner/name", "hf:owner/name"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)  # fmt: skip
def test_places_are_not_told(text: str, told: str) -> None:
    assert without_places({"a": [text, 3]}) == {"a": [told, 3]}


def test_facts_count_what_has_run() -> None:
    cells = [{"status": "finished", "seconds": 7200.0}, {"status": "missing", "seconds": 0.0}]
    told = dict(
        facts(
            {
                "recipe": "r", "overrides": {}, "seeds": [1, 2], "created": "now", "cells": cells,
                "environment": {"torch": ["1", "2"]},
            }
        )
    )  # fmt: skip
    assert told["runs"].startswith("1 of 2; 2.0 hours")
    assert told["changed in all runs"] == "nothing" and told["torch"] == "1, 2"
