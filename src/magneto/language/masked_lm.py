"""Masked language modelling (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.tokenizer import Tokenizer, load_tokenizer
from magneto.functional.cross_entropy import IGNORED, loss_metrics, prediction_sums
from magneto.language.causal_lm import TextTask
from magneto.language.config import MaskedTextDataConfig
from magneto.language.models import MaskedLanguageModel
from magneto.progress import SILENT, Progress
from magneto.training.task import Loss, Scores

# Shares of the selected tokens that "bert" masks, and that it replaces by a random token; the rest
# is unchanged (arXiv 1810.04805, section 3.1).
MASKED, REPLACED = 0.8, 0.1
# Span lengths are geometric with this probability, up to this length (arXiv 1907.10529,
# section 3.1).
SPAN_END, LONGEST_SPAN = 0.2, 10


class MaskedLanguageModeling(TextTask):
    """Masked-token prediction by a `MaskedLanguageModel`; the loss is in nats per masked token.

    Each packed window is preceded by `<s>`.
    """

    data_config: MaskedTextDataConfig

    def prepare(self, progress: Progress = SILENT) -> None:
        if self.data_config.tokenizer != "bpe":  # raise before the work
            Masking(self.data_config, load_tokenizer(self.data_config.tokenizer))
        super().prepare(progress)

    @cached_property
    def masking(self) -> Masking:
        return Masking(self.data_config, self.tokenizer)

    def build_model(self) -> MaskedLanguageModel:
        return MaskedLanguageModel(replace(self.model_config, vocab_size=self.vocabulary()))

    @property
    def length(self) -> int:
        """Number of corpus tokens in an input sequence, `<s>` excluded."""
        return self.data_config.max_length - 1

    def make(self, windows: np.ndarray, seeds: Iterable[tuple[int, ...]]) -> dict[str, Tensor]:
        begin = np.full((len(windows), 1), self.tokenizer.begin, windows.dtype)
        return self.masking.batch(np.concatenate([begin, windows[:, :-1]], axis=1), seeds)

    @property
    def predictable(self) -> np.ndarray:
        """Whether each token of the vocabulary can be masked; False for special tokens."""
        return self.masking.maskable

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        shapes = {"tokens": self.data_config.max_length, "positions": self.masking.max_masked,
                  "targets": self.masking.max_masked}  # fmt: skip
        return {
            name: torch.zeros(examples, length, dtype=torch.long) for name, length in shapes.items()
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        mask = self.attention_mask(batch["tokens"])
        loss = model(batch["tokens"], mask, batch["positions"], batch["targets"])
        return Loss(loss.total, loss.count, units=batch["tokens"].numel())

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        mask = self.attention_mask(batch["tokens"])
        logits = model(batch["tokens"], mask, batch["positions"]).flatten(0, 1)
        return Scores(prediction_sums(logits, batch["targets"].flatten()))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        return loss_metrics(sums) | {"masked_accuracy": sums["right"] / sums["count"]}


class Masking:
    """Random masking of tokens, reproducible by seed.

    Raises:
        ValueError: If the tokenizer has no mask token.
    """

    def __init__(self, config: MaskedTextDataConfig, tokenizer: Tokenizer) -> None:
        if tokenizer.mask is None:
            where = tokenizer.path or config.tokenizer
            raise ValueError(
                f"data.tokenizer {where} has no mask token (<mask> or [MASK]). Train a tokenizer "
                "with `magneto tokenizer train`."
            )
        self.config, self.mask = config, tokenizer.mask
        self.max_masked = max(1, int(config.mask_ratio * config.max_length))
        special = [tokenizer.end, tokenizer.begin, tokenizer.pad, tokenizer.mask]
        self.maskable = np.ones(tokenizer.vocab_size, bool)
        self.maskable[special] = False
        self.replacements = np.flatnonzero(self.maskable)
        # Whether each token begins, and ends, with a character of a word.
        pieces = tokenizer.pieces()
        self.joins_left = np.array([bool(piece) and _in_word(piece[0]) for piece in pieces])
        self.joins_right = np.array([bool(piece) and _in_word(piece[-1]) for piece in pieces])

    def batch(self, rows: np.ndarray, seeds: Iterable[Sequence[int]]) -> dict[str, Tensor]:
        """Mask random tokens in every row. Each row has its own seed.

        Returns:
            "tokens" are the masked input, (batch, length). "positions" are the masked positions in
            ascending order, (batch, max_masked). "targets" are the original tokens at these
            positions, (batch, max_masked). Unused targets at the end of a row are `IGNORED`.
        """
        seen = rows.copy()
        positions = np.zeros((len(rows), self.max_masked), np.int64)
        targets = np.full((len(rows), self.max_masked), IGNORED, np.int64)
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
        """Return the positions to mask in a row of tokens, in ascending order.

        `most` is the maximum number of positions, by default `max_masked`.
        """
        maskable = self.maskable[row]
        most = min(self.max_masked if most is None else most, int(maskable.sum()))
        if self.config.masking == "token":
            return np.sort(draw.choice(np.flatnonzero(maskable), most, replace=False))
        chosen = np.zeros(len(row), bool)
        if self.config.masking == "span":
            while (left := most - int(chosen.sum())) > 0:
                size = min(int(draw.geometric(SPAN_END)), LONGEST_SPAN, left)
                start = int(draw.integers(len(row)))
                chosen[start : start + size] |= maskable[start : start + size]
            return np.flatnonzero(chosen)
        words, left = self._words(row, maskable), most
        for number in draw.permutation(len(words)):
            if len(words[number]) <= left:
                chosen[words[number]] = True
                left -= len(words[number])
        if words and left == most:  # every word is longer than `most`
            chosen[words[0][:most]] = True
        return np.flatnonzero(chosen)

    def _words(self, row: np.ndarray, maskable: np.ndarray) -> list[np.ndarray]:
        starts = maskable.copy()
        starts[1:] &= ~(
            maskable[1:] & maskable[:-1] & self.joins_left[row[1:]] & self.joins_right[row[:-1]]
        )
        places = np.flatnonzero(maskable)
        if len(places) == 0:
            return []
        return np.split(places, np.flatnonzero(starts[places])[1:])

    def corrupt(self, tokens: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        masked = np.full_like(tokens, self.mask)
        if self.config.corruption == "mask":
            return masked
        fate = draw.random(len(tokens))
        others = draw.choice(self.replacements, len(tokens))
        kept = np.where(fate < MASKED + REPLACED, others, tokens)
        return np.where(fate < MASKED, masked, kept)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "\ufffd"  # part of a multi-byte character
