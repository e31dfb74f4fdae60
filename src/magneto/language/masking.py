"""Which tokens a masked language model has to guess, and what it sees in their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedTextDataConfig

# Of what is chosen, the share that "bert" hides, and the share it replaces by another token; the
# rest stays as it is (arXiv 1810.04805, section 3.1).
HIDDEN, REPLACED = 0.8, 0.1
# A span's length is geometric with this chance to end after each token, cut at the second
# (arXiv 1907.10529, section 3.1).
SPAN_END, SPAN_MOST = 0.2, 10


class Masking:
    """Chooses and hides tokens; the same seed chooses the same ones.

    Args:
        config: How.
        tokenizer: Of the tokens.

    Raises:
        ValueError: If the tokenizer has no mask token.
    """

    def __init__(self, config: MaskedTextDataConfig, tokenizer: Tokenizer) -> None:
        if tokenizer.mask is None:
            where = tokenizer.path or config.tokenizer
            raise ValueError(
                f"data.tokenizer {where} has no mask token (<mask> or [MASK]); "
                "`magneto tokenizer train` makes one that has"
            )
        self.config, self.mask = config, tokenizer.mask
        self.most = max(1, int(config.mask_ratio * config.max_length))
        special = [tokenizer.end, tokenizer.begin, tokenizer.pad, tokenizer.mask]
        self.plain = np.ones(tokenizer.vocab_size, bool)
        self.plain[special] = False
        self.replacements = np.flatnonzero(self.plain)
        self.joins_left, self.joins_right = word_joins(tokenizer)

    def batch(self, rows: np.ndarray, seeds: Iterable[Sequence[int]]) -> dict[str, Tensor]:
        """Hide tokens of each row by its own seed.

        Args:
            rows: Tokens, (batch, length).
            seeds: Integers for each row.

        Returns:
            "tokens" (batch, length) to see; "positions" (batch, most) of the tokens to guess, in
            order; "targets" (batch, most), `IGNORED` where a row has fewer.
        """
        seen = rows.copy()
        positions = np.zeros((len(rows), self.most), np.int64)
        targets = np.full((len(rows), self.most), IGNORED, np.int64)
        for row, seed in enumerate(seeds):
            draw = np.random.default_rng(list(seed))
            chosen = self.choose(rows[row], draw)
            positions[row, : len(chosen)] = chosen
            targets[row, : len(chosen)] = rows[row, chosen]
            seen[row, chosen] = self.corrupt(rows[row, chosen], draw)
        arrays = {"tokens": seen, "positions": positions, "targets": targets}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def choose(
        self, row: np.ndarray, draw: np.random.Generator, most: int | None = None
    ) -> np.ndarray:
        """Return the places to guess in a row, in order; never a special token's.

        Args:
            row: Tokens, (length,).
            draw: What is drawn from.
            most: How many, at most; by default the share of `max_length`.
        """
        plain = self.plain[row]
        most = min(self.most if most is None else most, int(plain.sum()))
        if self.config.masking == "token":
            return np.sort(draw.choice(np.flatnonzero(plain), most, replace=False))
        chosen = np.zeros(len(row), bool)
        groups = self._words(row, plain) if self.config.masking == "word" else None
        order = draw.permutation(len(groups)) if groups else None
        number = 0
        while (left := most - int(chosen.sum())) > 0:
            if groups is None or order is None:
                size = min(int(draw.geometric(SPAN_END)), SPAN_MOST, left)
                start = int(draw.integers(len(row)))
                chosen[start : start + size] |= plain[start : start + size]
                continue
            if number == len(groups):
                break
            word = groups[order[number]]
            number += 1
            if len(word) <= left:
                chosen[word] = True
        if not chosen.any() and groups:  # every word is longer than all that may be hidden
            chosen[groups[0][:most]] = True
        return np.flatnonzero(chosen)

    def _words(self, row: np.ndarray, plain: np.ndarray) -> list[np.ndarray]:
        """Return the places of each word's tokens."""
        starts = plain.copy()
        starts[1:] &= ~(
            plain[1:] & plain[:-1] & self.joins_left[row[1:]] & self.joins_right[row[:-1]]
        )
        places = np.flatnonzero(plain)
        if len(places) == 0:
            return []
        return np.split(places, np.flatnonzero(starts[places])[1:])

    def corrupt(self, tokens: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Return what is seen in place of chosen tokens."""
        hidden = np.full_like(tokens, self.mask)
        if self.config.corruption == "mask":
            return hidden
        fate = draw.random(len(tokens))
        others = draw.choice(self.replacements, len(tokens))
        kept = np.where(fate < HIDDEN + REPLACED, others, tokens)
        return np.where(fate < HIDDEN, hidden, kept)


def word_joins(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return which tokens go on with a word, and which leave one open.

    A word is a run of letters and digits. Part of a character counts as a letter.
    """
    pieces = tokenizer.pieces()
    left = np.array([bool(piece) and _in_word(piece[0]) for piece in pieces])
    right = np.array([bool(piece) and _in_word(piece[-1]) for piece in pieces])
    return left, right


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "\ufffd"
