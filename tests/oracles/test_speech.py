"""Speech against other people's code: Kaldi's features, Whisper's normaliser, a loss."""

import numpy as np
import pytest
import torch

from magneto.functional.transducer import transducer_loss
from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.features import FilterBank
from magneto.speech.task import text_normaliser
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
    [(16000, {}), (8000, {"frame_length": 32.0}),
     (16000, {"high_frequency": -400.0, "mel_bins": 40}),
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


def test_english() -> None:
    transformers = pytest.importorskip("transformers")
    normalise, title = text_normaliser("whisper-english")
    spoken = "Mr. Smith's  um twenty-one dogs didn't bark [noise], OK?"
    assert normalise(spoken) == "mister smith is 21 dogs did not bark ok"
    assert normalise("the colour") == "the colour"
    version = f"transformers {transformers.__version__}"
    assert title == f"whisper-english ({version}, British spellings unchanged)"


def test_the_transducer_loss_is_that_of_warprnnt() -> None:
    warprnnt = pytest.importorskip("warprnnt_numba", reason="needs numba and warprnnt-numba")
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 9, 6, 11, generator=generator, requires_grad=True)
    answers = torch.randint(1, 11, (3, 5), generator=generator)
    frames, counts = torch.tensor([9, 4, 9]), torch.tensor([5, 5, 1])
    theirs = warprnnt.RNNTLossNumba(blank=0, reduction="sum")
    expected = theirs(logits, answers.int(), frames.int(), counts.int())
    found = transducer_loss(logits, answers, frames, counts).sum()
    torch.testing.assert_close(found, expected[0], rtol=1e-6, atol=0)
    # Theirs gives the gradient for logits, from log-probabilities that it makes itself.
    one, other = (torch.autograd.grad(x.sum(), logits)[0] for x in (found, expected))
    torch.testing.assert_close(one, other, rtol=0, atol=3e-6)
