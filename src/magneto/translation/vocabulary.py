"""The numbers of a translation model: a joint tokenizer's tokens, then a tag per language."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto.config import nearest
from magneto.data.tokenizer import Tokenizer, load_tokenizer

TAGS_FILE = "tags.txt"


class TranslationVocabulary:
    """A tokenizer shared by all languages, and a tag that says which language to translate into.

    Tags are numbered after the tokenizer's tokens, in the order of `languages`, so that any
    tokenizer will do and no text can contain one.

    Attributes:
        tokenizer: Joint tokenizer.
        languages: Codes of the languages.
        size: Tokens and tags.
        end: Ends a sentence, and is what the decoder reads first.
    """

    def __init__(self, tokenizer: Tokenizer, languages: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.languages = tuple(languages)
        self.size = tokenizer.vocab_size + len(self.languages)
        self.end = tokenizer.end

    def tag(self, language: str) -> int:
        """Return the number of a language's tag.

        Raises:
            ValueError: If the language is not known; names the nearest.
        """
        if language not in self.languages:
            hint = nearest(language, self.languages)
            raise ValueError(f"no language {language!r}{hint} (there is {self.describe()})")
        return self.tokenizer.vocab_size + self.languages.index(language)

    def describe(self) -> str:
        """List the languages."""
        return ", ".join(self.languages)

    def encode_source(self, texts: list[str], language: str) -> list[list[int]]:
        """Return what the encoder reads to translate texts into `language`: tag, tokens, end."""
        tag = self.tag(language)
        return [[tag, *tokens, self.end] for tokens in self.tokenizer.encode(texts)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of what a decoder wrote, up to its end; tags are left out."""
        kept: list[int] = []
        for token in tokens:
            if token == self.end:
                break
            if token < self.tokenizer.vocab_size:
                kept.append(int(token))
        return self.tokenizer.decode(kept)

    def save(self, directory: Path) -> None:
        """Write the tokenizer and the list of languages into an existing directory."""
        self.tokenizer.save(directory)
        (directory / TAGS_FILE).write_text("\n".join(self.languages) + "\n", encoding="utf-8")


def load_vocabulary(directory: Path) -> TranslationVocabulary:
    """Load what `TranslationVocabulary.save` wrote.

    Raises:
        FileNotFoundError: If the directory holds no tokenizer, or no list of languages.
    """
    return TranslationVocabulary(load_tokenizer(directory), read_tags(directory))


def read_tags(directory: Path) -> list[str]:
    """Return the languages that a directory's tags are of.

    Raises:
        FileNotFoundError: If it has no list of them.
    """
    path = directory / TAGS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {TAGS_FILE} in {directory}: it is no translation vocabulary")
    return path.read_text(encoding="utf-8").split()
