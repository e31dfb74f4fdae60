"""Words get the times of their own labels, with any tokenizer."""

from magneto.data.tokenizer import ByteTokenizer, load_tokenizer
from magneto.speech.decoding import Hypothesis
from magneto.speech.long_audio import Word, timed_words
from magneto.speech.vocabulary import SpeechVocabulary, train_characters


def test_characters(tmp_path) -> None:
    train_characters(["one two"], tmp_path / "tokenizer.json")
    vocabulary = SpeechVocabulary(load_tokenizer(tmp_path))
    labels = vocabulary.encode(["one two"])[0].tolist()
    found = timed_words(Hypothesis(labels, [2, 3, 5, 6, 9, 9, 10], 0.0), vocabulary, 0.5, 100.0)
    assert found == [Word("one", 101.0, 103.0), Word("two", 104.5, 105.5)]


def test_bytes_of_one_character() -> None:
    vocabulary = SpeechVocabulary(ByteTokenizer())
    labels = vocabulary.encode(["ä b"])[0].tolist()
    assert len(labels) == 4
    found = timed_words(Hypothesis(labels, [0, 1, 2, 3], 0.0), vocabulary, 1.0)
    assert [word.text for word in found] == ["ä", "b"]
    assert (found[0].start, found[1].start, found[1].end) == (0.0, 3.0, 4.0)


def test_no_words() -> None:
    assert timed_words(Hypothesis([], [], 0.0), SpeechVocabulary(ByteTokenizer()), 1.0) == []
