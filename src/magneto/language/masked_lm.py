"""Masked language modelling: guess hidden tokens from both sides (paper, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.tokenizer import Tokenizer, load_tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.causal_lm import TextTask
from magneto.language.config import MaskedTextDataConfig
from magneto.language.models import MaskedLanguageModel
from magneto.progress import SILENT, Progress
from magneto.training.task import Loss, Scores

# Of what is chosen, the share that "bert" hides, and the share it replaces by another token; the
# rest stays as it is (arXiv 1810.04805, section 3.1).
HIDDEN, REPLACED = 0.8, 0.1
# A span's length is geometric with this chance to end after each token, cut at the second
# (arXiv 1907.10529, section 3.1).
SPAN_END, SPAN_MOST = 0.2, 10


class MaskedLanguageModeling(TextTask):
    """Packed text after a `<s>`, a `MaskedLanguageModel`, nats per hidden token."""

    data_config: MaskedTextDataConfig

    def prepare(self, progress: Progress = SILENT) -> None:
        """Tokenise the source; raises ValueError if the tokenizer has no mask token."""
        if self.data_config.tokenizer != "bpe":  # known before the work, not after it
            Masking(self.data_config, load_tokenizer(self.data_config.tokenizer))
        super().prepare(progress)

    @cached_property
    def masking(self) -> Masking:
        """What hides tokens."""
        return Masking(self.data_config, self.tokenizer)

    def build_model(self) -> MaskedLanguageModel:
        """Build the model, with the tokenizer's vocabulary if none is set."""
        return MaskedLanguageModel(replace(self.model_config, vocab_size=self.vocabulary()))

    @property
    def length(self) -> int:
        """Tokens of a window: `<s>` stands before it."""
        return self.data_config.max_length - 1

    def make(self, windows: np.ndarray, seeds: Iterable[tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the windows behind a `<s>`, other tokens hidden each time they come."""
        begin = np.full((len(windows), 1), self.tokenizer.begin, windows.dtype)
        return self.masking.batch(np.concatenate([begin, windows[:, :-1]], axis=1), seeds)

    @property
    def allowed(self) -> np.ndarray:
        """Which tokens can be hidden, (vocabulary,): no special one ever is."""
        return self.masking.plain

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return rows of one token with as many hidden as there may be."""
        shapes = {"tokens": self.data_config.max_length, "positions": self.masking.most,
                  "targets": self.masking.most}  # fmt: skip
        return {
            name: torch.zeros(examples, length, dtype=torch.long) for name, length in shapes.items()
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum the cross-entropy over the hidden tokens."""
        mask = self.attention_mask(batch["tokens"])
        loss = model(batch["tokens"], mask, batch["positions"], batch["targets"])
        return Loss(loss.total, loss.count, units=batch["tokens"].numel())

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the cross-entropy over the hidden tokens; count them, and those guessed right."""
        mask = self.attention_mask(batch["tokens"])
        logits = model(batch["tokens"], mask, batch["positions"]).flatten(0, 1).float()
        answers = batch["targets"].flatten()
        total = F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
        right = (logits.argmax(-1) == answers).sum()
        return Scores({"loss": total, "right": right, "count": (answers != IGNORED).sum()})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per hidden token), perplexity, and the share guessed right."""
        loss = sums["loss"] / sums["count"]
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "masked_accuracy": sums["right"] / sums["count"],
        }


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
