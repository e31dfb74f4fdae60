"""Features are Kaldi's; means and deviations are those of the frames."""

from pathlib import Path

import numpy as np
import pytest

from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.features import (
    FilterBank,
    NoNormaliser,
    UtteranceNormaliser,
    load_normaliser,
    normaliser_of,
)
from tests.unit.speech.wavs import tone

RANDOM = np.random.default_rng(0)


def kaldi(samples: np.ndarray, config: SpeechDataConfig) -> np.ndarray:
    library = pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank is missing")
    options, features = library.FbankOptions(), config.features
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = config.sample_rate
    options.frame_opts.frame_length_ms = features.frame_length
    options.frame_opts.frame_shift_ms = features.frame_shift
    options.mel_opts.num_bins = features.mel_bins
    options.mel_opts.low_freq = features.low_frequency
    options.mel_opts.high_freq = features.high_frequency
    computer = library.OnlineFbank(options)
    computer.accept_waveform(config.sample_rate, samples.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(n) for n in range(computer.num_frames_ready)])


@pytest.mark.parametrize(
    ("rate", "options"),
    [(16000, {}), (8000, {}), (16000, {"high_frequency": -400.0, "mel_bins": 40}),
     (44100, {"frame_length": 20.0, "frame_shift": 7.5, "low_frequency": 60.0})],
)  # fmt: skip
@pytest.mark.parametrize("loudness", [1.0, 1e-2, 0.0])
def test_kaldi_computes_the_same(rate: int, options: dict, loudness: float) -> None:
    config = SpeechDataConfig(sample_rate=rate, features=FilterBankConfig(**options))
    noise = 0.1 * RANDOM.standard_normal(2 * rate)
    samples = (loudness * (noise + tone(2, rate, 300))).astype(np.float32)
    bank = FilterBank(config)
    found, wanted = bank(samples), kaldi(samples, config)
    assert found.dtype == np.float32 and found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 1e-3
    assert len(found) == bank.frames(len(samples))


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
    found = UtteranceNormaliser()(frames)
    assert np.allclose(found.mean(0), 0, atol=1e-5) and np.allclose(found.std(0), 1, atol=1e-5)
    assert np.isfinite(UtteranceNormaliser()(np.ones((5, 4), np.float32))).all()
    assert UtteranceNormaliser()(frames[:0]).shape == (0, 4)
    assert NoNormaliser()(frames) is frames
