"""Lines of progress where there is no terminal."""

import pytest

from magneto import progress
from magneto.progress import ProgressBars, clock


def test_lines_have_rate_and_time_left(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 5))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    report = ProgressBars()
    for step in range(0, 101, 10):
        report.update("training", step, 100, "loss 2")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training 20/100, 2/s, 0:40 left, loss 2"
    assert lines[-1].startswith("training 100/100, 2/s, 0:00 left") and not report.pieces


def test_short_work_and_quiet_reporters_say_nothing(capsys: pytest.CaptureFixture) -> None:
    report = ProgressBars()
    report.update("evaluating", 0, 2)
    report.update("evaluating", 2, 2)
    silent = ProgressBars(quiet=True)
    silent.update("evaluating", 0, 2)
    silent.say("hello")
    report.say("a line")
    captured = capsys.readouterr()
    assert (captured.err, captured.out) == ("a line\n", "")


def test_clock() -> None:
    assert [clock(s) for s in (0.4, 59.6, 61, 3661)] == ["0:00", "1:00", "1:01", "1:01:01"]
