"""`magneto tokenizer train`: make a tokenizer that recipes can name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from magneto.commands.shared import (
    Parser,
    is_standard_input,
    print_json,
    standard_input_as_file,
)
from magneto.config import ConfigError, nearest
from magneto.data.tokenizer_training import KINDS, SAMPLE, train_tokenizer
from magneto.progress import ProgressBars


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
            str(source), given.text_field, given.kind, given.vocab_size, given.out, report,
            given.sample,
        )  # fmt: skip
    report.finish()
    if given.json:
        print_json({"tokenizer": str(made.path), "vocab_size": made.vocab_size})
    else:
        print(f"{made.path}: {made.vocab_size} tokens; use it with --data.tokenizer {made.path}")
    return 0
