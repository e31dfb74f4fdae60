"""Visual question answering: a question about an image has an answer from a list (VQA v2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import BatchStream
from magneto.files import write_json
from magneto.training.task import Figure
from magneto.vision_language.answers import answer_scores, question_only_answers, read_answers
from magneto.vision_language.config import QuestionAnsweringConfig, QuestionAnsweringDataConfig
from magneto.vision_language.finetuning import NO_ANSWER, PairTask
from magneto.vision_language.model import QuestionAnswerer
from magneto.vision_language.questions import (
    HELD_OUT_FILE,
    Questions,
    check_held_out,
    image_keys,
    load_questions,
    without_answers,
)
from magneto.vision_language.tables import EVALUATION_BATCH

ANSWERS_FILE = "answers.json"


class QuestionAnswering(PairTask):
    """Visual question answering; the loss is binary cross-entropy in nats per question."""

    unit = words = rows = "questions"
    column, credit = "question", "soft_score"
    model_config: QuestionAnsweringConfig
    data_config: QuestionAnsweringDataConfig

    @cached_property
    def splits(self) -> Questions:
        return load_questions(self.data_config, self.problems, self._progress)

    @cached_property
    def answers(self) -> list[str]:
        named = self.data_config.answers
        return self.splits.answers if named is None else read_answers(named)

    def training_texts(self) -> Iterable[str]:
        self._check_answered()
        return super().training_texts()

    def _check_answered(self) -> None:
        if not self.splits.answered:
            raise ValueError(without_answers(self.data_config.validation_split))

    def check(self) -> None:
        """Check answers and pre-trained run, and that a run is not evaluated on training images."""
        if self.data_config.held_out is not None:
            measured = image_keys(self.splits.validation)
            check_held_out(self.data_config, measured, self._progress)
        found, wanted = len(self.answers), self.model_config.answers
        if wanted not in (None, found):
            raise ValueError(f"the answer list has {found} answers, but model.answers is {wanted}: "
                             "do not set model.answers")  # fmt: skip
        super().check()

    def build_model(self) -> QuestionAnswerer:
        config = self.sized_config()
        return QuestionAnswerer(replace(config, answers=config.answers or len(self.answers)))

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        rate = self.model_config.head_rate
        names = (name for name, _ in model.named_parameters() if name.startswith("head."))
        return {} if rate == 1 else dict.fromkeys(names, rate)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        self._check_answered()
        return super().train_stream(batch_size, seed)

    def targets(self, validation: bool, rows: np.ndarray) -> Tensor:
        """Return the targets of questions, (questions, answers)."""
        split = self.splits.validation_targets if validation else self.splits.train_targets
        return torch.from_numpy(split[rows].toarray())

    def blank_targets(self, count: int) -> Tensor:
        return torch.zeros(count, self.model_config.answers or len(self.answers))

    def nats(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")

    def credits(self, logits: Tensor, targets: Tensor) -> Tensor:
        return targets.gather(1, logits.argmax(1, keepdim=True))[:, 0]

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the official accuracy, of all questions and by type of answer, and the loss.

        "soft_score" is the validation score of BEiT-3's released code: the mean target of the
        predicted answers. The targets depend on the look-up. "unknown" is the share of questions
        for which every answer of the list scores 0. Without public answers the metrics are only
        "questions" and "broken".
        """
        count, broken = sums["count"], {"broken": sums["broken"]}
        if not self.splits.answered:
            return {"questions": float(count), **broken}
        rows, given = self._given(predictions)
        asked = self.splits.validation.take(np.array(rows))
        when = self.data_config.normalise_answers
        found = answer_scores(asked.values("answers"), asked.values("kind"), given, when)
        shares = {name: sums[name] / count for name in ("loss", "soft_score")}
        unknown = float((~self.splits.answerable[rows]).sum()) / count
        return {**found, **shares, "unknown": unknown, **broken}

    def given_answers(self, predictions: Sequence[Any]) -> list[tuple[Any, str]]:
        """Return pairs of question id and answer of an evaluation; a missing answer is ""."""
        ids = self.splits.validation.values("id")
        pairs = sorted(zip(*self._given(predictions), strict=True), key=lambda pair: pair[0])
        return [(ids[row], answer or "") for row, answer in pairs]

    def _given(self, predictions: Sequence[Any]) -> tuple[list[int], list[str | None]]:
        rows, numbers = (torch.cat(part).tolist() for part in zip(*predictions, strict=True))
        return rows, [None if n == NO_ANSWER else self.answers[n] for n in numbers]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of the most frequent answer to the same words; none for a test split.

        The loss is the one of always predicting the mean targets.
        """
        found = self.splits
        if not found.answered:
            return {}
        rows = self.validation_rows(limit)
        likely = found.train_targets.astype(np.float64).mean(0).clip(1e-6, 1 - 1e-6)
        asked = found.validation.take(rows).values("question")
        chosen = question_only_answers(found.train.values("question"), found.train_targets, asked)
        sums = {"loss": 0.0, "soft_score": 0.0, "broken": 0, "count": len(rows)}
        for start in range(0, len(rows), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            targets = found.validation_targets[rows[part]].toarray()
            nats = targets * np.log(likely) + (1 - targets) * np.log(1 - likely)
            sums["loss"] -= float(nats.sum())
            sums["soft_score"] += float(targets[np.arange(len(targets)), chosen[part]].sum())
        return self.summarise(sums, [(torch.from_numpy(rows), torch.from_numpy(chosen))])

    def shares(self, logits: Tensor) -> tuple[Sequence[str], Tensor]:
        """Return the probability of each answer under the condition that exactly one is right.

        The model gives each answer the odds exp(logit), independently of the other answers. The
        conditional probabilities are proportional to these odds.
        """
        return self.answers, logits.softmax(-1)

    def save_assets(self, directory: Path) -> dict[str, Any]:
        write_json(directory / ANSWERS_FILE, self.answers)
        write_json(directory / HELD_OUT_FILE, image_keys(self.splits.validation))
        kept = super().save_assets(directory)
        kept["data.held_out"] = directory / HELD_OUT_FILE
        return {**kept, "data.answers": directory / ANSWERS_FILE}


def figures(task: QuestionAnswering, model: nn.Module) -> Sequence[Figure]:
    from magneto.vision_language.figures import attention_figure

    held = task.splits.validation
    texts, majorities = held.values("question"), held.values("majority")

    def heading(row: int, answer: int) -> str:
        said = f"; annotators: {majorities[row]}" if majorities[row] else ""
        return f"{texts[row]}   —   model: {task.answers[answer]}{said}"

    return attention_figure(task, model, heading)
