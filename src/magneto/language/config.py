"""The `model` and `data` sections of recipes of text. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from magneto.config import ConfigError, problem_lines
from magneto.data.tokenizer import END, SPECIAL
from magneto.nn.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TransformerConfig):
    """A decoder-only language model.

    Attributes:
        vocab_size: Tokens; None for as many as the tokenizer has.
        tie_embeddings: Whether the output matrix is the embedding table.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance, as the
            paper's theory has its input and as fairseq does.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    vocab_size: int | None = None
    tie_embeddings: bool = True
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    loss_chunk: int = 1024


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(TransformerConfig):
    """An encoder over tokens.

    Attributes:
        vocab_size: Tokens; None for as many as the tokenizer has.
        token_types: Kinds of segment with a learned vector each; 0 for none. BERT has 2.
        embedding_scale: "sqrt_width" multiplies embeddings, N(0, 1/width), to unit variance.
    """

    vocab_size: int | None = None
    token_types: int = 0
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelConfig(TextEncoderConfig):
    """A text encoder with a head that guesses tokens.

    Attributes:
        tie_embeddings: Whether the output matrix is the embedding table.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    tie_embeddings: bool = True
    loss_chunk: int = 1024


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """Text for language modelling: the `data` section of a recipe.

    Attributes:
        source: PATH (file or folder of .txt, .jsonl, with .gz too), hf:NAME[:CONFIG[:SPLIT]] or
            builtin:docstrings.
        text_field: Key of the text in .jsonl and Hugging Face records.
        document: What a document of a .txt file is: some "paragraphs", which end at a blank line,
            or each "line", for text with one sentence per line.
        tokenizer: "bpe" (byte-level, trained on the source on first use), "bytes", or the path of a
            tokenizer.json or a SentencePiece .model.
        vocab_size: Of a "bpe" tokenizer.
        max_length: Tokens of a sequence.
        validation_fraction: Share of documents, chosen by their hash, that is held out.
        validation_source: Another source to validate on; then nothing is held out.
        mask_documents: Whether attention stops at document boundaries inside a sequence.
        streaming: Read and tokenise while training, for what fits no disk; nothing is cached.
        shuffle_documents: Documents in a streaming shuffle block.
    """

    # Reserved in a "bpe" tokenizer.
    special: ClassVar[tuple[str, ...]] = (END,)

    source: str = "builtin:docstrings"
    text_field: str = "text"
    document: Literal["paragraphs", "line"] = "paragraphs"
    tokenizer: str = "bpe"
    vocab_size: int = 8192
    max_length: int = 512
    validation_fraction: float = 0.05
    validation_source: str | None = None
    mask_documents: bool = False
    streaming: bool = False
    shuffle_documents: int = 1024

    def __post_init__(self) -> None:
        wrong = []
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.max_length < 1:
            wrong.append(f"max_length must be 1 or more, not {self.max_length}")
        least = 256 + len(self.special)
        if self.vocab_size < least:
            wrong.append(
                f"vocab_size must be {least} or more (256 bytes and {', '.join(self.special)}), "
                f"not {self.vocab_size}"
            )
        if self.shuffle_documents < 1:
            wrong.append(f"shuffle_documents must be 1 or more, not {self.shuffle_documents}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class MaskedTextDataConfig(TextDataConfig):
    """Text for masked language modelling: the `data` section of a recipe.

    Attributes:
        mask_ratio: Share of a sequence's tokens to guess (BERT's and the paper's 15 %).
        masking: What is chosen: single tokens, whole words (all their tokens), or spans.
        corruption: What stands in a chosen token's place: always the mask ("mask", as in the
            authors' code), or by BERT's rule 80 % mask, 10 % another token, 10 % itself ("bert").
    """

    special: ClassVar[tuple[str, ...]] = SPECIAL

    mask_ratio: float = 0.15
    masking: Literal["token", "word", "span"] = "token"
    corruption: Literal["mask", "bert"] = "mask"

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        if not 0 < self.mask_ratio < 1:
            wrong.append(f"mask_ratio must be in (0, 1), not {self.mask_ratio}")
        if self.max_length == 1:
            wrong.append("max_length must be 2 or more: the first token only begins the sequence")
        if wrong:
            raise ConfigError(wrong)
