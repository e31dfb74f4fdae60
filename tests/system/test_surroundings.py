"""A test that leaves something changed fails, with its name and what it left."""

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import conftest
from tests.conftest import left_as_found


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: os.environ.update(MAGNETO_CACHE="elsewhere"), "the variable MAGNETO_CACHE"),
        (lambda: os.environ.pop("PATH"), "the variable PATH"),
        (lambda: os.chdir("/"), "the current folder, /"),
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "torch's . threads, now ."),
        (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), "the handler of SIGTERM"),
    ],
)
def test_what_is_left_changed_is_named_and_brought_back(change: Callable, named: str) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match=f"^guilty left changed: {named}$"),
        left_as_found("guilty"),
    ):
        change()
    with left_as_found("the next one"):
        pass


def test_a_thread_that_stays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "GRACE", 0.01)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="staying", daemon=True)
    with (
        pytest.raises(pytest.fail.Exception, match=r"a running thread, staying$"),
        left_as_found("guilty"),
    ):
        thread.start()
    end.set()
    thread.join()


@pytest.mark.parametrize("time", range(2))
def test_every_test_has_the_same_seeds_and_a_home_that_is_new(time: int) -> None:
    assert (round(random.random(), 4), round(np.random.random(), 4)) == (0.8444, 0.5488)
    assert float(torch.rand(())) == pytest.approx(0.49626, abs=1e-5)
    for name in ("HOME", "MAGNETO_CACHE"):
        place = Path(os.environ[name])
        assert not place.exists()
        place.mkdir(parents=True)
