"""`magneto tokenizer train`: make a tokenizer that recipes can name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from magneto.commands.shared import (
    Parser,
    answer,
    is_standard_input,
    standard_input_as_file,
)
from magneto.config import ConfigError, nearest
from magneto.data.documents import DOCUMENTS, read_documents
from magneto.data.problems import Counts
from magneto.data.tokenizer import (
    SPECIAL,
    Tokenizer,
    load_tokenizer,
    train_bpe,
    train_sentencepiece,
)
from magneto.files import directory_aside, sync_to_disk
from magneto.progress import Progress, ProgressBars

KINDS = ("byte-bpe", "unigram", "bpe")
# Lines, chosen at random among all, from which SentencePiece learns: its unigram model takes 2.5
# minutes for 64k pieces from 60 thousand lines, and more than ten from 50 MB.
SAMPLE = 60_000
# Both libraries take numbers of 32 bits and more; no vocabulary is that large. SentencePiece wants
# more than a hundred lines to draw from.
RANGES = {"--vocab-size": (1, 2**24), "--sample": (101, 2**31 - 1)}
LEAST_BYTES = 256 + len(SPECIAL)


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "tokenizer train",
        "Train a lossless tokenizer with the special tokens <s>, </s>, <pad> and <mask>. A recipe "
        "names it: --data.tokenizer FILE.",
        "magneto tokenizer train --data books/ --kind unigram --vocab-size 64000 --out books.model",
    )
    made.add_argument("--data", metavar="SOURCE", required=True, help="PATH, hf:NAME, builtin:NAME")
    made.add_argument(
        "--kind",
        choices=KINDS,
        default="byte-bpe",
        help="byte-level BPE (default), or SentencePiece's unigram or bpe",
    )
    made.add_argument("--vocab-size", type=int, default=32000, help="tokens (default 32000)")
    made.add_argument(
        "--out", metavar="PATH", type=Path, required=True, help=".json or .model file, or directory"
    )
    made.add_argument("--text-field", default="text", help="key of the text in records")
    made.add_argument(
        "--sample",
        type=int,
        default=SAMPLE,
        help=f"lines that SentencePiece learns from, drawn from all (default {SAMPLE})",
    )
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    if words and words[0] in ("-h", "--help"):
        words = ["train", *words]
    if not words or words[0] != "train":
        given = f"not {words[0]!r}{nearest(words[0], ['train'])}" if words else "give it first"
        raise ConfigError([f"magneto tokenizer knows one thing to do, train: {given}"])
    given = parser().parse(words[1:])
    report = ProgressBars()
    piped = standard_input_as_file() if is_standard_input(given.data) else nullcontext(given.data)
    with piped as source:
        made = train_tokenizer(
            str(source), given.text_field, given.kind, given.vocab_size, given.out, given.sample,
            report,
        )  # fmt: skip
    report.finish()
    said = f"{made.path}: {made.vocab_size} tokens; use it with --data.tokenizer {made.path}"
    return answer(given, {"tokenizer": str(made.path), "vocab_size": made.vocab_size}, [said])


def train_tokenizer(
    source: str, field: str, kind: Any, vocab_size: int, out: Path, sample: int, progress: Progress
) -> Tokenizer:
    """Train a tokenizer with `</s>`, `<s>`, `<pad>` and `<mask>`, write it and load it.

    Args:
        source: PATH, hf:NAME or builtin:NAME; read once, as a stream.
        field: Key of the text in records.
        kind: One of `KINDS`.
        vocab_size: Tokens, special ones included.
        out: The file (.json or .model), or a directory for tokenizer.json or tokenizer.model.
        sample: Lines that SentencePiece learns from, drawn from all that are read.
        progress: Told of the work.

    Raises:
        FileExistsError: If the file is there already.
        ValueError: If the vocabulary is too small or too large, or `out` ends otherwise.
    """
    for (name, (least, most)), value in zip(RANGES.items(), (vocab_size, sample), strict=True):
        if not least <= value <= most:
            raise ValueError(f"{name} {value}: must be in {least:,} to {most:,}")
    path, counts = target_of(out, kind), Counts()
    texts = read_documents(source, field, counts)
    first = next(texts, None)  # what is wrong with the source is known before anything is made
    if first is None:
        raise ValueError(
            f"there is no text in {source}: {counts.describe(DOCUMENTS)}; the text of a record is "
            f"looked for in {field!r} (--text-field)"
        )
    if kind == "byte-bpe" and vocab_size < LEAST_BYTES:
        raise ValueError(f"a byte-bpe vocabulary has {LEAST_BYTES} tokens or more")
    path.parent.mkdir(parents=True, exist_ok=True)
    with directory_aside(path) as aside:
        made, texts = aside / path.name, chain([first], texts)
        if kind == "byte-bpe":
            train_bpe(texts, vocab_size, made, SPECIAL, progress)
        else:
            made.write_bytes(train_sentencepiece(texts, kind, vocab_size, sample, progress))
        tokenizer = load_tokenizer(made)
        tokenizer.path = path
        sync_to_disk(made)
        made.replace(path)
    progress.say(f"{source}: {counts.describe(DOCUMENTS)}")
    return tokenizer


def target_of(out: Path, kind: str) -> Path:
    """Return the file that a tokenizer is written to."""
    ending = ".json" if kind == "byte-bpe" else ".model"
    path = out if out.suffix == ending else out / f"tokenizer{ending}"
    if path is not out and (out.is_file() or out.suffix in (".json", ".model")):
        raise ValueError(f"--out {out}: a {kind} tokenizer is a {ending} file, or a directory")
    if path.exists():
        raise FileExistsError(f"{path} is there already")
    return path
