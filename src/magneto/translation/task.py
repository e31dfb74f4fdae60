"""Translation between many languages with one encoder-decoder (paper, section 4.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.cache import content_digest
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, BatchStream, Loss, Task
from magneto.translation.batching import Group, GroupMaker, TokenGroups, cut_groups
from magneto.translation.config import ParallelDataConfig, Texts, TranslationConfig
from magneto.translation.model import TranslationModel
from magneto.translation.prepare import Pair, PreparedParallel, known_tags, prepare_parallel
from magneto.translation.references import read_validation_texts
from magneto.translation.translator import TextTranslator, score_directions
from magneto.translation.vocabulary import TranslationVocabulary, load_vocabulary

# Of the order of evaluation batches: one for all runs, so that a limit takes the same ones.
EVALUATION_SEED = 0


class Translation(Task):
    """Parallel text, a `TranslationModel`, label-smoothed cross-entropy per target token.

    A batch is a list of groups, each padded to its own longest sentence; a training example, as
    `training.batch_size` counts them, is a group.
    """

    unit = "tokens"
    model_config: TranslationConfig
    data_config: ParallelDataConfig

    def __init__(self, model: TranslationConfig, data: ParallelDataConfig, seed: int) -> None:
        if model.encoder_layers is None:
            raise ValueError("translation needs model.encoder_layers and model.decoder_layers")
        super().__init__(model, data, seed)
        self._progress: Progress = SILENT
        # Directions to validate on; None for all that are trained.
        self.validated: list[Pair] | None = None
        if data.select_by == "bleu":
            self.primary_metric, self.higher_is_better = "bleu", True

    @cached_property
    def text(self) -> PreparedParallel:
        """The filtered, tokenised corpus."""
        return prepare_parallel(self.data_config, self._progress)

    @cached_property
    def vocabulary(self) -> TranslationVocabulary:
        """Tokens and tags; where `data.tokenizer` is a run's, without touching the text."""
        folder = Path(self.data_config.tokenizer).expanduser()
        if folder.is_dir() and known_tags(self.data_config) is not None:
            return load_vocabulary(folder)
        return self.text.vocabulary

    def check_strategy(self, kind: str) -> None:
        """Refuse ranks that hold shares of a model where translations are made in training."""
        if kind == "fsdp" and self.data_config.select_by == "bleu":
            raise ValueError("data.select_by: bleu needs a whole model on each rank: "
                             "use --distributed ddp, or select_by: loss")  # fmt: skip

    def prepare(self, progress: Progress = SILENT) -> None:
        """Filter and tokenise the source, unless it was done before; say what was left out."""
        if "text" in self.__dict__:
            return
        self._progress = progress
        text = self.text
        for line in text.describe(self.data_config.source):
            progress.say(line)

    def build_model(self) -> TranslationModel:
        """Build the model, with the data's vocabulary if none is set.

        Raises:
            ValueError: If the one set is too small.
        """
        least = self.vocabulary.size
        size = self.model_config.vocab_size or least
        if size < least:
            raise ValueError(
                f"model.vocab_size ({size}) is below {least}: the tokenizer's "
                f"{self.vocabulary.tokenizer.vocab_size} and a tag per language"
            )
        return TranslationModel(replace(self.model_config, vocab_size=size))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return groups of sentences of like length, `batch_size` groups at a time."""
        data = self.data_config
        maker = GroupMaker(self.text.train, self.vocabulary, self.text.directions)
        return TokenGroups(maker, batch_size, data.max_tokens, data.temperature, data.block, seed)

    def loss(self, model: nn.Module, batch: list[Group]) -> Loss:
        """Sum the cross-entropy over the target tokens of a list of groups.

        Logged beside it: `nll`, the same without label smoothing, and `padding`, the share of
        places that hold no token, each group weighing as much as its target tokens.
        """
        parts = [
            model(g["source"], g["target"], g["source_mask"], targets=g["targets"]) for g in batch
        ]
        empty = sum((1 - g["real"] / g["cells"]) * g["predicted"] for g in batch)
        total: Tensor = torch.stack([part.total for part in parts]).sum()
        logs = {
            "nll": torch.stack([part.nll for part in parts]).sum(),
            "padding": total.new_full((), empty),  # no copy from the host
        }
        return Loss(total, torch.stack([part.count for part in parts]).sum(), logs)

    def size(self, batch: list[Group]) -> int:
        """Return the target tokens of a batch, ends included and padding not."""
        return sum(group["predicted"] for group in batch)

    @cached_property
    def validation_groups(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Directions and numbers of the sentences of each evaluation batch, in mixed order."""
        maker = self._validation_maker
        sizes = maker.sizes
        directions = np.repeat(np.arange(len(sizes)), sizes)
        numbers = np.concatenate([np.arange(size) for size in sizes])
        lengths = np.concatenate([maker.lengths(i, np.arange(n)) for i, n in enumerate(sizes)])
        random = np.random.default_rng(EVALUATION_SEED)
        groups = cut_groups(lengths, self.data_config.max_tokens, random)
        order = random.permutation(len(groups))
        return [(directions[groups[i]], numbers[groups[i]]) for i in order]

    @cached_property
    def _validation_maker(self) -> GroupMaker:
        directions = self.validated or self.text.directions
        return GroupMaker(self.text.validation, self.vocabulary, directions)

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        limit: int | None = None,
        progress: Progress = SILENT,
    ) -> dict[str, float]:
        """Return loss (nats per target token, without label smoothing) and perplexity.

        If BLEU chooses the best checkpoint, also its unweighted mean over directions.
        """
        chosen = self.validation_groups[:limit]
        total = count = torch.zeros((), device=device, dtype=torch.float64)
        for done, group in enumerate(chosen, 1):
            made = self._validation_maker.make(*group)
            g = {k: v.to(device) for k, v in made.items() if isinstance(v, Tensor)}
            part = model(g["source"], g["target"], g["source_mask"], targets=g["targets"])
            total, count = total + part.nll.double(), count + part.count.double()
            progress.update("evaluating batches", done, len(chosen))
        loss = (total / count).item()
        found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.data_config.select_by == "bleu":
            found["bleu"] = self._bleu(model, progress)
        return found

    @cached_property
    def _bleu_texts(self) -> dict[Pair, list[Texts]]:
        return read_validation_texts(self.data_config, self.data_config.bleu_sentences).texts

    def _bleu(self, model: Any, progress: Progress) -> float:
        """Return the mean over directions of the BLEU of greedy translations."""
        from magneto.hf import BeamSearch

        how = BeamSearch(beams=1, longest=self.data_config.max_length)
        translator = TextTranslator(model, self.vocabulary, self.data_config.max_length, how)
        scores, _ = score_directions(translator, self._bleu_texts, progress)
        return sum(each.bleu for each in scores.values()) / len(scores)

    def artifacts(self, directory: Path) -> None:
        """Write the vocabulary: tokenizer and languages."""
        (directory / "tokenizer").mkdir(exist_ok=True)
        self.vocabulary.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(self._digest, encoding="utf-8")

    @cached_property
    def _digest(self) -> str:
        # All tokens are read for it: once, however often a start asks.
        return content_digest(self.text.train.tokens, self.text.validation.tokens)
