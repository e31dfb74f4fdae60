"""A first signal asks for an end, a second Ctrl-C ends; afterwards the handlers are as before."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from magneto.training.distributed import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupt(said.append) as interrupt:
        assert not interrupt.requested
        signal.raise_signal(number)
        assert interrupt.requested and len(said) == 1 and "with a checkpoint" in said[0]
        signal.raise_signal(signal.SIGTERM)  # a scheduler's, and its launcher's
        signal.raise_signal(signal.SIGINT)
    assert len(said) == 1 and signal.getsignal(number) is before


def test_outside_of_the_main_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)

    def enter() -> bool:
        with Interrupt(print) as interrupt:
            return interrupt.requested or signal.getsignal(signal.SIGINT) is not before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is False
    assert signal.getsignal(signal.SIGINT) is before
