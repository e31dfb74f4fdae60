"""Frames of any length of sound; means and deviations are those of the frames."""

from pathlib import Path

import numpy as np
import pytest

from magneto.speech.config import SpeechDataConfig
from magneto.speech.features import (
    FilterBank,
    load_normaliser,
    normalised_alone,
    normaliser_of,
    unchanged,
)

RANDOM = np.random.default_rng(0)


def test_short_and_long_sounds() -> None:
    bank = FilterBank(SpeechDataConfig())
    assert bank(np.zeros(0, np.float32)).shape == bank(np.zeros(399, np.float32)).shape == (0, 80)
    assert bank(np.zeros(400, np.float32)).shape == (1, 80)
    assert [bank.frames(n) for n in (0, 399, 400, 560)] == [0, 0, 1, 2]
    long = RANDOM.standard_normal(160 * 4500).astype(np.float32)  # in more than one chunk
    # Some processors multiply matrices of other heights in another order.
    alone = bank(long[160 * 2100 : 160 * 2109 + 400])
    np.testing.assert_allclose(bank(long)[2100:2110], alone, rtol=1e-5, atol=1e-5)


def test_global_normalisation(tmp_path: Path) -> None:
    frames = 5 + 3 * RANDOM.standard_normal((1000, 4)).astype(np.float32)
    found = normaliser_of([frames[:300], frames[300:]])
    assert found.frames == 1000
    assert np.allclose(found(frames).mean(0), 0, atol=1e-5)
    assert np.allclose(found(frames).std(0), 1, atol=1e-5)
    found.save(tmp_path / "cmvn.json")
    read = load_normaliser(tmp_path / "cmvn.json", 4)
    assert np.array_equal(read(frames), found(frames))
    with pytest.raises(ValueError, match=r"of 4 features, and data.features has 80"):
        load_normaliser(tmp_path / "cmvn.json", 80)
    (tmp_path / "cmvn.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is no cmvn.json of a run"):
        load_normaliser(tmp_path / "cmvn.json", 4)
    with pytest.raises(FileNotFoundError, match="global, utterance, none"):
        load_normaliser(tmp_path / "other.json", 4)


def test_statistics_of_nothing_and_of_one_value() -> None:
    with pytest.raises(ValueError, match="no training utterance could be read"):
        normaliser_of([])
    assert np.isfinite(normaliser_of([np.full((10, 2), 7.0)])(np.full((3, 2), 7.5))).all()


def test_normalisation_by_utterance() -> None:
    frames = 5 + 3 * RANDOM.standard_normal((50, 4)).astype(np.float32)
    found = normalised_alone(frames)
    assert np.allclose(found.mean(0), 0, atol=1e-5) and np.allclose(found.std(0), 1, atol=1e-5)
    assert np.isfinite(normalised_alone(np.ones((5, 4), np.float32))).all()
    assert normalised_alone(frames[:0]).shape == (0, 4)
    assert unchanged(frames) is frames
