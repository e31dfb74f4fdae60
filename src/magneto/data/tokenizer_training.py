"""Train a tokenizer on a source: byte-level BPE, or SentencePiece unigram or BPE. All lossless."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from magneto.data.documents import DOCUMENTS, read_documents
from magneto.data.problems import Counts
from magneto.data.tokenizer import (
    BEGIN,
    BPE_CHARACTERS,
    END,
    MASK,
    PAD,
    SPECIAL,
    Tokenizer,
    import_sentencepiece,
    load_tokenizer,
    train_bpe,
)
from magneto.files import directory_aside, sync_to_disk
from magneto.progress import Progress

Kind = Literal["byte-bpe", "unigram", "bpe"]
KINDS: tuple[str, ...] = get_args(Kind)
# Lines, chosen at random among all, from which SentencePiece learns: its unigram model takes 2.5
# minutes for 64k pieces from 60 thousand lines, and more than ten from 50 MB.
SAMPLE = 60_000
# Longer lines are cut: SentencePiece leaves out what exceeds its limit, which is in bytes.
LINE_CHARACTERS = 4000
# Both libraries take numbers of 32 bits and more; no vocabulary is that large. SentencePiece wants
# more than a hundred lines to draw from.
RANGES = {"--vocab-size": (1, 2**24), "--sample": (101, 2**31 - 1)}


def train_tokenizer(
    source: str,
    field: str,
    kind: Kind,
    vocab_size: int,
    out: Path,
    progress: Progress,
    sample: int = SAMPLE,
) -> Tokenizer:
    """Train a tokenizer with `</s>`, `<s>`, `<pad>` and `<mask>`, write it and load it.

    Args:
        source: PATH, hf:NAME or builtin:NAME; read once, as a stream.
        field: Key of the text in records.
        kind: "byte-bpe" gives a tokenizer.json, from at most 100M characters; "unigram" and "bpe"
            give a SentencePiece .model.
        vocab_size: Tokens, special ones included.
        out: The file (.json or .model), or a directory for tokenizer.json or tokenizer.model.
        progress: Called while reading.
        sample: Lines that SentencePiece learns from, drawn from all that are read.

    Raises:
        FileExistsError: If the file is there already.
        ValueError: If the vocabulary is too small or too large, or `out` ends otherwise.
    """
    for (name, (least, most)), value in zip(RANGES.items(), (vocab_size, sample), strict=True):
        if not least <= value <= most:
            raise ValueError(f"{name} {value}: must be in {least:,} to {most:,}")
    path = _target(out, kind)
    say, counts = progress.say, Counts()
    texts = _counted(read_documents(source, field, counts), progress)
    first = next(texts, None)  # what is wrong with the source is known before anything is made
    if first is None:
        raise ValueError(
            f"there is no text in {source}: {counts.describe(DOCUMENTS)}; the text of a record is "
            f"looked for in {field!r} (--text-field)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)

    def announce(what: str) -> None:
        say(f"{source}: {counts.describe(DOCUMENTS)}; learning {vocab_size:,} pieces from {what}, "
            "which can take minutes")  # fmt: skip

    with directory_aside(path) as aside:
        made = aside / path.name
        _learn(chain([first], texts), kind, vocab_size, sample, made, announce)
        tokenizer = load_tokenizer(made)
        tokenizer.path = path
        sync_to_disk(made)
        made.replace(path)
    return tokenizer


def _learn(
    texts: Iterator[str],
    kind: Kind,
    vocab_size: int,
    sample: int,
    path: Path,
    announce: Callable[[str], None],
) -> None:
    if kind == "byte-bpe":
        least = 256 + len(SPECIAL)
        if vocab_size < least:
            raise ValueError(f"a byte-bpe vocabulary has {least} tokens or more")
        read = _announced(_some(texts), "documents", None, announce)
        train_bpe(read, vocab_size, path, SPECIAL)
    else:
        lines = _announced(_lines(texts), "lines", sample, announce)
        path.write_bytes(train_sentencepiece(lines, kind, vocab_size, sample))


def train_sentencepiece(
    lines: Iterable[str], kind: Literal["unigram", "bpe"], vocab_size: int, sample: int
) -> bytes:
    """Train a SentencePiece model from which any text comes back exactly.

    Nothing is normalised, spaces are kept, and characters outside the vocabulary become bytes. The
    first numbers are `<s>`, `<pad>`, `</s>`, `<unk>` (as in fairseq), then `<mask>`.

    Raises:
        ValueError: If the text is too little, or the size too small, for the vocabulary.
    """
    library = import_sentencepiece()
    model = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type=kind,
            vocab_size=vocab_size, input_sentence_size=sample, shuffle_input_sentence=True,
            max_sentence_length=4 * LINE_CHARACTERS, normalization_rule_name="identity",
            remove_extra_whitespaces=False, byte_fallback=True, minloglevel=2,
            bos_id=0, pad_id=1, eos_id=2, unk_id=3,
            bos_piece=BEGIN, pad_piece=PAD, eos_piece=END, control_symbols=[MASK],
        )  # fmt: skip
    except RuntimeError as error:
        raise ValueError(_reason(str(error), vocab_size)) from error
    return model.getvalue()


def _reason(message: str, vocab_size: int) -> str:
    """Say in one line why SentencePiece did not train."""
    if found := re.search(r"too high .*<= (\d+)", message):
        return f"too little text for {vocab_size} pieces: at most {found[1]}"
    if found := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        return f"{vocab_size} pieces are too few: {found[1]} are needed for bytes and characters"
    return f"SentencePiece: {message.splitlines()[0] if message else 'it failed'}"


def _target(out: Path, kind: str) -> Path:
    ending = ".json" if kind == "byte-bpe" else ".model"
    path = out if out.suffix == ending else out / f"tokenizer{ending}"
    if path is not out and (out.is_file() or out.suffix in (".json", ".model")):
        raise ValueError(f"--out {out}: a {kind} tokenizer is a {ending} file, or a directory")
    if path.exists():
        raise FileExistsError(f"{path} is there already")
    return path


def _counted(texts: Iterator[str], progress: Progress) -> Iterator[str]:
    for number, text in enumerate(texts, 1):
        progress.update("reading documents", number, None)
        yield text


def _announced(
    texts: Iterable[str], unit: str, most: int | None, announce: Callable[[str], None]
) -> Iterator[str]:
    """Yield texts; after the last, tell how many are learnt from: what begins then is silent."""
    number = 0
    for text in texts:
        number += 1
        yield text
    announce(f"{min(number, most or number):,} {unit}")


def _some(texts: Iterable[str]) -> Iterator[str]:
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if size > BPE_CHARACTERS:
            return


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of documents, long ones in pieces."""
    for text in texts:
        for line in text.split("\n"):
            for start in range(0, len(line), LINE_CHARACTERS):
                yield line[start : start + LINE_CHARACTERS]
