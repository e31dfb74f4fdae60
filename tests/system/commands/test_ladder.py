"""A ladder of real runs is killed and resumed; nothing is run twice, and its page is right."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.check_ladder import check_folder
from magneto.cli import main
from magneto.lab import ladder
from magneto.lab.sweep import work
from tests.commands import refused, wait_until

pytest.importorskip("sklearn")

WORDS = (
    "ladder image-classification/tiny --widths 16,32 --target 128 --placements pre,sub "
    "--lrs 1e-3,1e-2 --seeds 1 --jobs 2 --model.layers 1 --model.heads 8 --model.ffn_width 64 "
    "--training.steps 8 --training.batch_size 16 --training.evaluate_limit 2 "
    "--training.log_every 2 --training.save_every 2 --training.device cpu --race --json"
)


@pytest.mark.distributed
def test_a_killed_ladder_goes_on_and_its_numbers_are_those_of_its_runs(tmp_path: Path) -> None:
    out = tmp_path / "ladder"
    words = [sys.executable, "-m", "magneto", *WORDS.split(), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done: dict[Path, int] = {}
    for cells in (2, 7):
        process = subprocess.Popen(
            words, env=environment, start_new_session=True, stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda n=cells: len([*out.glob("rungs/*/cells/*/outcome.json")]) >= n)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        done |= {p: p.stat().st_mtime_ns for p in out.glob("rungs/*/cells/*/outcome.json")}
    assert len(done) >= 7
    last = subprocess.run(words, env=environment, check=True, capture_output=True)
    found = json.loads(last.stdout)
    assert found["complete"] and found["answer"] and found["forecast"]["from"] == [16, 32]
    for path, changed in done.items():
        assert path.stat().st_mtime_ns == changed, "a cell that was done was run again"
    assert Path(found["report"]).is_file() and str(tmp_path) not in (out / "report.md").read_text()
    checked = check_folder(out)
    assert not checked.wrong and checked.count > 50
    assert json.loads((out / "forecast.json").read_text())["complete"]


@pytest.mark.usefixtures("without_pdf")
def test_runs_on_changed_data_do_not_join_a_ladder(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "run_local", lambda folder, *rest: work(folder) >= 0)
    table, out = tmp_path / "rows.csv", tmp_path / "ladder"
    rows = [f"a text {n},{'even' if n % 2 == 0 else 'odd'}" for n in range(24)]
    table.write_text("\n".join(["text,label", *rows]))
    given = (
        f"ladder text-classification/tiny --data {table} --out {out} --target 64 --placements sub "
        "--lrs 1e-3 --model.layers 1 --model.width 16 --model.heads 4 --model.ffn_width 32 "
        "--model.max_length 16 --data.tokenizer bytes --training.steps 2 --training.warmup_steps 1 "
        "--training.batch_size 6 --training.evaluate_limit 1 --training.device cpu"
    ).split()
    assert main([*given, "--widths", "8,16", "--seeds", "1"]) == 0
    before = (out / "ladder.json").read_bytes()
    table.write_text("\n".join(["text,label", *rows, "another text,odd"]))
    for sizes in ("8,16,32", "8,16"):
        line = refused(capsys, *given, "--widths", sizes, "--seeds", "1")
        assert "which changed after the run began" in line
        assert (out / "ladder.json").read_bytes() == before
        shutil.rmtree(out / "rungs" / "width-16", ignore_errors=True)
