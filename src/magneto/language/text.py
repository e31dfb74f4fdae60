"""Text prepared for language models: tokenised once, kept as memory-mapped numbers, packed.

A cache holds train.bin and validation.bin (documents end to end, each closed by the end token) and
index.json. Its name is a fingerprint of the source, the tokenizer and the split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from magneto.data.stream import make_named
from magneto.data.tokenizer import SPECIAL, Tokenizer, limited, load_tokenizer, train_bpe
from magneto.files import read_json
from magneto.language.config import TextDataConfig
from magneto.progress import SILENT, Progress

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
    held = _place(config, "text", _tokenizer_name(config))
    if not is_kept(held, progress):
        with made_whole(held) as aside:
            _fill(config, aside, progress)
    if config.tokenizer == "bpe":
        # A run keeps the tokenizer that came out, and finds the same tokens by it.
        named = replace(config, tokenizer=str(held))
        also_known(held, _place(config, "text", _tokenizer_name(named)))
    return _open(held, config)


def _place(config: TextDataConfig, kind: str, *made_by: Any) -> Path:
    """Return where the cache has what is made of a configuration's documents by further settings.

    Its name is a fingerprint of the sources and of how they are split, too.
    """
    sources = [config.source, config.validation_source or config.source]
    name = fingerprint(
        [documents_fingerprint(source, config.text_field, config.document) for source in sources],
        None if config.validation_source else config.validation_fraction,
        *made_by,
    )
    return cache_directory() / f"{kind}-{name}"


def _tokenizer_name(config: TextDataConfig) -> Any:
    if config.tokenizer == "bpe":
        return ("bpe", config.vocab_size, *config.special[1:])
    path = load_tokenizer(config.tokenizer).path  # a wrong one is an error before any work
    return "bytes" if path is None else hashlib.blake2b(path.read_bytes()).hexdigest()


def _fill(config: TextDataConfig, directory: Path, progress: Progress) -> None:
    """Write a cache: tokenizer, both splits, index."""
    if config.tokenizer == "bpe":
        texts, path = split_documents(config, "train", Counts()), directory / "tokenizer.json"
        train_bpe(texts, config.vocab_size, path, config.special, progress)
        tokenizer = load_tokenizer(path)
    else:
        tokenizer = load_tokenizer(config.tokenizer)
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


def _prepare_stream(config: TextDataConfig, progress: Progress) -> PreparedText:
    """Prepare tokenizer and validation split from the head of a stream."""
    held = _place(config, "tokenizer", config.vocab_size, STREAM_HEAD, *config.special[1:])
    if config.tokenizer == "bpe" and not is_kept(held, progress):
        with made_whole(held) as aside:
            texts = islice(split_documents(config, "train", Counts()), STREAM_HEAD)
            path = aside / "tokenizer.json"
            train_bpe(texts, config.vocab_size, path, config.special, progress)
    tokenizer = load_tokenizer(held if config.tokenizer == "bpe" else config.tokenizer)
    counts = Counts()
    most = max(1, round(STREAM_HEAD * config.validation_fraction))
    documents = islice(split_documents(config, "validation", counts), most)
    parts = list(tokenised(documents, tokenizer))
    tokens = np.concatenate([np.zeros(0, np.int64), *(part for part, _ in parts)])
    if len(tokens) <= config.max_length:
        raise ValueError(
            f"{config.source} has {len(tokens)} validation tokens, too few for a sequence"
        )
    empty, validation = Split(tokens[:0], 0), Split(tokens, sum(size for _, size in parts))
    digest = content_digest(empty.tokens, tokens)
    return PreparedText(tokenizer, empty, validation, counts, digest)


def block_counts(config: TextDataConfig, length: int) -> Path:
    """Return the file that keeps how many windows of `length` tokens each streamed block has."""
    make_writable(cache_directory())
    return _place(config, "blocks", _tokenizer_name(config), length).with_suffix(".jsonl")


def text_tokenizer(
    name: str, vocab_size: int, texts: Iterable[str], progress: Progress = SILENT
) -> Tokenizer:
    """Return a tokenizer with `</s>`, `<s>`, `<pad>` and `<mask>`.

    Args:
        name: "bpe", which is learnt from the texts and kept in the cache, or what
            `magneto.data.tokenizer.load_tokenizer` takes.
        vocab_size: Of "bpe", at most.
        texts: That "bpe" is learnt from, of which it takes 100 million characters; not read for
            another name.
        progress: Told that it is learnt.
    """
    if name != "bpe":
        return load_tokenizer(name)
    some = list(limited(texts))
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in some))
    held = cache_directory() / f"tokenizer-{fingerprint(digest, vocab_size, SPECIAL)}"
    if not is_kept(held, progress):
        with made_whole(held) as aside:
            train_bpe(some, vocab_size, aside / "tokenizer.json", SPECIAL, progress)
    return load_tokenizer(held)


def cut_windows(tokens: np.ndarray, length: int) -> int:
    """Return how many windows of `length` tokens, each with its next token, there are."""
    return max(len(tokens) - 1, 0) // length


def windows_of(tokens: np.ndarray, length: int, numbers: np.ndarray) -> np.ndarray:
    """Return numbered windows with their next token, int64 (len(numbers), length + 1)."""
    rows = numbers[:, None] * length + np.arange(length + 1)
    return np.asarray(tokens[rows], dtype=np.int64)


def with_targets(windows: np.ndarray) -> dict[str, Tensor]:
    """Split (rows, length + 1) into tokens and the tokens that follow them."""
    rows = torch.from_numpy(windows)
    return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


class StreamedBlocks:
    """Windows of documents that are read and tokenised as training goes, block by block.

    A block is so many documents in random order; what does not fill its last window is left out.
    The order depends on the seed, the epoch and the block; how many windows there are on neither
    seed nor epoch, so a run that is resumed reads past earlier documents without tokenising them.

    Args:
        documents: Gives the documents once through, in order; called for each epoch.
        encode: From a list of documents to their tokens, end to end.
        length: Tokens of a window.
        size: Documents of a block.
        seed: Of the order.
        counts: File that keeps the number of windows of each block.

    Raises:
        ValueError: If the file says that the whole stream has too little text for one window.
    """

    def __init__(
        self,
        documents: Callable[[], Iterator[str]],
        encode: Callable[[list[str]], np.ndarray],
        length: int,
        size: int,
        seed: int,
        counts: Path,
    ) -> None:
        self.documents, self.encode = documents, encode
        self.length, self.size, self.seed, self.counts = length, size, seed, counts
        self.blocks: int | None = None  # of an epoch, as soon as its end was seen
        self.known: dict[int, int] = {}
        if counts.is_file():
            self.known = dict(filter(None, map(as_count, counts.read_bytes().split(b"\n"))))
            self.blocks = self.known.pop(-1, None)
            self._check_not_empty()
        self._next, self._source = 0, documents()

    def windows(self, number: int) -> list[tuple[int, int, np.ndarray]]:
        """Return a block's examples: (epoch, place in the epoch's block, window).

        Raises:
            ValueError: If the whole stream has too little text for one window.
        """
        epoch, block = divmod(number, self.blocks) if self.blocks else (0, number)
        texts = self._read(block)
        if len(texts) < self.size and self.blocks is None:
            self.blocks = block + 1
            self._keep(-1, self.blocks)
        order = np.random.default_rng([self.seed, epoch, block]).permutation(len(texts))
        tokens = np.zeros(0, np.int64) if not texts else make_named(
            lambda numbers: self.encode([texts[number] for number in numbers]),
            order,
            lambda place: f"document {block * self.size + place} of epoch {epoch}",
        )  # fmt: skip
        found = windows_of(tokens, self.length, np.arange(cut_windows(tokens, self.length)))
        if block not in self.known:
            self._keep(block, len(found))
        self._check_not_empty()
        return [(epoch, block * self.size + place, row) for place, row in enumerate(found)]

    def count(self, number: int) -> int | None:
        """Return how many windows a block has; None if it was never read."""
        return self.known.get(number % self.blocks if self.blocks else number)

    def _check_not_empty(self) -> None:
        if len(self.known) == self.blocks and not any(self.known.values()):
            raise ValueError("the stream has too little text for one sequence")

    def _read(self, block: int) -> list[str]:
        """Read a block's documents, past those before it."""
        if self._next > block:
            self._next, self._source = 0, self.documents()
        for _ in islice(self._source, (block - self._next) * self.size):
            pass
        self._next = block + 1
        return list(islice(self._source, self.size))

    def _keep(self, block: int, windows: int) -> None:
        if block >= 0:
            self.known[block] = windows
        with self.counts.open("a", encoding="utf-8") as file:
            file.write(json.dumps([block, windows]) + "\n")


def as_count(line: bytes) -> tuple[int, int] | None:
    """Return (block, windows) of a line of the file of counts; None of one that was cut short."""
    try:
        block, windows = json.loads(line)
    except (ValueError, TypeError):
        return None
    return (block, windows) if type(block) is type(windows) is int else None
