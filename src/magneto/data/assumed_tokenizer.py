"""What stands for a tokenizer that is not there yet, where only its size matters."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from magneto.data.tokenizer import SPECIAL, Tokenizer, load_tokenizer
from magneto.files import user_path


class AssumedTokenizer:
    """A tokenizer of some size that can read and write no text.

    Args:
        vocab_size: How many tokens it has.
    """

    end, begin, pad = 0, 1, 2
    mask: int | None = 3
    path: Path | None = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = max(vocab_size, len(SPECIAL) + 1)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Refuse: it knows no tokens."""
        raise ValueError("this tokenizer was assumed, and can't read texts")

    def decode(self, tokens: list[int]) -> str:
        """Refuse: it knows no tokens."""
        raise ValueError("this tokenizer was assumed, and can't write texts")

    def pieces(self) -> list[str]:
        """Return nothing for every token."""
        return [""] * self.vocab_size

    def save(self, directory: Path) -> None:
        """Refuse: there is nothing to save."""
        raise ValueError("this tokenizer was assumed, and can't be saved")


def assume_tokenizer(
    name: str, trained: Collection[str], vocab_size: int, wanted: int | None
) -> Tokenizer:
    """Return the tokenizer that a recipe names, or one of the size that it would have.

    Args:
        name: As `data.tokenizer` says.
        trained: Names of tokenizers that are learnt from the data.
        vocab_size: Of one that is learnt.
        wanted: The model's vocabulary, if it is set: stands for a file that is not there.

    Raises:
        FileNotFoundError: If the file is not there, and no vocabulary is set.
    """
    if name in trained:
        return AssumedTokenizer(min(vocab_size, wanted or vocab_size))
    if name != "bytes" and not user_path(name).exists() and wanted is not None:
        return AssumedTokenizer(wanted)
    return load_tokenizer(name)
