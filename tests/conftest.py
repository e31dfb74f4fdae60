"""What every test stands on: seeds, a home and a cache of its own; it leaves all as it was."""

import os

# These are read once, when torch, numba and tokenizers are imported. A test has one core, and
# no processes that compile: to start them takes longer than what they would save.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["NUMBA_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as the command sets it
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub
# Matplotlib looks for its list of fonts at home, and takes seconds to make a new one.
os.environ.setdefault("MPLCONFIGDIR", os.path.expanduser("~/.cache/matplotlib"))

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.training import logging

# In the background a shell lets its jobs ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Those that this project and its libraries answer: asking for all takes half a millisecond.
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
           signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)  # fmt: skip
# What pytest, torch and scikit-learn set for themselves, and the thread that tqdm keeps.
OF_LIBRARIES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK",
                "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "KMP_INIT_AT_FORK",
                "tqdm_monitor"}  # fmt: skip
# Seconds that a thread has to end after its test.
GRACE = 2.0
NUMBERS = count()


@dataclass(frozen=True)
class Surroundings:
    """What all tests of a process share.

    Attributes:
        environment: The variables.
        folder: The current one.
        threads: How many threads torch computes with.
        handlers: What answers each signal.
        running: Threads of Python that are alive.
    """

    environment: dict[str, str]
    folder: str
    threads: int
    handlers: dict[signal.Signals, Any]
    running: set[threading.Thread]

    @classmethod
    def now(cls) -> "Surroundings":
        """Return what there is at this moment."""
        environment = {n: value for n, value in os.environ.items() if n not in OF_LIBRARIES}
        return cls(
            environment,
            os.getcwd(),
            torch.get_num_threads(),
            {number: signal.getsignal(number) for number in SIGNALS},
            {each for each in threading.enumerate() if each.name not in OF_LIBRARIES},
        )

    def differences(self, later: "Surroundings") -> list[str]:
        """Return a line for each thing that is another later; threads have a moment to end."""
        names = sorted({
            name for name, _ in self.environment.items() ^ later.environment.items()
        })  # fmt: skip
        lines = [f"the variable {name}" for name in names]
        if later.folder != self.folder:
            lines.append(f"the current folder, {later.folder}")
        if later.threads != self.threads:
            lines.append(f"torch's {self.threads} threads, now {later.threads}")
        answered = [n for n in self.handlers if self.handlers[n] != later.handlers[n]]
        lines += [f"the handler of {number.name}" for number in answered]
        for thread in later.running - self.running:
            thread.join(GRACE)
            if thread.is_alive():
                lines.append(f"a running thread, {thread.name}")
        return lines

    def restore(self) -> None:
        """Bring back all but threads, so that only the guilty test fails."""
        for name in os.environ.keys() - self.environment.keys() - OF_LIBRARIES:
            del os.environ[name]
        os.environ.update(self.environment)
        os.chdir(self.folder)
        torch.set_num_threads(self.threads)
        for number, handler in self.handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


@contextmanager
def left_as_found(who: str) -> Iterator[None]:
    """Fail if what runs inside leaves other surroundings.

    Args:
        who: Whose fault that is.
    """
    before = Surroundings.now()
    yield
    changed = before.differences(Surroundings.now())
    if changed:
        before.restore()
        pytest.fail(f"{who} left changed: {'; '.join(changed)}", pytrace=False)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of every test's home and cache; each is there when something is written."""
    return tmp_path_factory.mktemp("homes")


@contextmanager
def at_home(place: Path, cache: bool = True) -> Iterator[None]:
    """Let HOME, and the cache of prepared data, lie below a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place / "home"))
        if cache:
            patch.setenv("MAGNETO_CACHE", str(place / "cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def home_of_the_session(homes: Path) -> Iterator[Path]:
    """What fixtures of many tests write lies here."""
    with at_home(homes / "session"):
        yield homes / "session" / "cache"


@pytest.fixture(autouse=True, scope="session")
def quick_runs() -> Iterator[None]:
    """A small run takes less time than what is left out of it here.

    Runs count no operations and time no products; with these,
    tests/system/commands/test_next_commands.py trains every task. Files are not forced to the disk,
    which protects them from a loss of power alone. Versions and the commit are looked up once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(logging, "_version", once(logging._version))
        patch.setattr(logging, "_commit", once(logging._commit))
        patch.setattr("magneto.training.loop.count_flops", lambda *_: (1.0, 1))
        patch.setattr("magneto.training.loop.peak_flops", lambda *_: 1.0)
        yield


@pytest.fixture(autouse=True, scope="module")
def surroundings_of_a_file(request: pytest.FixtureRequest, homes: Path) -> Iterator[None]:
    """What the fixtures of a whole file change, they bring back."""
    with left_as_found(f"a fixture of {request.node.name}"):
        yield


@pytest.fixture(scope="module")
def module_cache(request: pytest.FixtureRequest, homes: Path) -> Iterator[Path]:
    """The cache that a file's tests share: for those that use one trained run."""
    place = homes / f"{Path(request.node.name).stem}-{next(NUMBERS)}"
    with at_home(place):
        yield place / "cache"


@pytest.fixture(autouse=True)
def surroundings(request: pytest.FixtureRequest, homes: Path, home_of_the_session: Path,
                 surroundings_of_a_file: None) -> Iterator[None]:  # fmt: skip
    """A home of its own, a cache unless a wider fixture has set one, the same seeds."""
    random.seed(0)
    np.random.seed(0)
    # A twentieth of the time of torch.manual_seed, which seeds devices that nobody uses here.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    own = os.environ.get("MAGNETO_CACHE") == str(home_of_the_session)
    with left_as_found(request.node.name), at_home(homes / str(next(NUMBERS)), own):
        yield


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 200 paragraphs in a folder of its own; nobody writes into it."""
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("\n\n".join(f"A paragraph about the number {i}. " * 40 for i in range(200)))
    return path


@pytest.fixture
def without_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn for pages alone: to embed its fonts is most of a PDF's time."""
    from magneto.lab.report.plot import Drawing

    monkeypatch.setattr(Drawing, "pdf", lambda drawing: b"")


@pytest.fixture
def cache(surroundings: None) -> Path:
    """Where this test keeps prepared data."""
    return Path(os.environ["MAGNETO_CACHE"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --order."""
    words = "run the tests in another order: reversed, or a number that shuffles them"
    parser.addoption("--order", help=words)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reverse or shuffle; a file's tests stay together, so that they share what they make."""
    order = config.getoption("order")
    if order == "reversed":
        items.reverse()
    elif order is not None:
        draws = random.Random(int(order))
        places: dict[Path, float] = {}
        for item in items:
            places.setdefault(item.path, draws.random())
        items.sort(key=lambda item: (places[item.path], draws.random()))
