"""Frames of any length of sound, their normalisation; what is varied has its limits and seeds."""

from pathlib import Path

import numpy as np
import pytest

from magneto.speech.config import AugmentationConfig, SpeechDataConfig
from magneto.speech.features import (
    Augmentation,
    FilterBank,
    Normaliser,
    load_normaliser,
    normalise_utterance,
    time_warp,
)
from tests.unit.speech.wavs import tone

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.standard_normal((500, 80)).astype(np.float32)


def test_short_and_long_sounds() -> None:
    bank = FilterBank(SpeechDataConfig())
    assert bank(np.zeros(0, np.float32)).shape == bank(np.zeros(399, np.float32)).shape == (0, 80)
    assert bank(np.zeros(400, np.float32)).shape == (1, 80)
    assert [bank.frames(n) for n in (0, 399, 400, 560)] == [0, 0, 1, 2]
    long = RANDOM.standard_normal(160 * 4500).astype(np.float32)  # in more than one chunk
    # Some processors multiply matrices of other heights in another order.
    alone = bank(long[160 * 2100 : 160 * 2109 + 400])
    np.testing.assert_allclose(bank(long)[2100:2110], alone, rtol=1e-5, atol=1e-5)


def test_normalisers(tmp_path: Path) -> None:
    frames = 5 + 3 * FEATURES[:50]
    found = normalise_utterance(frames)
    assert np.allclose(found.mean(0), 0, atol=1e-5) and np.allclose(found.std(0), 1, atol=1e-5)
    assert np.isfinite(normalise_utterance(np.ones((5, 4), np.float32))).all()
    assert normalise_utterance(frames[:0]).shape == (0, 80)
    path = tmp_path / "cmvn.json"
    made = Normaliser(frames.mean(0), frames.std(0), 50)
    made.save(path)
    assert np.array_equal(load_normaliser(path, 80)(frames), made(frames))
    with pytest.raises(ValueError, match=r"has 80 features, but data.features.mel_bins is 4"):
        load_normaliser(path, 4)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"is not a run's cmvn.json"):
        load_normaliser(path, 80)
    with pytest.raises(FileNotFoundError, match='"global", "utterance", "none"'):
        load_normaliser(tmp_path / "other.json", 80)


def made(**options) -> Augmentation:
    none = {"frequency_masks": 0, "time_masks": 0}
    return Augmentation(AugmentationConfig(**{**none, **options}), 16000)


def runs(flags: np.ndarray) -> int:
    """Return how many runs of True there are."""
    return int((np.diff(np.concatenate([[0], flags.astype(int)])) > 0).sum())


def test_the_papers_masks() -> None:
    """Two of frequency with at most 27 bins each, ten of time with at most 4 % of the frames."""
    paper = Augmentation(AugmentationConfig(), 16000)
    most_bins = most_frames = 0
    for number in range(200):
        changed = paper.features(FEATURES, (1, 0, number)) != FEATURES
        frames, bins = changed.all(1), changed.all(0)
        assert runs(bins) <= 2 and bins.sum() <= 2 * 27
        assert runs(frames) <= 10 and frames.sum() <= 10 * 20
        most_bins, most_frames = max(most_bins, bins.sum()), max(most_frames, frames.sum())
    assert most_bins > 40 and most_frames > 110  # the limits are approached
    shifted = FEATURES + 3
    found = paper.features(shifted, (1, 2, 3))
    assert np.allclose(found[found != shifted], shifted.mean())
    sized = made(time_masks=10, time_masks_ratio=0.01)
    assert [sized.time_masks(frames) for frames in (99, 500, 5000)] == [0, 5, 10]


def test_what_is_drawn_depends_on_its_integers_alone() -> None:
    config = AugmentationConfig(gain=6, noise=0.5, time_warp=5, speeds=(0.9, 1.0, 1.1))
    one, other = Augmentation(config, 16000), Augmentation(config, 16000)
    other.features(FEATURES, (9, 9, 9))
    other.sound(tone(), 1.0, (9, 9, 9))
    its = (1, 2, 3)
    assert np.array_equal(one.features(FEATURES, its), other.features(FEATURES, its))
    assert np.array_equal(one.sound(tone(), 1.0, its), other.sound(tone(), 1.0, its))
    assert np.array_equal(one.speeds(50, 1, 2), other.speeds(50, 1, 2))
    assert not np.array_equal(one.speeds(50, 1, 2), one.speeds(50, 1, 3))
    for seed in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(one.features(FEATURES, its), one.features(FEATURES, seed))


def test_time_warp_moves_and_keeps_ends() -> None:
    ramp = np.arange(100, dtype=np.float32)[:, None]
    moved = [time_warp(ramp, 5, np.random.default_rng(seed))[:, 0] for seed in range(50)]
    for each in moved:
        assert each[0] == 0 and each[-1] == 99 and (np.diff(each) > 0).all()
        assert np.abs(each - ramp[:, 0]).max() <= 5
    assert max(np.abs(each - ramp[:, 0]).max() for each in moved) > 3
    assert np.array_equal(time_warp(ramp[:10], 5, RANDOM), ramp[:10])


def test_speed_gain_and_noise() -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    found = made(speeds=(1.25,)).sound(tone(1.0, pitch=400), 1.25, (1, 0, 0))
    assert abs(len(found) - 12800) <= 1
    assert np.abs(np.fft.rfft(found)).argmax() / 0.8 == pytest.approx(500, abs=2)
    sound = tone()
    louder = [made(gain=6).sound(sound, 1.0, (1, 0, n)) for n in range(100)]
    decibels = [20 * np.log10(np.abs(each).max() / 0.5) for each in louder]
    assert -6.01 < min(decibels) < -5 and 5 < max(decibels) < 6.01
    noisy = made(noise=0.5, noise_snr=(20, 20))
    added = [noisy.sound(sound, 1.0, (1, 0, n)) - sound for n in range(100)]
    with_noise = [each for each in added if each.any()]
    assert 30 < len(with_noise) < 70
    ratio = 10 * np.log10((sound**2).mean() / (with_noise[0] ** 2).mean())
    assert ratio == pytest.approx(20, abs=0.3)
    assert made().sound(sound, 1.0, (1, 0, 0)) is sound
