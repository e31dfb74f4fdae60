"""One new process that knows transformers alone: there exports are loaded by their Auto classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Runs a program a line, each as if it were alone but for what is imported.
READER = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    given, said, error = json.loads(line), io.StringIO(), ""
    os.chdir(given["folder"])
    sys.argv = ["-c", *given["words"]]
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(given["code"], "<newcomer>", "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    training = [name for name in sys.modules if name.startswith("magneto.training")]
    print(json.dumps([said.getvalue(), error, training]), file=answers, flush=True)
"""


class Newcomer:
    """A process in which nothing of ours is called by name."""

    def __init__(self, home: Path) -> None:
        place = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER], cwd=home, env={**os.environ, **place}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, folder: Path, code: str, *words: str) -> str:
        """Run a program in a folder; return what it printed. It loads no code for training."""
        assert self.process.stdin is not None and self.process.stdout is not None
        line = json.dumps({"folder": str(folder), "code": code, "words": words})
        print(line, file=self.process.stdin, flush=True)
        said, error, training = json.loads(self.process.stdout.readline())
        assert not error, error
        assert not training, training
        return said


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """The process, the same for all tests."""
    made = Newcomer(tmp_path_factory.mktemp("newcomer"))
    yield made
    made.process.communicate()
