"""The numbers that a recogniser writes: 0 is blank, then a tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from magneto.data.cache import cache_directory, content_digest, fingerprint, is_kept, made_whole
from magneto.data.tokenizer import (
    END,
    Tokenizer,
    import_tokenizers,
    load_tokenizer,
    train_bpe,
    train_sentencepiece,
)
from magneto.speech.config import SpeechDataConfig

BLANK = 0
UNKNOWN = "<unk>"
# Tokenizers that are learnt from the training transcripts.
TRAINED = ("characters", "bpe", "sentencepiece")
# Transcripts that SentencePiece learns from, at most: all of LibriSpeech's.
SAMPLE = 300_000


class SpeechVocabulary:
    """A tokenizer whose numbers are moved up by one, so that 0 is blank with any tokenizer.

    Attributes:
        tokenizer: Of the transcripts.
        size: Tokens and blank.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.vocab_size + 1

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the labels of each text, int32; never blank."""
        return [np.array(t, np.int32) + 1 for t in self.tokenizer.encode(list(texts))]

    def decode(self, labels: Iterable[int]) -> str:
        """Return the text of labels; blanks are left out."""
        return self.tokenizer.decode([int(label) - 1 for label in labels if label != BLANK])

    def pieces(self) -> list[str]:
        """Return what each label stands for; nothing for blank."""
        return ["", *self.tokenizer.pieces()]

    def save(self, directory: Path) -> None:
        """Write the tokenizer into an existing directory."""
        self.tokenizer.save(directory)


def make_vocabulary(config: SpeechDataConfig, texts: Sequence[str]) -> SpeechVocabulary:
    """Load the tokenizer that a configuration names, or learn it from transcripts, once.

    Raises:
        FileNotFoundError: If there is no such tokenizer.
        ValueError: If the transcripts are too few for the vocabulary.
    """
    if config.tokenizer not in TRAINED:
        return SpeechVocabulary(load_tokenizer(config.tokenizer))
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in texts))
    name = fingerprint(digest, config.tokenizer, config.vocab_size)
    held = cache_directory() / f"speech-tokenizer-{name}"
    if not is_kept(held):
        with made_whole(held) as aside:
            _learn(config, texts, aside)
    return SpeechVocabulary(load_tokenizer(held))


def _learn(config: SpeechDataConfig, texts: Sequence[str], directory: Path) -> None:
    if config.tokenizer == "sentencepiece":
        model = train_sentencepiece(texts, "unigram", config.vocab_size, SAMPLE)
        (directory / "tokenizer.model").write_bytes(model)
    elif config.tokenizer == "bpe":
        train_bpe(texts, config.vocab_size, directory / "tokenizer.json")
    else:
        train_characters(texts, directory / "tokenizer.json")


def train_characters(texts: Iterable[str], path: Path) -> None:
    """Write a tokenizer.json with a token per character of the texts; others become `<unk>`."""
    tokenizers = import_tokenizers()
    characters = sorted({character for text in texts for character in text})
    numbers = {piece: number for number, piece in enumerate([END, UNKNOWN, *characters])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, UNKNOWN))
    each = tokenizers.Regex(r"[\s\S]")
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(each, "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens([END, UNKNOWN])
    inner.save(str(path))
