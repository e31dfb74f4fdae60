"""Recordings of any length: read in pieces, heard in windows, no word lost or doubled."""

import io
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from magneto.data.tokenizer import ByteTokenizer, load_tokenizer
from magneto.speech import audio
from magneto.speech.audio import (
    BLOCK,
    DAMAGED,
    UNREADABLE,
    raw_pieces,
    read_sound,
    sound_pieces,
)
from magneto.speech.batching import MIN_FRAMES, SpeechVocabulary, train_characters
from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.decoding import GreedySearch, Hypothesis
from magneto.speech.long_audio import (
    Transcriber,
    Word,
    add_window,
    merge_words,
    split_windows,
    timed_words,
)
from tests.unit.speech.small import small_model


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_windows_cover_all_samples(piece: int) -> None:
    for count in (0, 1, 9, 10, 11, 17, 18, 100, 101):
        samples = np.arange(count, dtype=np.float32)
        pieces = [samples[start : start + piece] for start in range(0, count, piece)]
        windows = list(split_windows(pieces, 10, 3))
        assert [window.start for window in windows] == [7 * n for n in range(len(windows))]
        for window in windows:
            assert np.array_equal(window.samples, samples[window.start : window.start + 10])
            assert window.last == (window is windows[-1])
            assert len(window.samples) == 10 or window.last
        assert windows[-1].start + len(windows[-1].samples) == count
        assert len(windows) == 1 or len(windows[-1].samples) > 3


soundfile = pytest.importorskip("soundfile")
VOCABULARY = SpeechVocabulary(ByteTokenizer())
WORDS = ["one", "two", "three", "four", "five"]


def spoken(seed: int, count: int = 120) -> list[Word]:
    """Return words one after another, often the same, with pauses here and there."""
    chance, time, found = random.Random(seed), 0.3, []
    for _ in range(count):
        length = chance.uniform(0.15, 0.6)
        found.append(Word(chance.choice(WORDS[: chance.randint(1, 5)]), time, time + length))
        time += length + chance.choice([0.02, 0.05, 0.4, 2.5] if chance.random() < 0.3 else [0.03])
    return found


def heard(words: list[Word], start: float, stop: float, chance: random.Random) -> list[Word]:
    """Return what a recogniser hears of a window: a little early or late; of cut words nonsense."""
    found = []
    for word in words:
        shift = chance.uniform(-0.08, 0.08)
        if word.start >= start and word.end <= stop:
            found.append(Word(word.text, word.start + shift, word.end + shift))
        elif word.end > start and word.start < stop and chance.random() < 0.6:
            inside = max(word.start, start), min(word.end, stop)
            found.append(Word(chance.choice([*WORDS, "eh"]), *inside))
    return found


def test_no_word_is_lost_or_doubled() -> None:
    for seed in range(30):
        words, chance = spoken(seed), random.Random(seed)
        size, overlap = chance.choice([(10.0, 3.0), (20.0, 4.0), (6.0, 2.5)])
        length, start, found, pending = words[-1].end + 0.5, 0.0, [], []
        while start == 0 or start + overlap < length:
            stop = min(start + size, length)
            new, last = heard(words, start, stop, chance), stop == length
            final, pending = add_window(pending, new, start, stop, overlap, last)
            found += final
            start += size - overlap
        assert [word.text for word in found] == [word.text for word in words], seed


def test_words_have_the_times_of_their_labels(tmp_path) -> None:
    train_characters(["one two"], tmp_path / "tokenizer.json")
    vocabulary = SpeechVocabulary(load_tokenizer(tmp_path))
    labels = vocabulary.encode(["one two"])[0].tolist()
    found = timed_words(Hypothesis(labels, [2, 3, 5, 6, 9, 9, 10], 0.0), vocabulary, 0.5, 100.0)
    assert found == [Word("one", 101.0, 103.0), Word("two", 104.5, 105.5)]
    labels = VOCABULARY.encode(["ä b"])[0].tolist()  # of four bytes
    found = timed_words(Hypothesis(labels, [0, 1, 2, 3], 0.0), VOCABULARY, 1.0)
    assert [word.text for word in found] == ["ä", "b"]
    assert (found[0].start, found[1].start, found[1].end) == (0.0, 3.0, 4.0)
    labels = VOCABULARY.encode(["\u3000"])[0].tolist()  # a space of three bytes
    assert timed_words(Hypothesis(labels, [0, 1, 2], 0.0), VOCABULARY, 1.0) == []


def test_a_damaged_file_in_pieces_is_what_is_read_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(audio, "SECONDS", 1.5)
    path, problems = tmp_path / "a.flac", []
    soundfile.write(path, 0.3 * noise(5.0), 8000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = np.concatenate(list(sound_pieces(path, 8000, problems.append)))
    whole = read_sound(str(path), 8000).samples
    assert problems == [DAMAGED] and len(found) >= 15000
    count = min(len(whole), len(found))
    assert max(len(whole), len(found)) - count <= BLOCK  # by which damage is approached
    np.testing.assert_array_equal(found[:count], whole[:count])
    path.write_bytes(path.read_bytes()[:100] + bytes(10_000))  # no block can be decoded
    assert not any(map(len, sound_pieces(path, 8000, problems.append)))
    assert problems[1:] == [UNREADABLE] == [read_sound(str(path), 8000).problem]


DATA = SpeechDataConfig(
    sample_rate=8000, features=FilterBankConfig(mel_bins=8), cmvn="utterance", tokenizer="bytes"
)


def transcriber(batch_size: int = 4) -> Transcriber:
    model = small_model(3, vocab_size=VOCABULARY.size)
    return Transcriber(model, VOCABULARY, DATA, GreedySearch(2), 1.0, batch_size)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(int(8000 * seconds)).astype(np.float32)


def test_a_short_recording_is_one_utterance_and_heard_as_in_training() -> None:
    """There a short utterance is filled up to `MIN_FRAMES`."""
    made = transcriber()
    for samples in (200, 280, 360, 500, 6_000):
        sound = noise(1.5)[:samples]
        features = made.features(sound)
        filled = np.pad(features, ((0, max(MIN_FRAMES - len(features), 0)), (0, 0)))
        with torch.no_grad():
            given = torch.from_numpy(filled)[None], torch.tensor([len(filled)])
            best = GreedySearch(2)(made.model, *made.model.encode(*given))[0][0]
        (found,) = made.transcribe([[sound]])
        assert best.labels and found.words == timed_words(best, VOCABULARY, 0.04)
        assert found.last and found.seconds == samples / 8000


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050])
def test_times_are_those_of_whole_samples(rate: int) -> None:
    """At 11,025 Hz frames are 110 samples apart, and not 110.25: in 20 s that is 45 ms."""
    made = Transcriber(
        transcriber().model, VOCABULARY, replace(DATA, sample_rate=rate), GreedySearch(2), 20.0
    )
    frames = len(made.features(np.zeros(20 * rate, np.float32)))
    last = (frames - 1) * made.frame_seconds / 4
    assert abs(last + 0.025 - 20) < 0.0101 and last + 0.025 <= 20 + 1e-9


def test_several_recordings_in_any_batches() -> None:
    lengths = [0.0, 2.0, 0.01, 1.0, 1.2]
    sounds = [noise(length, seed) for seed, length in enumerate(lengths)]
    every = []
    for size in (1, 3):
        pieces = [np.array_split(each, 3) for each in sounds]
        words = {}
        for part in transcriber(size).transcribe(pieces):
            words.setdefault(part.recording, []).extend(part.words)
            length = lengths[part.recording]
            assert bool(part.texts) == (length <= 1)  # recordings of one window
            assert not part.last or part.seconds == pytest.approx(length)
        every.append({key: [word.text for word in found] for key, found in words.items()})
    assert every[0] == every[1]
    assert every[0].keys() == set(range(5)) and every[0][0] == every[0][2] == []


def test_words_of_later_windows_have_their_times_in_the_recording() -> None:
    """Windows of 1.5 s begin every 1.2 s; what is heard in each is put together by hand."""
    made = Transcriber(transcriber().model, VOCABULARY, DATA, GreedySearch(2), 1.5)
    sound, words = noise(3.5, 1), []
    for number, window in enumerate(split_windows([sound], 12_000, 2400)):
        start, best = 1.2 * number, made.hypotheses([window])[0][0]
        its = timed_words(best, VOCABULARY, 0.04, start)
        words = merge_words(words, its, start, start + 0.3) if number else its
    assert number == 2 and words[-1].end > 2.7
    parts = [*made.transcribe([[sound], [sound]])]
    for recording in (0, 1):
        its = [word for part in parts if part.recording == recording for word in part.words]
        assert [word.text for word in its] == [word.text for word in words]
        times = [(word.start, word.end) for word in words]
        assert np.array([(word.start, word.end) for word in its]) == pytest.approx(np.array(times))


def test_sound_is_not_held() -> None:
    """Of an endless stream words come, and no more is read than a window ahead."""
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield noise(0.25, read)

    parts = transcriber(1).transcribe([endless()])
    for number in range(1, 4):
        next(parts)
        assert read <= 3 * number + 3


class Slow(io.BytesIO):
    """A stream that gives odd numbers of bytes."""

    def read1(self, size: int | None = -1) -> bytes:
        return self.read(7)


def test_raw_sound() -> None:
    values = np.arange(-500, 500, dtype=np.int16)
    found = np.concatenate(list(raw_pieces(Slow(values.tobytes() + b"x"))))
    np.testing.assert_array_equal(found, values / np.float32(32768))
