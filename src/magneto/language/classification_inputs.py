"""Labelled texts as numbers, single or in pairs, ready for an encoder.

An input is `<s> text </s>`, or `<s> text </s></s> pair </s>` (arXiv 1907.11692).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from magneto.data.cache import cache_directory, content_digest, fingerprint, is_kept, made_whole
from magneto.data.table import Table
from magneto.data.tokenizer import SPECIAL, Tokenizer, load_tokenizer, train_bpe
from magneto.language.config import ClassificationDataConfig
from magneto.language.labelled_texts import TextPair, pairs_of
from magneto.progress import Progress

# Texts tokenised at a time.
BATCH = 1024


@dataclass(frozen=True)
class Examples:
    """A split as numbers.

    Attributes:
        tokens: Of each input.
        second: Where the second text begins in each; the length if there is none.
        labels: Class numbers (int64), or numbers (float32).
        truncated: How many inputs were cut.
    """

    tokens: list[np.ndarray]
    second: np.ndarray
    labels: np.ndarray
    truncated: int

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each input."""
        return np.array([len(row) for row in self.tokens])


def joined(parts: Sequence[Examples]) -> Examples:
    """Return several splits one after the other."""
    return Examples(
        [row for part in parts for row in part.tokens],
        np.concatenate([part.second for part in parts]),
        np.concatenate([part.labels for part in parts]),
        sum(part.truncated for part in parts),
    )


def encode(
    table: Table,
    labels: tuple[str, ...],
    tokenizer: Tokenizer,
    config: ClassificationDataConfig,
    progress: Progress,
) -> Examples:
    """Turn rows into numbers."""
    inputs, second, truncated = assemble_all(pairs_of(table), tokenizer, config, progress)
    return Examples(inputs, second, label_values(table, labels), sum(truncated))


def assemble_all(
    rows: Sequence[TextPair],
    tokenizer: Tokenizer,
    config: ClassificationDataConfig,
    progress: Progress,
) -> tuple[list[np.ndarray], np.ndarray, list[bool]]:
    """Return the inputs of rows, where the second text of each begins, and which were cut."""
    inputs, second, truncated = [], [], []
    for start in range(0, len(rows), BATCH):
        piece = rows[start : start + BATCH]
        first = tokenizer.encode([row.text for row in piece])
        pairs = tokenizer.encode([row.pair for row in piece if row.pair is not None])
        other = iter(pairs)
        for row, text in zip(piece, first, strict=True):
            pair = None if row.pair is None else next(other)
            made, begin, cut = assemble(text, pair, tokenizer, config)
            inputs.append(np.array(made, np.int32))
            second.append(begin)
            truncated.append(bool(cut))
        progress.update("tokenising rows", start + len(piece), len(rows))
    return inputs, np.array(second), truncated


def padded(rows: Sequence[np.ndarray], second: np.ndarray, pad: int) -> dict[str, Tensor]:
    """Pad inputs: tokens, mask, token_types, all (batch, length).

    Args:
        rows: Tokens of each.
        second: Where the second text of each begins, (batch,).
        pad: The token that fills up.
    """
    lengths = np.array([len(row) for row in rows])
    place = np.arange(lengths.max())[None]
    mask = place < lengths[:, None]
    tokens = np.full(mask.shape, pad, np.int64)
    tokens[mask] = np.concatenate(rows)
    types = (place >= second[:, None]) & mask
    return {
        "tokens": torch.from_numpy(tokens),
        "mask": torch.from_numpy(mask),
        "token_types": torch.from_numpy(types.astype(np.int64)),
    }


def label_values(table: Table, labels: tuple[str, ...]) -> np.ndarray:
    """Return class numbers (int64), or the labels as numbers (float32) if there are no classes."""
    if not labels:
        return np.array([float(label) for label in table.values("label")], np.float32)
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([numbers[label] for label in table.values("label")], np.int64)


def assemble(
    text: list[int], pair: list[int] | None, tokenizer: Tokenizer, config: ClassificationDataConfig
) -> tuple[list[int], int, bool]:
    """Return an input's tokens, where its second text begins, and whether it was cut."""
    end = [tokenizer.end]
    if pair is None:
        room = config.max_length - 2
        made = [tokenizer.begin, *text[:room], *end]
        return made, len(made), len(text) > room
    between = end * (2 if config.separator == "double" else 1)
    room = config.max_length - 2 - len(between)
    cut = len(text) + len(pair) > room
    if cut:
        half = room // 2
        keep = max(half, room - len(pair))
        text = text[:keep]
        pair = pair[: room - len(text)]
    made = [tokenizer.begin, *text, *between]
    return [*made, *pair, *end], len(made), cut


def make_tokenizer(config: ClassificationDataConfig, rows: Sequence[TextPair]) -> Tokenizer:
    """Load the tokenizer, or train one on the rows' texts; a trained one is cached."""
    if config.tokenizer not in ("auto", "bpe"):
        return load_tokenizer(Path(config.tokenizer) if config.tokenizer != "bytes" else "bytes")
    texts = [text for row in rows for text in (row.text, row.pair) if text is not None]
    digest = content_digest(*(text.encode("utf-8", errors="surrogatepass") for text in texts))
    held = cache_directory() / f"classification-{fingerprint(digest, config.vocab_size)}"
    if not is_kept(held):
        with made_whole(held) as aside:
            train_bpe(texts, config.vocab_size, aside / "tokenizer.json", SPECIAL)
    return load_tokenizer(held)
