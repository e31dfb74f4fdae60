"""Tokenizers: bytes, byte-level BPE, any tokenizer.json, and SentencePiece models.

Tokenizers that Magneto trained restore any text exactly.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from magneto.data.problems import quantity
from magneto.files import import_extra, nearest_path, user_path
from magneto.progress import SILENT, Progress

END, BEGIN, PAD, MASK = "</s>", "<s>", "<pad>", "<mask>"
NOISE_TOKENIZER = "builtin:noise"
"""Image tokenizer with random codes, so that `magneto plan` needs no data."""
# Special tokens for masked language modelling and fine-tuning.
SPECIAL = (END, BEGIN, PAD, MASK)
# Usual names of special tokens in tokenizer.json files, in order of preference.
END_NAMES = (END, "<|endoftext|>", "[SEP]", "<eos>", "<|end_of_text|>")
BEGIN_NAMES = (BEGIN, "[CLS]", "<bos>", "<|begin_of_text|>")
PAD_NAMES = (PAD, "[PAD]")
MASK_NAMES = (MASK, "[MASK]")
# Characters of text on which a tokenizer is trained; more change little and take long.
BPE_CHARACTERS = 100_000_000
MOST_TOKENS = 1 << 24
# Files of tokenizers. The last is a SentencePiece model in an exported directory.
FILES = ("tokenizer.bytes", "tokenizer.json", "tokenizer.model", "sentencepiece.model")
# Length of pieces of long lines, which SentencePiece would skip above its limit in bytes.
LINE_CHARACTERS = 4000


class Tokenizer(Protocol):
    """Interface of tokenizers for data pipelines.

    Attributes:
        vocab_size: Number of tokens in the vocabulary.
        end: Token at the end of a document.
        begin: Token at the start of an encoder's input, or `end` if the tokenizer has no start
            token.
        pad: Token for padding, or `end` if the tokenizer has no padding token.
        mask: Token for masked positions, or None.
        path: File of the tokenizer, or None.
    """

    vocab_size: int
    end: int
    begin: int
    pad: int
    mask: int | None
    path: Path | None

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return each text's tokens, without special tokens."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens, without special tokens."""
        ...

    def pieces(self) -> list[str]:
        """Return the text of each token with its spaces. An incomplete character becomes U+FFFD."""
        ...

    def save(self, directory: Path) -> None:
        """Write files that `load_tokenizer` reads."""
        ...


class ByteTokenizer:
    """Tokenizer of bytes and special tokens, which needs neither training nor a library."""

    vocab_size = 260
    end = 256
    begin = 257
    pad = 258
    mask: int | None = 259
    path: Path | None = None

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [list(text.encode("utf-8", errors="surrogatepass")) for text in texts]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of bytes. Invalid UTF-8 becomes U+FFFD."""
        return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")

    def pieces(self) -> list[str]:
        return [bytes([byte]).decode("ascii", errors="replace") for byte in range(256)] + [""] * 4

    def save(self, directory: Path) -> None:
        (directory / "tokenizer.bytes").touch()


class FastTokenizer:
    """Tokenizer from a tokenizer.json of the `tokenizers` library, such as GPT-2's.

    If a text contains the name of a special token, the name is encoded as plain text. If the name
    is also an ordinary word of the vocabulary, the name is encoded character by character. Data
    pipelines add the end-of-document token, and the tokenizer does not.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        library = import_tokenizers()
        try:
            self.inner = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{path} is not a tokenizer: {error}") from error
        self.inner.encode_special_tokens = True
        self.inner.no_padding()
        self.inner.no_truncation()
        vocabulary = self.inner.get_vocab(with_added_tokens=True)
        end = _first(vocabulary, END_NAMES)
        if end is None:
            raise ValueError(
                f"{path} has no end-of-document token: add one of {', '.join(END_NAMES)}"
            )
        self.end: int = end
        self.begin: int = _first(vocabulary, BEGIN_NAMES, end)  # type: ignore[assignment]
        self.pad: int = _first(vocabulary, PAD_NAMES, end)  # type: ignore[assignment]
        self.mask = _first(vocabulary, MASK_NAMES)
        self.vocab_size = max(vocabulary.values()) + 1
        # WordPiece, WordLevel and Unigram also find these names as words of their vocabulary.
        named = {self.end, self.begin, self.pad, self.mask} - {None}
        self._spelled = {token: [*self._spell(token, named)] for token in named}

    def encode(self, texts: list[str]) -> list[list[int]]:
        encoded = self.inner.encode_batch(texts, add_special_tokens=False)
        return [self._plain(found.ids) for found in encoded]

    def _spell(self, token: int, named: Collection[int]) -> Iterator[int]:
        for character in self.inner.id_to_token(token):
            with suppress(Exception):  # the library's, without a token for unknown characters
                found = self.inner.model.tokenize(character)
                yield from (piece.id for piece in found if piece.id not in named)

    def _plain(self, tokens: list[int]) -> list[int]:
        if self._spelled.keys().isdisjoint(tokens):
            return tokens
        return [piece for token in tokens for piece in self._spelled.get(token, (token,))]

    def decode(self, tokens: list[int]) -> str:
        return self.inner.decode(tokens, skip_special_tokens=True)

    def pieces(self) -> list[str]:
        special = set(self.inner.get_added_tokens_decoder())
        known = self.inner.get_vocab(with_added_tokens=True)
        names = [""] * self.vocab_size
        for name, number in known.items():
            names[number] = "" if number in special else name
        if any(name.startswith("##") for name in names):
            return [n[2:] if n.startswith("##") else f" {n}" if n else "" for n in names]
        if any(name.startswith("Ġ") for name in names):
            spelling = import_tokenizers().decoders.ByteLevel()
            return [spelling.decode([name]) for name in names]
        return [name.replace("▁", " ") for name in names]

    def save(self, directory: Path) -> None:
        self.inner.save(str(directory / "tokenizer.json"))


class SentencePieceTokenizer:
    """A SentencePiece model."""

    def __init__(self, path: Path) -> None:
        library = import_sentencepiece()
        self.path: Path | None = path
        try:
            self.inner: Any = library.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise ValueError(f"{path} is not a tokenizer: {error}") from error
        self.vocab_size = self.inner.vocab_size()
        self.end = self.inner.eos_id()
        if self.end < 0:
            raise ValueError(f"{path} has no end-of-sentence piece: train it with eos_id set")
        begin, pad, mask = (
            self.inner.bos_id(), self.inner.pad_id(), self.inner.piece_to_id(MASK)
        )  # fmt: skip
        self.begin = begin if begin >= 0 else self.end
        self.pad = pad if pad >= 0 else self.end
        self.mask: int | None = None if mask == self.inner.unk_id() else mask

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self.inner.encode(texts, out_type=int)

    def decode(self, tokens: list[int]) -> str:
        return self.inner.decode(tokens)

    def pieces(self) -> list[str]:
        inner = self.inner
        return [
            "" if inner.is_control(n) or inner.is_unknown(n)
            else bytes([int(inner.id_to_piece(n)[1:-1], 16)]).decode("ascii", errors="replace")
            if inner.is_byte(n)
            else inner.id_to_piece(n).replace("▁", " ")
            for n in range(self.vocab_size)
        ]  # fmt: skip

    def save(self, directory: Path) -> None:
        (directory / "tokenizer.model").write_bytes(self.inner.serialized_model_proto())


def load_tokenizer(name: str | Path) -> Tokenizer:
    """Load a tokenizer.

    `name` is "bytes", a tokenizer.json, a .model file, or a directory with a tokenizer.

    Raises:
        FileNotFoundError: If the file does not exist. The message suggests the nearest path.
        ValueError: If the file is not a tokenizer.
    """
    if str(name) == "bytes":
        return ByteTokenizer()
    path = user_path(name)
    if path.is_dir():
        found = next((path / file for file in FILES if (path / file).exists()), None)
        if found is None:
            raise FileNotFoundError(f"{path} has no tokenizer ({', '.join(FILES)})")
        return ByteTokenizer() if found.suffix == ".bytes" else load_tokenizer(found)
    if not path.is_file():
        known = "bpe (trained on first use), bytes, a tokenizer.json, or a SentencePiece .model"
        raise FileNotFoundError(
            f"no tokenizer {name}{nearest_path(path)} (a tokenizer can be {known})"
        )
    if path.suffix == ".model":
        return SentencePieceTokenizer(path)
    return FastTokenizer(path)


def check_vocabulary(wanted: int | None, least: int, whose: str = "the tokenizer") -> None:
    """Check that `wanted`, the recipe's vocabulary size, is at least `least`.

    Raises:
        ValueError: If the vocabulary is too small.
    """
    if wanted is not None and wanted < least:
        raise ValueError(f"model.vocab_size ({wanted}) is too small for the {least} tokens of "
                         f"{whose}: raise model.vocab_size or leave it out")  # fmt: skip


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    path: Path,
    special: tuple[str, ...] = (END,),
    progress: Progress = SILENT,
) -> None:
    """Train a byte-level BPE on up to 100 million characters, and write a tokenizer.json.

    Decoding restores any text exactly. The ids of special tokens come first.

    Raises:
        ValueError: If the vocabulary size is above `MOST_TOKENS`.
    """
    if vocab_size > MOST_TOKENS:  # the library would allocate the memory and crash
        raise ValueError(f"vocab_size must be at most {MOST_TOKENS:,}, not {vocab_size}")
    tokenizers = import_tokenizers()
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_with_progress(limited(texts), "texts", progress), trainer)
    inner.save(str(path))


def limited(texts: Iterable[str]) -> Iterator[str]:
    size = 0
    for text in texts:
        size += len(text)
        yield text
        if size > BPE_CHARACTERS:
            return


def _with_progress(
    texts: Iterable[str], unit: str, progress: Progress, most: int | None = None
) -> Iterator[str]:
    number = 0
    for number, text in enumerate(texts, 1):
        progress.update(f"reading {unit} for a tokenizer", number, None)
        yield text
    number = min(number, most or number)
    progress.say(f"training a tokenizer on {quantity(number, unit)}; this can take minutes")


def train_sentencepiece(
    texts: Iterable[str],
    kind: Literal["unigram", "bpe"],
    vocab_size: int,
    sample: int,
    progress: Progress = SILENT,
) -> bytes:
    """Train a SentencePiece model that restores any text exactly.

    Text is not normalised, spaces are kept, and unknown characters become bytes. The first four
    tokens are `<s>`, `<pad>`, `</s>` and `<unk>`, as in fairseq. The fifth token is `<mask>`.

    Args:
        texts: Texts whose lines are the training examples. Long lines are divided.
        kind: Kind of SentencePiece model.
        vocab_size: Number of pieces, special pieces included.
        sample: Number of lines to train on. Lines are chosen at random.
        progress: Progress display.

    Raises:
        ValueError: If the text is too short for the vocabulary size.
        ValueError: If the vocabulary is too small for all bytes and characters.
    """
    library, model = import_sentencepiece(), io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=_with_progress(_lines(texts), "lines", progress, sample),
            model_writer=model, model_type=kind,
            vocab_size=vocab_size, input_sentence_size=sample, shuffle_input_sentence=True,
            max_sentence_length=4 * LINE_CHARACTERS, normalization_rule_name="identity",
            remove_extra_whitespaces=False, byte_fallback=True, minloglevel=2,
            bos_id=0, pad_id=1, eos_id=2, unk_id=3,
            bos_piece=BEGIN, pad_piece=PAD, eos_piece=END, control_symbols=[MASK],
        )  # fmt: skip
    except RuntimeError as error:  # the message follows the place in the library's code
        raise ValueError(f"SentencePiece: {str(error).rpartition('] ')[2]}") from error
    return model.getvalue()


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for line in text.split("\n"):
            for start in range(0, len(line), LINE_CHARACTERS):
                yield line[start : start + LINE_CHARACTERS]


def _first(
    vocabulary: dict[str, int], names: tuple[str, ...], other: int | None = None
) -> int | None:
    return next((vocabulary[name] for name in names if name in vocabulary), other)


def import_tokenizers() -> Any:
    return import_extra("tokenizers", "text", "this tokenizer needs the package tokenizers")


def import_sentencepiece() -> Any:
    return import_extra("sentencepiece", "text", "this tokenizer needs the package sentencepiece")
