"""The benchmarks of long runs: what a start reads, and what a checkpoint costs."""

import json
from pathlib import Path

import pytest

from benchmarks import background_checkpoints, start_up
from magneto.training.config import TrainingConfig


def test_text_of_a_size_in_paragraphs(tmp_path: Path) -> None:
    start_up.write_text(tmp_path / "text", 30_000)
    text = (tmp_path / "text").read_text()
    assert len(text) == 30_000 and "\n\n" in text and len(set(text.split())) > 1000


@pytest.mark.slow
def test_a_start_reads_as_much_of_a_small_corpus_as_of_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 MB, of which 32 blocks are compared, and 80 MB: by bytes read, not by the clock."""
    monkeypatch.chdir(Path(__file__).parents[1])
    words = ["--sizes", "40", "80", "--rounds", "1", "--name", "check", "--out", str(tmp_path)]
    start_up.main(words)
    rows = json.loads((tmp_path / "check.json").read_text())["rows"]
    read = {(row["megabytes"], row["kind"]): row["read"] for row in rows}
    for kind in start_up.KINDS:
        assert read[80, kind] < read[40, kind] + 5e6
    assert "| 80 | resume |" in (tmp_path / "check.md").read_text()


@pytest.mark.slow
def test_blocks_take_turns(tmp_path: Path) -> None:
    words = ["--shapes", "tiny", "--steps", "1", "--rounds", "2", "--name", "check"]
    background_checkpoints.main([*words, "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "check.json").read_text())["rows"]
    assert [len(row["blocks"][kind]) for kind in background_checkpoints.KINDS] == [2, 2, 2]
    assert row["checkpoint_bytes"] > 3 * 4 * 64 * 512  # weights and two moments of AdamW
    assert "| tiny | 1 | at once |" in (tmp_path / "check.md").read_text()
    assert TrainingConfig().async_save is False, "the cost of the default is that of `at once`"
