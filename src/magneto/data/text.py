"""Text prepared for language models: tokenised once, kept as memory-mapped numbers, packed.

A cache holds train.bin and validation.bin (documents end to end, each closed by the end token) and
index.json. Its name is a fingerprint of the source, the tokenizer and the split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from magneto.data.cache import also_known, cache_directory, fingerprint, made_whole
from magneto.data.sources import Counts, read_documents, source_fingerprint
from magneto.data.tokenizer import END, Tokenizer, load_tokenizer, train_bpe

Progress = Callable[[str, int, int | None], None]
# Documents tokenised at a time; the tokenizer spreads them over the cores.
BATCH = 256
# Characters of training text from which a tokenizer is learnt; more changes little and takes long.
BPE_CHARACTERS = 100_000_000
VERSION = 2


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """Text for language modelling: the `data` section of a recipe.

    Attributes:
        source: PATH (file or folder of .txt, .jsonl, with .gz too), hf:NAME[:CONFIG[:SPLIT]] or
            builtin:docstrings.
        text_field: Key of the text in .jsonl and Hugging Face records.
        tokenizer: "bpe" (byte-level, trained on the source on first use), "bytes", or the path of a
            tokenizer.json or a SentencePiece .model.
        vocab_size: Of a "bpe" tokenizer.
        length: Tokens of a sequence.
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
    tokenizer: str = "bpe"
    vocab_size: int = 8192
    length: int = 512
    validation_fraction: float = 0.05
    validation_source: str | None = None
    mask_documents: bool = False
    streaming: bool = False
    shuffle_documents: int = 1024

    def __post_init__(self) -> None:
        wrong = []
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.length < 1:
            wrong.append(f"length must be 1 or more, not {self.length}")
        least = 256 + len(self.special)
        if self.vocab_size < least:
            wrong.append(
                f"vocab_size must be {least} or more (256 bytes and {', '.join(self.special)}), "
                f"not {self.vocab_size}"
            )
        if self.shuffle_documents < 1:
            wrong.append(f"shuffle_documents must be 1 or more, not {self.shuffle_documents}")
        if wrong:
            raise ValueError("; ".join(wrong))


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
    """

    tokenizer: Tokenizer
    train: Split
    validation: Split
    counts: Counts


def held_out(text: str, fraction: float) -> bool:
    """Return whether a document belongs to the validation split, by its hash alone."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def split_documents(config: TextDataConfig, split: str, counts: Counts) -> Iterator[str]:
    """Yield the documents of "train" or "validation"."""
    if config.validation_source is not None:
        source = config.source if split == "train" else config.validation_source
        yield from read_documents(source, config.text_field, counts)
        return
    wanted = split == "validation"
    for text in read_documents(config.source, config.text_field, counts):
        if held_out(text, config.validation_fraction) == wanted:
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
    if not held.exists():
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
        VERSION,
        [source_fingerprint(source, config.text_field) for source in sources],
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
    progress("training a tokenizer on documents", 0, None)
    texts = _limited(split_documents(config, "train", Counts()), progress)
    train_bpe(texts, config.vocab_size, directory / "tokenizer.json", config.special)
    return load_tokenizer(directory / "tokenizer.json")


def _limited(texts: Iterable[str], progress: Progress) -> Iterator[str]:
    size = number = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        progress("training a tokenizer on documents", number, None)
        yield text
        if size > BPE_CHARACTERS:
            break
    say = getattr(progress, "say", lambda line: None)
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
                progress(f"tokenising {split} documents", counts.documents, None)
        index["text_bytes"][split] = size
        index["counts"] = asdict(counts)
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
    index = json.loads((directory / "index.json").read_text(encoding="utf-8"))
    splits = {}
    for split in ("train", "validation"):
        path = directory / f"{split}.bin"
        found = path.stat().st_size // np.dtype(index["dtype"]).itemsize
        if found <= config.length:
            raise ValueError(
                f"{config.source} has {found} {split} tokens, too few for one sequence of "
                f"{config.length}: give more text, or lower data.length"
            )
        tokens = np.memmap(path, dtype=index["dtype"], mode="r")
        splits[split] = Split(tokens, index["text_bytes"][split])
    return PreparedText(
        load_tokenizer(directory), splits["train"], splits["validation"], Counts(**index["counts"])
    )


# Documents of a stream that its tokenizer is trained on, and that are read to find validation ones.
STREAM_HEAD = 20_000


def _prepare_stream(config: TextDataConfig, progress: Progress) -> PreparedText:
    """Prepare tokenizer and validation split from the head of a stream."""
    head = fingerprint(
        VERSION,
        source_fingerprint(config.source, config.text_field),
        None if config.validation_source else config.validation_fraction,
        config.vocab_size,
        STREAM_HEAD,
        *config.special[1:],
    )
    held = cache_directory() / f"tokenizer-{head}"
    if config.tokenizer == "bpe" and not held.exists():
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
    if len(tokens) <= config.length:
        raise ValueError(
            f"{config.source} has {len(tokens)} validation tokens, too few for a sequence"
        )
    empty = Split(np.zeros(0, np.int64), 0)
    return PreparedText(tokenizer, empty, Split(tokens, sum(size for _, size in parts)), counts)
