"""Baselines on data whose answer is known."""

import numpy as np
import pytest

from magneto.language.baselines import bigram_bits, text_baselines, unigram_bits


def test_uniform_bytes_take_their_entropy() -> None:
    noise = np.random.default_rng(0).integers(0, 16, 200_000).astype(np.uint8).tobytes()
    assert unigram_bits(noise[:100_000], noise[100_000:]) == pytest.approx(4, abs=0.02)
    assert bigram_bits(noise[:100_000], noise[100_000:]) == pytest.approx(4, abs=0.05)


def test_a_cycle_is_known_from_pairs() -> None:
    cycle = b"abcd" * 5000
    assert unigram_bits(cycle, cycle) == pytest.approx(2, abs=0.05)
    assert bigram_bits(cycle, cycle) < 0.05


def test_text_that_was_seen_is_cheap_for_xz() -> None:
    text = np.random.default_rng(0).integers(97, 123, 20_000).astype(np.uint8).tobytes().decode()
    bits = text_baselines([text], [text])
    assert bits["xz -9 after the training text"] < 0.2 < 4 < bits["xz -9"]
