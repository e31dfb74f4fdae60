"""Lines of progress where there is no terminal; what stands on one in the end."""

import os
import re
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from magneto import progress
from magneto.progress import ProgressBars, clock


def test_lines_have_rate_and_time_left_and_come_less_often_later(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count(0, 5)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    report = ProgressBars()
    for step in range(50, 151, 10):
        report.update("training", step, 150, "loss 2")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training 70/150, 2/s, 0:40 left, loss 2"
    assert lines[-1].startswith("training 150/150, 2/s, 0:00 left") and not report.activities
    assert (clock(59.6), clock(3661.6)) == ("1:00", "1:01:02")
    for _ in range(10):
        report.update("training runs", 0, 20)
    assert not capsys.readouterr().err, "nothing was done"
    for step in range(7200):  # ten hours
        report.update("training", step, None)
    assert 20 < len(capsys.readouterr().err.splitlines()) < 150


def test_short_work_and_quiet_reporters_say_nothing(capsys: pytest.CaptureFixture) -> None:
    report = ProgressBars()
    report.update("evaluating", 0, 2)
    report.update("evaluating", 2, 2)
    silent = ProgressBars(quiet=True)
    silent.update("evaluating", 0, 2)
    silent.say("hello")
    report.say("a line")
    report.say("a line")
    captured = capsys.readouterr()
    assert (captured.err, captured.out) == ("a line\n", "")


LINES = 200  # some ten were lost to the bars' own thread
PROGRAM = f"""
import sys, time
from magneto.progress import ProgressBars
sys.setswitchinterval(1e-6)
report = ProgressBars()
for step in range({LINES}):
    report.update("training", step, {LINES}, f"loss {{step}}")
    for batch in range(3):
        report.update("evaluating", batch, 2)
        time.sleep(0.001)
    report.say(f"step {{step}}: validation loss 1")
report.finish()
"""
ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


def rows_on(output: str) -> list[str]:
    """Return the rows of a terminal of any height that was written to."""
    rows, row, column, place = [""], 0, 0, 0
    while place < len(output):
        character = output[place]
        if found := ESCAPE.match(output, place):
            place = found.end()
            count = int(found[1]) if found[1].isdigit() else 1
            if found[2] == "A":
                row = max(row - count, 0)
            elif found[2] == "K" and found[1] == "2":
                rows[row] = ""
            continue
        place += 1
        if character == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif character == "\r":
            column = 0
        else:
            rows[row] = rows[row][:column].ljust(column) + character + rows[row][column + 1 :]
            column += 1
    return rows


def on_a_terminal(program: str) -> str:
    """Run a program whose stderr is a terminal; return what it wrote there."""
    pty = pytest.importorskip("pty")  # not on Windows
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
    process = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=given)
    os.close(theirs)
    output = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not part:
            break
        output += part
    os.close(ours)
    assert process.wait() == 0
    return output.decode()


def test_no_line_is_lost_to_a_bar() -> None:
    rows = rows_on(on_a_terminal(PROGRAM))
    steps = [row for row in rows if row.startswith("step ")]
    assert steps == [f"step {step}: validation loss 1" for step in range(LINES)]
    assert not [row for row in rows if row.startswith(("training", "evaluating"))]


def test_what_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> int:
        raise OSError(28, "No space left on device")

    full = SimpleNamespace(write=fail, isatty=lambda: False, flush=lambda: None)
    monkeypatch.setattr(progress.sys, "stderr", full)
    report = ProgressBars()
    report.say("a line")
    report.update("training", 0, 1)
    report.update("training", 1, 1)
    report.finish()
