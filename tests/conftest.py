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


def threads() -> list[threading.Thread]:
    """Return Python's running threads without those that libraries keep, or run from C++."""
    return [thread for thread in threading.enumerate()
            if thread.name not in OF_LIBRARIES
            and not isinstance(thread, threading._DummyThread)]  # fmt: skip


def surroundings_now() -> dict[str, Any]:
    """Return what all tests of a process share, by name; threads of Python that are alive."""
    variables = {n: value for n, value in os.environ.items() if n not in OF_LIBRARIES}
    return {
        **{f"the variable {name}": value for name, value in variables.items()},
        "the current folder": os.getcwd(),
        "torch's threads": torch.get_num_threads(),
        **{f"the handler of {number.name}": signal.getsignal(number) for number in SIGNALS},
        **{f"a running thread, {t.name}": t for t in threads()},
    }  # fmt: skip


@contextmanager
def left_as_found(who: str) -> Iterator[None]:
    """Fail if what runs inside leaves other surroundings; threads have a moment to end.

    Args:
        who: Whose fault that is.
    """
    before = surroundings_now()
    yield
    for thread in {*threads()} - {*before.values()}:
        thread.join(GRACE)
    after = surroundings_now()
    ended = {name for name in before.keys() - after.keys() if name.startswith("a running thread")}
    changed = [
        name
        for name in sorted((before.keys() | after.keys()) - ended)
        if before.get(name) != after.get(name)
    ]
    if changed:
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


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents, each of three numbers in a row; nobody writes into it."""
    path = tmp_path_factory.mktemp("counting") / "corpus.jsonl"
    lines = (f'{{"text": "{i} {i + 1} {i + 2} the end"}}\n' for i in range(400))
    path.write_text("".join(lines))
    return path


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the built-in text, which takes seconds to collect, by a short one."""
    texts = [f"Return the sum of {n} and {n * n % 7} as a number.\n" * 6 for n in range(60)]
    monkeypatch.setattr("magneto.data.documents.docstrings", lambda: texts)


@pytest.fixture
def without_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn for pages alone: to embed its fonts is most of a PDF's time."""
    from magneto.lab.report.plot import Plot

    monkeypatch.setattr(Plot, "pdf", lambda plot: b"")


@pytest.fixture
def without_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's figures are composed, but neither laid out nor written as SVG or PDF."""
    empty = b'<svg viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr("magneto.lab.report.plot.save", lambda *given: empty)


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
