"""Windows cover a recording, and no word of the overlaps is lost or doubled."""

import random

import numpy as np
import pytest

from magneto.speech.long_audio import JoinedWords, Word, common_words, cut_windows, join


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 17, 18, 100, 101])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_windows_cover_all_samples(count: int, piece: int) -> None:
    samples = np.arange(count, dtype=np.float32)
    pieces = [samples[start : start + piece] for start in range(0, count, piece)]
    windows = list(cut_windows(pieces, 10, 3))
    assert [window.start for window in windows] == [7 * n for n in range(len(windows))]
    for window in windows:
        assert np.array_equal(window.samples, samples[window.start : window.start + 10])
        assert window.last == (window is windows[-1])
        assert len(window.samples) == 10 or window.last
    assert windows[-1].start + len(windows[-1].samples) == count
    assert len(windows) == 1 or len(windows[-1].samples) > 3


def test_nothing_is_read_before_it_is_needed() -> None:
    read = []

    def pieces():
        for number in range(100):
            read.append(number)
            yield np.zeros(5, np.float32)

    windows = cut_windows(pieces(), 10, 2)
    next(windows)
    assert len(read) == 3


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


@pytest.mark.parametrize("seed", range(30))
def test_no_word_is_lost_or_doubled(seed: int) -> None:
    words, chance = spoken(seed), random.Random(seed)
    size, overlap = chance.choice([(10.0, 3.0), (20.0, 4.0), (6.0, 2.5)])
    length, start, joined, found = words[-1].end + 0.5, 0.0, JoinedWords(overlap), []
    while True:
        stop = min(start + size, length)
        last = stop == length
        found += joined.add(heard(words, start, stop, chance), start, stop, last)
        if last:
            break
        start += size - overlap
    assert [word.text for word in found] == [word.text for word in words]


def test_words_are_ready_as_soon_as_nothing_can_change_them() -> None:
    joined = JoinedWords(2.0)
    words = [Word(str(n), n + 0.2, n + 0.8) for n in range(10)]
    ready = joined.add(words, 0.0, 10.0, False)
    assert [word.text for word in ready] == list("0123456")


def test_where_the_windows_agree_on_nothing_the_middle_counts() -> None:
    before = [Word("a", 0.0, 0.4), Word("b", 2.2, 2.6)]
    after = [Word("c", 1.0, 1.4), Word("d", 2.4, 2.8), Word("e", 4.0, 4.4)]
    kept, new = join(before, after, 1.0, 3.0)
    assert [w.text for w in kept] == ["a"] and [w.text for w in new] == ["d", "e"]


def test_the_longest_common_sequence_of_words() -> None:
    before = [Word(text, n, n + 0.5) for n, text in enumerate("abcd")]
    after = [Word(text, n + 0.1, n + 0.6) for n, text in enumerate("abxd")]
    assert common_words(before, after, -1.0, 9.0) == [(0, 0), (1, 1), (3, 3)]
    assert common_words(before, after, 0.9, 2.0) == [(1, 1)]
    # What begins where the window does may be the end of another word.
    assert common_words(before, after, 0.05, 9.0) == [(1, 1), (3, 3)]
    far = [Word(word.text, word.start + 5, word.end + 5) for word in after]
    assert common_words(before, far, -1.0, 9.0) == []
