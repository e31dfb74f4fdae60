"""`magneto buckets`: the largest batches that fit a memory, by trying."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands import buckets
from magneto.commands.buckets import StepMemory
from magneto.speech.buckets import Bucket
from tests.speech.small_run import SMALL

pytest.importorskip("jiwer")
WORDS = ["buckets", "transducer/tiny", *SMALL]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path / "cache"))


def cells(self: StepMemory, bucket: Bucket, count: int, groups: int) -> float:
    return 1e6 * groups * count * bucket.frames


def test_the_largest_of_each_bucket(capsys, monkeypatch) -> None:
    monkeypatch.setattr(StepMemory, "__call__", cells)
    words = [*WORDS, "--memory", "4", "--buckets", "2", "--training.batch_size", "4"]
    assert main([*words, "--ranks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] == 2 and sum(row["utterances"] for row in found["buckets"]) == 12
    for row in found["buckets"]:
        assert row["largest"] == 2000 // row["frames"]
    sizes = [row["largest"] * row["frames"] for row in found["buckets"]]
    assert found["max_frames"] == min(sizes)
    assert main([*words, "--ranks", "2"]) == 0
    last = f"--data.max_frames {min(sizes)} --data.max_cells {found['max_cells']}\n"
    assert capsys.readouterr().out.endswith(last)


def test_what_does_not_fit_is_said(capsys, monkeypatch) -> None:
    monkeypatch.setattr(StepMemory, "__call__", cells)
    for words, said in (
        ([*WORDS, "--memory", "0.001"], "lower data.max_duration"),
        ([*WORDS, "--memory", "-1"], "above 0"),
        (WORDS, "--memory GB is needed"),
        (["buckets", "causal-lm/tiny"], "is for recipes of transducer, not of causal-lm"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err


@pytest.mark.skipif(not buckets.RESET.exists(), reason="memory of a process is told on Linux only")
def test_larger_groups_take_more_memory(monkeypatch) -> None:
    held: dict[int, float] = {}
    call = StepMemory.__call__

    def small(self: StepMemory, bucket: Bucket, count: int, groups: int) -> float:
        if not held:
            call(self, bucket, 1, 1)  # the first step makes AdamW's averages
            for number in (1, 512):
                held[number] = call(self, Bucket(200, 10, 1), number, 1)
        return cells(self, bucket, count, groups)

    monkeypatch.setattr(StepMemory, "__call__", small)
    assert main([*WORDS, "--memory", "4", "--buckets", "1"]) == 0
    features = 512 * 200 * 8 * 4
    assert held[512] - held[1] > 5 * features
