"""`magneto tokenizer train`: training of tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from magneto.commands.shared import Parser, answer, check_effect, read_as
from magneto.data.documents import DOCUMENTS, read_documents
from magneto.data.problems import Counts
from magneto.data.tokenizer import (
    SPECIAL,
    Tokenizer,
    load_tokenizer,
    train_bpe,
    train_sentencepiece,
)
from magneto.files import sync_to_disk, temporary_directory
from magneto.nn.config import Width
from magneto.progress import Progress, ProgressBars

KINDS = ("byte-bpe", "unigram", "bpe")
# Random lines for SentencePiece. Its unigram model with 64k pieces takes 2.5 minutes on 60,000
# lines, and more than ten minutes on 50 MB.
SAMPLE = 60_000
# SentencePiece needs more than a hundred lines to sample from.
Sample = Annotated[int, Interval(ge=101, le=2**31 - 1)]
LEAST_BYTES = 256 + len(SPECIAL)


def parser() -> Parser:
    made = Parser(
        "tokenizer",
        "Train a lossless tokenizer with the special tokens <s>, </s>, <pad> and <mask>. To use "
        "the tokenizer in a recipe, give --data.tokenizer FILE.",
        "magneto tokenizer train --data books/ --kind unigram --vocab-size 64000 --out books.model",
    )
    add = made.add_argument
    add("train", choices=("train",), metavar="train", help="the only subcommand")
    add("--data", required=True, metavar="SOURCE", help="text: PATH, hf:NAME or builtin:NAME")
    what = "byte-bpe is byte-level BPE; unigram and bpe are SentencePiece models"
    add("--kind", choices=KINDS, default="byte-bpe", help=what)
    what = "number of tokens, special tokens included"
    add("--vocab-size", type=read_as(Width), default=32000, metavar="N", help=what)
    what = "output folder or file (.json for byte-bpe, .model for unigram and bpe)"
    add("--out", type=Path, required=True, metavar="PATH", help=what)
    add("--text-field", default="text", metavar="NAME", help="name of the text field in records")
    what = "number of random lines to train SentencePiece on"
    add("--sample", type=read_as(Sample), default=SAMPLE, metavar="N", help=what)
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args = parser().parse(words)
    if args.kind == "byte-bpe":
        check_effect(words, ["sample"], "with --kind byte-bpe")
    progress = ProgressBars()
    made = train_tokenizer(
        args.data, args.text_field, args.kind, args.vocab_size, args.out, args.sample, progress
    )
    progress.finish()
    line = f"{made.path}: {made.vocab_size} tokens; use it with --data.tokenizer {made.path}"
    return answer(args, {"tokenizer": str(made.path), "vocab_size": made.vocab_size}, [line])


def train_tokenizer(
    source: str, field: str, kind: Any, vocab_size: int, out: Path, sample: int, progress: Progress
) -> Tokenizer:
    path, counts = target_of(out, kind), Counts()
    texts = read_documents(source, field, counts)
    first = next(texts, None)  # reports a wrong source before any folder is created
    if first is None:
        raise ValueError(
            f"no text in {source}: {counts.describe(DOCUMENTS)}; if {field!r} is not the text "
            "field, give --text-field NAME"
        )
    if kind == "byte-bpe" and vocab_size < LEAST_BYTES:
        raise ValueError(f"byte-bpe needs --vocab-size {LEAST_BYTES} or more, not {vocab_size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(path) as folder:
        file, texts = folder / path.name, chain([first], texts)
        if kind == "byte-bpe":
            train_bpe(texts, vocab_size, file, SPECIAL, progress)
        else:
            file.write_bytes(train_sentencepiece(texts, kind, vocab_size, sample, progress))
        tokenizer = load_tokenizer(file)
        tokenizer.path = path
        sync_to_disk(file)
        file.replace(path)
    progress.say(f"{source}: {counts.describe(DOCUMENTS)}")
    return tokenizer


def target_of(out: Path, kind: str) -> Path:
    ending = ".json" if kind == "byte-bpe" else ".model"
    path = out if out.suffix == ending else out / f"tokenizer{ending}"
    if path is not out and (out.is_file() or out.suffix in (".json", ".model")):
        raise ValueError(f"--out {out}: a {kind} tokenizer needs a {ending} file or a folder")
    if path.exists():
        raise FileExistsError(f"{path} already exists")
    return path
