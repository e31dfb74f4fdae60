"""Recordings of any length give the words that the model finds in windows, batched or not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from magneto.data.tokenizer import ByteTokenizer
from magneto.speech.batching import MIN_FRAMES
from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.decoding import GreedySearch
from magneto.speech.long_audio import Transcriber, timed_words
from magneto.speech.vocabulary import SpeechVocabulary
from tests.speech.searching import small_model

DATA = SpeechDataConfig(
    sample_rate=8000, features=FilterBankConfig(mel_bins=8), cmvn="utterance", tokenizer="bytes"
)
VOCABULARY = SpeechVocabulary(ByteTokenizer())


def transcriber(batch_size: int = 4) -> Transcriber:
    model = small_model(2, vocab_size=VOCABULARY.size)
    return Transcriber(model, VOCABULARY, DATA, GreedySearch(2), 2.0, 0.5, batch_size)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(int(8000 * seconds)).astype(np.float32)


def test_a_short_recording_is_one_utterance() -> None:
    made, samples = transcriber(), noise(1.5)
    found = list(made.transcribe([[samples]]))
    features = torch.from_numpy(made.features(samples))[None]
    with torch.no_grad():
        encoded, lengths = made.model.encode(features, torch.tensor([features.shape[1]]))
        best = GreedySearch(2)(made.model, encoded, lengths)[0][0]
    assert best.labels
    assert [part.words for part in found] == [timed_words(best, VOCABULARY, 0.04)]
    assert found[0].last and found[0].seconds == 1.5


def test_a_sound_of_few_frames_is_heard_as_in_training() -> None:
    """There a short utterance is filled up to `MIN_FRAMES`."""
    made = transcriber()
    for samples in (200, 280, 360, 500):
        sound = noise(1)[:samples]
        features = made.features(sound)
        filled = np.pad(features, ((0, MIN_FRAMES - len(features)), (0, 0)))
        with torch.no_grad():
            encoded, lengths = made.model.encode(
                torch.from_numpy(filled)[None], torch.tensor([MIN_FRAMES])
            )
            best = GreedySearch(2)(made.model, encoded, lengths)[0][0]
        (found,) = made.transcribe([[sound]])
        assert best.labels and found.words == timed_words(best, VOCABULARY, 0.04)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050])
def test_times_are_those_of_whole_samples(rate: int) -> None:
    """At 11,025 Hz frames are 110 samples apart, and not 110.25: in 20 s that is 45 ms."""
    made = Transcriber(
        transcriber().model, VOCABULARY, replace(DATA, sample_rate=rate), GreedySearch(2), 20.0, 0.5
    )
    frames = len(made.features(np.zeros(20 * rate, np.float32)))
    last = (frames - 1) * made.frame_seconds / 4
    assert abs(last + 0.025 - 20) < 0.0101 and last + 0.025 <= 20 + 1e-9


def test_several_recordings_in_any_batches() -> None:
    lengths = [0.0, 5.3, 0.01, 2.0, 3.1]
    sounds = [noise(length, seed) for seed, length in enumerate(lengths)]
    every = []
    for size in (1, 3, 50):
        pieces = [np.array_split(each, 3) for each in sounds]
        words = {}
        for part in transcriber(size).transcribe(pieces):
            words.setdefault(part.recording, []).extend(part.words)
        every.append({key: [word.text for word in found] for key, found in words.items()})
    assert every[0] == every[1] == every[2]
    assert every[0].keys() == set(range(5)) and every[0][0] == every[0][2] == []


def test_sound_is_not_held() -> None:
    """Of an endless stream words come, and no more is read than a window ahead."""
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield noise(0.5, read)

    parts = transcriber(1).transcribe([endless()])
    for number in range(1, 5):
        next(parts)
        assert read <= 3 * number + 3


def test_windows_must_overlap() -> None:
    made = transcriber()
    for overlap in (0.0, 1.5):
        with pytest.raises(ValueError, match="at most half"):
            Transcriber(made.model, VOCABULARY, DATA, GreedySearch(), 2.0, overlap)
