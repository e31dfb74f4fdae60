"""Tokenised corpora: the cache of token files, packed windows, and streaming.

A cache directory contains train.bin, validation.bin and index.json. The .bin files contain the
tokens of consecutive documents, each followed by the end token.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.cache import (
    add_alias,
    cache_directory,
    content_digest,
    create_cached,
    ensure_writable,
    fingerprint,
    is_cached,
    map_array,
)
from magneto.data.documents import (
    DOCUMENTS,
    Documents,
    documents_fingerprint,
    open_documents,
)
from magneto.data.problems import Counts
from magneto.data.sources import VALIDATION_ORDER, hash_of, held_out_limit
from magneto.data.stream import make_batch
from magneto.data.tokenizer import SPECIAL, Tokenizer, limited, load_tokenizer, train_bpe
from magneto.files import read_json
from magneto.language.config import TextDataConfig
from magneto.progress import SILENT, Progress

# Documents tokenised at a time; the tokenizer distributes them over the cores.
BATCH = 256
SPLITS = ("train", "validation")
# Share of texts that a derived length does not truncate, and the smallest derived length.
UNCUT_SHARE, LEAST_LENGTH = 0.99, 16
# Training texts that are tokenised to derive a length.
LENGTH_SAMPLE = 10_000


@dataclass(frozen=True)
class PreparedText:
    """Tokenised corpus.

    `train` and `validation` are the tokens of the splits, integers of shape (tokens,). `text_bytes`
    is the size of the validation text in bytes. `digest` is a hash of all tokens. A run resumes
    only if the digest of the data is unchanged. If the training text is streamed, `train` is empty.
    """

    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray
    text_bytes: int
    counts: Counts
    digest: str


def open_splits(config: TextDataConfig) -> tuple[Documents, Documents | None]:
    """Return the training documents and the validation documents.

    If there is neither a validation split nor a validation source, the second result is None. If
    `validation_source` is `source`, as in `magneto evaluate --data`, both results are the
    validation documents.
    """
    splits = open_documents(config.source, config.text_field, config.document)
    train = splits.get("train") or next(iter(splits.values()))
    if config.validation_source is None:
        return train, splits.get("validation") if "train" in splits else None
    same_source = config.validation_source == config.source  # as in `magneto evaluate --data`
    other = splits
    if not same_source:
        other = open_documents(config.validation_source, config.text_field, config.document)
    held = next(other[name] for name in VALIDATION_ORDER if name in other)
    return held if same_source else train, held


def split_documents(config: TextDataConfig, split: str, counts: Counts) -> Iterator[str]:
    """Yield the documents of "train" or "validation".

    If there is neither a validation split nor a validation source, a hash chooses whole documents
    for validation.
    """
    train, validation = open_splits(config)
    if validation is not None:
        yield from (validation if split == "validation" else train)(counts)
        return
    limit = held_out_limit(train(Counts()), config.validation_fraction)
    for text in train(counts):
        if (hash_of(text) < limit) == (split == "validation"):
            yield text


def prepare_text(config: TextDataConfig, progress: Progress) -> PreparedText:
    """Tokenise a source, or load the cached tokens.

    Raises:
        ValueError: If a split is shorter than a sequence.
    """
    if config.streaming:
        return _prepare_stream(config, progress)
    made = tokenize_source(config, progress)
    for name, split in zip(SPLITS, (made.train, made.validation), strict=True):
        check_length(config, name, split, made.counts)
    return made


def tokenize_source(config: TextDataConfig, progress: Progress) -> PreparedText:
    """Tokenise a source, or load the cached tokens. A split may have no tokens."""
    cache = _cache_path(config, "text", _tokenizer_name(config))
    if not is_cached(cache, progress):
        with create_cached(cache) as directory:
            _write_cache(config, directory, progress)
    # A run stores a copy of the cache's tokenizer, and names this copy in its recipe. The copy must
    # lead to the same cache, so the cache also gets the name that its own tokenizer leads to.
    stored = _tokenizer_name(replace(config, tokenizer=str(cache)))
    add_alias(cache, _cache_path(config, "text", stored))
    return _open(cache)


def _cache_path(config: TextDataConfig, kind: str, *settings: Any) -> Path:
    sources = [config.source, config.validation_source or config.source]
    name = fingerprint(
        [documents_fingerprint(source, config.text_field, config.document) for source in sources],
        None if config.validation_source else config.validation_fraction,
        *settings,
    )
    return cache_directory() / f"{kind}-{name}"


def _tokenizer_name(config: TextDataConfig) -> Any:
    if config.tokenizer == "bpe":
        return ("bpe", config.vocab_size, *config.special[1:])
    path = load_tokenizer(config.tokenizer).path  # raises before any work if there is none
    return "bytes" if path is None else hashlib.blake2b(path.read_bytes()).hexdigest()


def _write_cache(config: TextDataConfig, directory: Path, progress: Progress) -> None:
    if config.tokenizer == "bpe":
        texts, path = split_documents(config, "train", Counts()), directory / "tokenizer.json"
        train_bpe(texts, config.vocab_size, path, config.special, progress)
        tokenizer = load_tokenizer(path)
    else:
        tokenizer = load_tokenizer(config.tokenizer)
    tokenizer.save(directory)
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    index: dict[str, Any] = {"dtype": np.dtype(kind).name, "text_bytes": {}}
    training, validation = open_splits(config)
    # `open_splits` returns one function twice if `validation_source` is `source`: then the
    # validation documents are also the training documents, and are tokenised only once.
    same_documents = training is validation
    for split in ("validation", "train"):
        if split == "train" and same_documents:
            shutil.copyfile(directory / "validation.bin", directory / "train.bin")
            break
        counts = Counts()
        documents = split_documents(config, split, counts)
        size = 0
        with (directory / f"{split}.bin").open("wb") as file:
            for tokens, text_bytes in tokenize_documents(documents, tokenizer):
                tokens.astype(kind).tofile(file)
                size += text_bytes
                progress.update(f"tokenising {split} documents", counts[DOCUMENTS], None)
        index["text_bytes"][split] = size
        index["counts"] = counts.plain()
    index["digest"] = content_digest(
        *(map_array(directory / f"{split}.bin", kind) for split in SPLITS)
    )
    (directory / "index.json").write_text(json.dumps(index), encoding="utf-8")


def tokenize_documents(
    documents: Iterable[str], tokenizer: Tokenizer
) -> Iterator[tuple[np.ndarray, int]]:
    """For each batch, yield its tokens (with end tokens) and the size of its text in bytes."""
    remaining = iter(documents)
    while texts := list(islice(remaining, BATCH)):
        encoded = tokenizer.encode(texts)
        closed = ((*tokens, tokenizer.end) for tokens in encoded)
        joined = np.fromiter(chain.from_iterable(closed), dtype=np.int64)
        yield joined, sum(len(text.encode("utf-8", errors="surrogatepass")) for text in texts)


def _open(directory: Path) -> PreparedText:
    index = read_json(directory / "index.json")
    train, validation = (map_array(directory / f"{split}.bin", index["dtype"]) for split in SPLITS)
    tokenizer, counts = load_tokenizer(directory), Counts.of_plain(index["counts"])
    size = index["text_bytes"]["validation"]
    return PreparedText(tokenizer, train, validation, size, counts, index["digest"])


def check_length(config: TextDataConfig, split: str, tokens: np.ndarray, counts: Counts) -> None:
    """Raise ValueError if a split has too few tokens for one sequence."""
    if len(tokens) > config.max_length:
        return
    few = counts[DOCUMENTS] * config.validation_fraction < 1
    if not counts[DOCUMENTS]:
        advice = f"The source has {counts.describe(DOCUMENTS)}."
    elif split != "validation" or not few or open_splits(config)[1] is not None:
        advice = "Give more text, or lower data.max_length."
    else:
        advice = (
            f"Validation takes {config.validation_fraction:.0%} of the {counts[DOCUMENTS]} "
            "documents. A document ends at a blank line. Give --data.document line if each line "
            "is a document. Otherwise give --data.validation_source or a larger "
            "--data.validation_fraction."
        )
    name = "training" if split == "train" else split
    raise ValueError(f"{config.source} has {len(tokens)} {name} tokens, too few for one sequence "
                     f"of {config.max_length}. {advice}")  # fmt: skip


# Documents at the head of a stream. The tokenizer is trained on them; validation comes from them.
STREAM_HEAD = 20_000


def _prepare_stream(config: TextDataConfig, progress: Progress) -> PreparedText:
    cache = _cache_path(config, "tokenizer", config.vocab_size, STREAM_HEAD, *config.special[1:])
    if config.tokenizer == "bpe" and not is_cached(cache, progress):
        with create_cached(cache) as directory:
            texts = islice(split_documents(config, "train", Counts()), STREAM_HEAD)
            path = directory / "tokenizer.json"
            train_bpe(texts, config.vocab_size, path, config.special, progress)
    tokenizer = load_tokenizer(cache if config.tokenizer == "bpe" else config.tokenizer)
    counts = Counts()
    most = max(1, round(STREAM_HEAD * config.validation_fraction))
    documents = islice(split_documents(config, "validation", counts), most)
    parts = list(tokenize_documents(documents, tokenizer))
    tokens = np.concatenate([np.zeros(0, np.int64), *(part for part, _ in parts)])
    check_length(config, "validation", tokens, counts)
    empty, size = tokens[:0], sum(size for _, size in parts)
    return PreparedText(tokenizer, empty, tokens, size, counts, content_digest(empty, tokens))


def window_count_file(config: TextDataConfig, length: int) -> Path:
    ensure_writable(cache_directory())
    return _cache_path(config, "blocks", _tokenizer_name(config), length).with_suffix(".jsonl")


def build_tokenizer(
    name: str, vocab_size: int, texts: Iterable[str], progress: Progress = SILENT
) -> Tokenizer:
    """Load a tokenizer, or train and cache a tokenizer with the special tokens `SPECIAL`.

    The name "bpe" trains a tokenizer of at most `vocab_size` tokens on up to 100 million characters
    of texts. Tokenizers with a name other than "bpe" are loaded by `load_tokenizer`.
    """
    if name != "bpe":
        return load_tokenizer(name)
    sample = list(limited(texts))
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in sample))
    cache = cache_directory() / f"tokenizer-{fingerprint(digest, vocab_size, SPECIAL)}"
    if not is_cached(cache, progress):
        with create_cached(cache) as directory:
            train_bpe(sample, vocab_size, directory / "tokenizer.json", SPECIAL, progress)
    return load_tokenizer(cache)


def derive_length(lengths: Any, most: int, progress: Progress = SILENT) -> int:
    """Report and return a length that 99 % of texts do not exceed.

    `lengths` include special tokens. The result is rounded up to a multiple of 8, and limited to
    `most`.
    """
    # The quantile is one of the lengths: a value between two would truncate the longer text.
    longest = int(np.quantile(lengths, UNCUT_SHARE, method="inverted_cdf"))
    length = min(max(8 * -(-longest // 8), LEAST_LENGTH), most)
    share = np.mean(np.asarray(lengths) <= length)
    progress.say(f"max_length {length}, enough for {share:.1%} of {len(lengths):,} training "
                 "texts")  # fmt: skip
    return length


def count_windows(tokens: np.ndarray, length: int) -> int:
    """Return the number of windows with `length` input tokens and `length` targets."""
    return max(len(tokens) - 1, 0) // length


def read_windows(tokens: np.ndarray, length: int, numbers: np.ndarray) -> np.ndarray:
    """Return the windows with the indices `numbers`, (windows, length + 1).

    The last token of a window is the first token of the next window.
    """
    rows = numbers[:, None] * length + np.arange(length + 1)
    return np.asarray(tokens[rows], dtype=np.int64)


def next_token_batch(windows: np.ndarray) -> dict[str, Tensor]:
    """Split windows (rows, length + 1) into "tokens" and "targets" (the next tokens)."""
    rows = torch.from_numpy(windows)
    return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


class StreamedBlocks:
    """Packed windows of streamed documents, block by block.

    A block is a fixed number of documents in random order. Tokens that do not fill the block's last
    window are dropped. The order depends on seed, epoch and block. A resumed run skips earlier
    documents and does not tokenise the skipped documents.

    Args:
        documents: Function that returns an iterator over all documents in order, called once per
            epoch.
        encode: Function that returns the concatenated tokens of a list of documents.
        length: Number of tokens of a window.
        size: Number of documents of a block.
        seed: Seed of the order.
        counts: Path of the file with the number of windows in each block.

    Raises:
        ValueError: If the stream has too little text for one window.
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
        self.blocks: int | None = None  # blocks of an epoch, known once the stream has ended
        self.known: dict[int, int] = {}
        if counts.is_file():
            for line in counts.read_bytes().split(b"\n"):
                with suppress(ValueError, TypeError):  # a full disk may have cut a line
                    block, windows = json.loads(line)
                    self.known[block] = windows
            self.blocks = self.known.pop(-1, None)
            self._check_not_empty()
        self._next, self._source = 0, documents()

    def windows(self, number: int) -> list[tuple[int, int, np.ndarray]]:
        """Return the examples of block `number` as tuples (draw, number, window).

        The draw is the number of the epoch. Numbers differ within an epoch, so that each window
        has its own random seed.
        """
        epoch, block = divmod(number, self.blocks) if self.blocks else (0, number)
        texts = self._read(block)
        if len(texts) < self.size and self.blocks is None:
            self.blocks = block + 1
            self._keep(-1, self.blocks)
        order = np.random.default_rng([self.seed, epoch, block]).permutation(len(texts))
        tokens = np.zeros(0, np.int64) if not texts else make_batch(
            lambda numbers: self.encode([texts[number] for number in numbers]),
            order,
            lambda place: f"document {block * self.size + place} of epoch {epoch}",
        )  # fmt: skip
        rows = read_windows(tokens, self.length, np.arange(count_windows(tokens, self.length)))
        if block not in self.known:
            self._keep(block, len(rows))
        self._check_not_empty()
        # A block can have more windows than documents.
        return [(epoch, (block << 32) + place, row) for place, row in enumerate(rows)]

    def count(self, number: int) -> int | None:
        """Return the number of windows of a block; None if the block was never read."""
        return self.known.get(number % self.blocks if self.blocks else number)

    def _check_not_empty(self) -> None:
        if len(self.known) == self.blocks and not any(self.known.values()):
            raise ValueError("the stream has too little text for one sequence. Give more text, "
                             "or lower data.max_length")  # fmt: skip

    def _read(self, block: int) -> list[str]:
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
