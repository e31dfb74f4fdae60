"""Text prepared for language models: tokenised once, kept as memory-mapped numbers, packed.

A cache holds train.bin and validation.bin (documents end to end, each closed by the end token) and
index.json. Its name is a fingerprint of the source, the tokenizer and the split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.cache import (
    also_known,
    cache_directory,
    content_digest,
    fingerprint,
    is_kept,
    made_whole,
    make_writable,
    map_numbers,
)
from magneto.data.documents import DOCUMENTS, documents_fingerprint, open_documents
from magneto.data.problems import Counts
from magneto.data.sources import VALIDATED, hash_of, held_below
from magneto.data.tokenizer import BPE_CHARACTERS, Tokenizer, load_tokenizer, train_bpe
from magneto.files import read_json
from magneto.language.config import TextDataConfig
from magneto.progress import Progress

# Documents tokenised at a time; the tokenizer spreads them over the cores.
BATCH = 256
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Split:
    """One split: its tokens, and the bytes of text they stand for."""

    tokens: np.ndarray
    text_bytes: int


@dataclass(frozen=True)
class PreparedText:
    """A tokenised corpus.

    Attributes:
        tokenizer: What made it.
        train: Training split; empty when streaming.
        validation: Validation split.
        counts: What was met while reading.
        digest: Of all tokens, by which a run knows its data again; taken once, when they were made.
    """

    tokenizer: Tokenizer
    train: Split
    validation: Split
    counts: Counts
    digest: str


def split_documents(config: TextDataConfig, split: str, counts: Counts) -> Iterator[str]:
    """Yield the documents of "train" or "validation".

    Without a validation split or source, documents are held out whole, by their hash.
    """
    there = open_documents(config.source, config.text_field, config.document)
    train = there.get("train") or next(iter(there.values()))
    held = there.get("validation") if "train" in there else None
    if config.validation_source is not None:
        other = open_documents(config.validation_source, config.text_field, config.document)
        held = next(other[name] for name in VALIDATED if name in other)
    if held is not None:
        yield from (held if split == "validation" else train)(counts)
        return
    limit = held_below(train(Counts()), config.validation_fraction)
    for text in train(counts):
        if (hash_of(text) < limit) == (split == "validation"):
            yield text


def prepare_text(config: TextDataConfig, progress: Progress) -> PreparedText:
    """Tokenise a source, or find it tokenised.

    Raises:
        FileNotFoundError: If there is no such source or tokenizer.
        ValueError: If it holds too little text for one sequence in each split.
    """
    if config.streaming:
        return _prepare_stream(config, progress)
    held = _place(config)
    if not is_kept(held, progress):
        with made_whole(held) as aside:
            _fill(config, aside, progress)
    if config.tokenizer == "bpe":
        # A run keeps the tokenizer that came out, and finds the same tokens by it.
        also_known(held, _place(replace(config, tokenizer=str(held))))
    return _open(held, config)


def _place(config: TextDataConfig) -> Path:
    tokenizer_part = _tokenizer_name(config)
    sources = [config.source, config.validation_source or config.source]
    name = fingerprint(
        [documents_fingerprint(source, config.text_field, config.document) for source in sources],
        tokenizer_part,
        None if config.validation_source else config.validation_fraction,
    )
    return cache_directory() / f"text-{name}"


def _tokenizer_name(config: TextDataConfig) -> Any:
    if config.tokenizer == "bpe":
        return ("bpe", config.vocab_size, *config.special[1:])
    path = load_tokenizer(config.tokenizer).path  # a wrong one is an error before any work
    return "bytes" if path is None else hashlib.blake2b(path.read_bytes()).hexdigest()


def _make_tokenizer(config: TextDataConfig, directory: Path, progress: Progress) -> Tokenizer:
    if config.tokenizer != "bpe":
        return load_tokenizer(config.tokenizer)
    progress.update("training a tokenizer on documents", 0, None)
    texts = _limited(split_documents(config, "train", Counts()), progress)
    train_bpe(texts, config.vocab_size, directory / "tokenizer.json", config.special)
    return load_tokenizer(directory / "tokenizer.json")


def _limited(texts: Iterable[str], progress: Progress) -> Iterator[str]:
    size = number = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        progress.update("training a tokenizer on documents", number, None)
        yield text
        if size > BPE_CHARACTERS:
            break
    say = progress.say
    say(f"learning a tokenizer from {number:,} documents, which can take minutes")


def _fill(config: TextDataConfig, directory: Path, progress: Progress) -> None:
    """Write a cache: tokenizer, both splits, index."""
    tokenizer = _make_tokenizer(config, directory, progress)
    tokenizer.save(directory)
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    index: dict[str, Any] = {"dtype": np.dtype(kind).name, "text_bytes": {}}
    for split in ("validation", "train"):
        counts = Counts()
        documents = split_documents(config, split, counts)
        size = 0
        with (directory / f"{split}.bin").open("wb") as file:
            for tokens, text_bytes in tokenised(documents, tokenizer):
                tokens.astype(kind).tofile(file)
                size += text_bytes
                progress.update(f"tokenising {split} documents", counts[DOCUMENTS], None)
        index["text_bytes"][split] = size
        index["counts"] = counts.plain()
    index["digest"] = content_digest(
        *(map_numbers(directory / f"{split}.bin", kind) for split in SPLITS)
    )
    (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")


def tokenised(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int]]:
    """Yield (tokens of a batch of documents, each closed by the end token; bytes of their text)."""
    rest = iter(documents)
    while texts := list(islice(rest, BATCH)):
        encoded = tokenizer.encode(texts)
        closed = ((*tokens, tokenizer.end) for tokens in encoded)
        joined = np.fromiter(chain.from_iterable(closed), dtype=np.int64)
        yield joined, sum(len(text.encode("utf-8", errors="surrogatepass")) for text in texts)


def _open(directory: Path, config: TextDataConfig) -> PreparedText:
    index = read_json(directory / "index.json")
    counts = Counts.of_plain(index["counts"])
    splits = {}
    for split in SPLITS:
        tokens = map_numbers(directory / f"{split}.bin", index["dtype"])
        found = len(tokens)
        if found <= config.max_length:
            raise ValueError(
                f"{config.source} has {found} {split} tokens, too few for one sequence of "
                f"{config.max_length}: {_remedy(config, counts, split)}"
            )
        splits[split] = Split(tokens, index["text_bytes"][split])
    return PreparedText(
        load_tokenizer(directory),
        splits["train"],
        splits["validation"],
        counts,
        index["digest"],
    )


def _remedy(config: TextDataConfig, counts: Counts, split: str) -> str:
    """Say what to do about a split that is too small."""
    if not counts[DOCUMENTS]:
        return f"there are {counts.describe(DOCUMENTS)}"
    few = counts[DOCUMENTS] * config.validation_fraction < 1
    if split != "validation" or config.validation_source is not None or not few:
        return "give more text, or lower data.max_length"
    return (
        f"documents are held out whole, {config.validation_fraction:.0%} of {counts[DOCUMENTS]}; a "
        "document ends at a blank line: give --data.document line if each line is one, "
        "--data.validation_source with other text, or a larger --data.validation_fraction"
    )


# Documents of a stream that its tokenizer is trained on, and that are read to find validation ones.
STREAM_HEAD = 20_000


def block_counts(config: TextDataConfig, length: int) -> Path:
    """Return the file that keeps how many windows of `length` tokens each streamed block has."""
    name = fingerprint(
        documents_fingerprint(config.source, config.text_field, config.document),
        None if config.validation_source else config.validation_fraction,
        _tokenizer_name(config),
        config.shuffle_documents,
        length,
    )
    make_writable(cache_directory())
    return cache_directory() / f"blocks-{name}.jsonl"


def _prepare_stream(config: TextDataConfig, progress: Progress) -> PreparedText:
    """Prepare tokenizer and validation split from the head of a stream."""
    head = fingerprint(
        documents_fingerprint(config.source, config.text_field, config.document),
        None if config.validation_source else config.validation_fraction,
        config.vocab_size,
        STREAM_HEAD,
        *config.special[1:],
    )
    held = cache_directory() / f"tokenizer-{head}"
    if config.tokenizer == "bpe" and not is_kept(held, progress):
        with made_whole(held) as aside:
            texts = islice(split_documents(config, "train", Counts()), STREAM_HEAD)
            path = aside / "tokenizer.json"
            train_bpe(_limited(texts, progress), config.vocab_size, path, config.special)
    tokenizer = load_tokenizer(held if config.tokenizer == "bpe" else config.tokenizer)
    counts = Counts()
    most = max(1, round(STREAM_HEAD * config.validation_fraction))
    documents = islice(split_documents(config, "validation", counts), most)
    parts = list(tokenised(documents, tokenizer))
    tokens = np.concatenate([part for part, _ in parts]) if parts else np.zeros(0, np.int64)
    if len(tokens) <= config.max_length:
        raise ValueError(
            f"{config.source} has {len(tokens)} validation tokens, too few for a sequence"
        )
    empty = Split(np.zeros(0, np.int64), 0)
    validation = Split(tokens, sum(size for _, size in parts))
    digest = content_digest(empty.tokens, tokens)
    return PreparedText(tokenizer, empty, validation, counts, digest)
