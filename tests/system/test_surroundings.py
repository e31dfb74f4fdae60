"""A test that leaves something changed fails, with its name and what it left."""

import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import conftest
from tests.conftest import left_as_found


def test_what_is_left_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "GRACE", 0.01)
    end, handler = threading.Event(), signal.getsignal(signal.SIGHUP)  # ignored below nohup
    staying = threading.Thread(target=end.wait, name="staying", daemon=True)
    for named, change in {
        "the variable CI_X": lambda: monkeypatch.setenv("CI_X", "1"),
        "the current folder": lambda: monkeypatch.chdir("/"),
        "torch's threads": lambda: torch.set_num_threads(2),
        "the handler of SIGHUP": lambda: signal.signal(signal.SIGHUP, lambda *_: None),
        "a running thread, staying": staying.start,
    }.items():
        with (
            pytest.raises(pytest.fail.Exception, match=f"^guilty left changed: {named}$"),
            left_as_found("guilty"),
        ):
            change()
    torch.set_num_threads(1)
    signal.signal(signal.SIGHUP, handler)
    end.set()
    staying.join()


@pytest.mark.parametrize("time", range(2))
def test_every_test_has_the_same_seeds_and_a_home_that_is_new(time: int) -> None:
    assert (round(random.random(), 4), round(np.random.random(), 4)) == (0.8444, 0.5488)
    assert float(torch.rand(())) == pytest.approx(0.49626, abs=1e-5)
    for name in ("HOME", "MAGNETO_CACHE"):
        place = Path(os.environ[name])
        assert not place.exists()
        place.mkdir(parents=True)
