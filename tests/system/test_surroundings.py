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

HERE = os.getcwd()
END = threading.Event()
STAYING = threading.Thread(target=END.wait, name="staying", daemon=True)


@pytest.mark.parametrize(
    ("change", "back", "named"),
    [
        (lambda: os.environ.update(CI_X="1"), lambda: os.environ.pop("CI_X"), "the variable CI_X"),
        (lambda: os.chdir("/"), lambda: os.chdir(HERE), "the current folder"),
        (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1), "torch's threads"),
        (lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
         lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL), "the handler of SIGHUP"),
        (STAYING.start, lambda: (END.set(), STAYING.join()), "a running thread, staying"),
    ],
)  # fmt: skip
def test_what_is_left_changed_is_named(
    change: Callable, back: Callable, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "GRACE", 0.01)
    with (
        pytest.raises(pytest.fail.Exception, match=f"^guilty left changed: {named}$"),
        left_as_found("guilty"),
    ):
        change()
    back()


@pytest.mark.parametrize("time", range(2))
def test_every_test_has_the_same_seeds_and_a_home_that_is_new(time: int) -> None:
    assert (round(random.random(), 4), round(np.random.random(), 4)) == (0.8444, 0.5488)
    assert float(torch.rand(())) == pytest.approx(0.49626, abs=1e-5)
    for name in ("HOME", "MAGNETO_CACHE"):
        place = Path(os.environ[name])
        assert not place.exists()
        place.mkdir(parents=True)
