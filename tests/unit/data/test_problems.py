"""What is odd is counted and named; whatever reading raises is counted, and a run lists it once."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from magneto.data.problems import (
    EMPTY,
    FEW,
    MALFORMED,
    PROBLEMS_FILE,
    Counts,
    DataProblems,
    StrictCounts,
    guarded,
    quantity,
    read_each,
)
from tests.problems import listed
from tests.recorded_progress import RecordedProgress


def test_counts_add_up_are_plain_json_and_words() -> None:
    counts = Counts({"rows": 1000, MALFORMED: 6})
    counts.update(Counts({"rows": 234, EMPTY: 1}))
    counts.record(MALFORMED, "a.csv, line 3", "too few cells")
    assert counts == {"rows": 1234, MALFORMED: 7, EMPTY: 1}
    assert Counts(json.loads(json.dumps(counts))) == counts
    assert Counts().describe("rows") == "0 rows"
    words = ("classes", "training images", "rows of splits", "its rows")
    assert [quantity(1, word) for word in words] == [
        "1 class", "1 training image", "1 row of splits", "1 its row"
    ]  # fmt: skip
    counts = Counts(counts | {"long lines cut": 0})
    assert counts.describe("rows") == f"1,234 rows (7 {MALFORMED}, 1 empty text left out)"
    assert counts.describe("rows", EMPTY) == f"1,234 rows, 1 empty text left out (7 {MALFORMED})"


def test_where_nothing_may_be_wrong_the_place_is_said() -> None:
    with pytest.raises(ValueError, match=r"^a\.csv, line 3: too few cells$"):
        StrictCounts().record(MALFORMED, "a.csv, line 3", "too few cells")


def test_a_package_that_is_missing_is_no_fault_of_the_data() -> None:
    def read(record: int) -> None:
        raise ModuleNotFoundError("No module named 'soundfile'")

    with pytest.raises(ModuleNotFoundError, match="soundfile"):
        list(read_each([1], read, Counts(), "a.csv, row"))
    with pytest.raises(ModuleNotFoundError, match="soundfile"), guarded():
        read(1)


BROKEN, ODD = "broken image", "odd one"


def test_a_few_are_named(tmp_path: Path) -> None:
    progress = RecordedProgress()
    problems = DataProblems()
    problems.write_to(tmp_path, progress)
    for number in [*range(12), *range(12)]:
        problems.record(BROKEN, f"{number}.jpg", "cut\toff\n")
    assert progress.lines[0] == f"{BROKEN}: 0.jpg (cut off )"
    assert len(progress.lines) == FEW
    assert progress.lines[-1].endswith(f"not printed, but listed in {tmp_path / PROBLEMS_FILE}")
    assert listed(tmp_path) == [[BROKEN, f"{n}.jpg", "cut off "] for n in range(12)]


def test_processes_and_resumed_runs_list_and_say_each_once(tmp_path: Path) -> None:
    first, second = DataProblems(), DataProblems()
    others, progress = RecordedProgress(), RecordedProgress()
    first.write_to(tmp_path)
    second.write_to(tmp_path, others)
    for problems in (first, second):
        problems.record(BROKEN, "a\udcff.jpg", "cut off")
    first.record(BROKEN, "b.jpg", "cut off")
    resumed = DataProblems()
    resumed.record(BROKEN, "b.jpg", "cut off")  # before it has the run
    resumed.record(BROKEN, "c.jpg", "cut off")
    resumed.write_to(tmp_path, progress)
    resumed.record(BROKEN, "a\udcff.jpg", "cut off")
    assert [name for _, name, _ in listed(tmp_path)] == ["a\\udcff.jpg", "b.jpg", "c.jpg"]
    assert others.lines == [] and progress.lines == [f"{BROKEN}: c.jpg (cut off)"]
    second.record(ODD, "d.jpg", "strange")
    assert first.describe() == f"{BROKEN}: 3; {ODD}: 1"


def test_what_others_left_behind_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / PROBLEMS_FILE).write_bytes(b"odd one\xff\tx\n\nhalf a li")
    problems = DataProblems()
    problems.write_to(tmp_path)
    problems.record(BROKEN, "a.jpg", "cut off")
    assert f"{BROKEN}: 1" in problems.describe()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_processes_that_meet_the_same_at_once_write_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")

    def meet(run: Path, start: Any) -> None:
        problems = DataProblems()
        problems.write_to(run)
        start.wait()
        for number in range(200):
            problems.record(BROKEN, f"{number}.jpg", "cut off")

    for attempt in range(2):
        run, start = tmp_path / str(attempt), context.Event()
        run.mkdir()
        processes = [context.Process(target=meet, args=(run, start)) for _ in range(3)]
        for process in processes:
            process.start()
        start.set()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        names = sorted(name for _, name, _ in listed(run))
        assert names == sorted(f"{number}.jpg" for number in range(200))


def test_a_run_that_can_not_be_written_to(tmp_path: Path) -> None:
    progress, problems = RecordedProgress(), DataProblems()
    (tmp_path / PROBLEMS_FILE).mkdir()
    problems.write_to(tmp_path, progress)
    problems.record(BROKEN, "a.jpg", "cut off")
    assert "can't be written" in progress.lines[0] and "a.jpg" in progress.lines[1]
