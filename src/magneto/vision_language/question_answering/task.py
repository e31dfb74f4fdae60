"""Visual question answering: a question about an image, an answer out of a list (VQA v2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import BatchStream
from magneto.files import write_json
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.batches import Transform
from magneto.vision.decoding import Picture
from magneto.vision.image_task import Prediction
from magneto.vision.images import MISSING_IMAGE
from magneto.vision.transforms import Reading
from magneto.vision_language.fine_tuned_task import FineTunedTask
from magneto.vision_language.question_answering.answers import read_answers
from magneto.vision_language.question_answering.baseline import text_only_scores
from magneto.vision_language.question_answering.batches import QuestionBatches
from magneto.vision_language.question_answering.config import (
    QuestionAnsweringConfig,
    QuestionAnsweringDataConfig,
)
from magneto.vision_language.question_answering.data import (
    PreparedQuestions,
    prepare_questions,
    without_answers,
)
from magneto.vision_language.question_answering.figures import question_figures
from magneto.vision_language.question_answering.held_out import HELD_OUT_FILE, check_held_out
from magneto.vision_language.question_answering.model import QuestionAnswerer
from magneto.vision_language.question_answering.questions import Question, QuestionSplit
from magneto.vision_language.question_answering.scores import NO_ANSWER, summary
from magneto.vision_language.question_answering.targets import Targets
from magneto.vision_language.samples import join_samples
from magneto.vision_language.whole_images import WholeImage, WholeImageAugmentation

# Questions of an evaluation batch.
EVALUATION_BATCH = 64
ANSWERS_FILE = "answers.json"


class QuestionAnswering(FineTunedTask):
    """Questions about images, a `QuestionAnswerer`, binary cross-entropy in nats per question."""

    primary_metric = "accuracy"
    unit = "questions"

    model_config: QuestionAnsweringConfig
    data_config: QuestionAnsweringDataConfig

    def read_splits(self) -> PreparedQuestions:
        """Training and validation questions."""
        return prepare_questions(self.data_config)

    @cached_property
    def answers(self) -> list[str]:
        """The answers to choose from; those that the recipe names are known without the data."""
        named = self.data_config.answers
        return self.splits.answers if named is None else read_answers(named)

    def training_texts(self) -> Iterable[str]:
        """Return the training questions."""
        return (question.text for question in self._taught.questions)

    def examples(self) -> int:
        """Return how many questions there are to train on."""
        return len(self._taught)

    @property
    def _taught(self) -> QuestionSplit:
        """The questions to train on; a test split is read without them."""
        if not self.splits.validation.answered:
            raise ValueError(without_answers(self.data_config.validation_split))
        return self.splits.train

    def check_data(self) -> None:
        """Say how many questions there are, what was odd, and which images are missing."""
        self._progress.say(f"{self.data_config.source}: {self.splits.describe()}")
        for name in self.splits.missing:
            self.problems.met(MISSING_IMAGE, name, "no such file; its questions are left out")
        if self.data_config.held_out is not None:
            measured = self.splits.validation.image_keys()
            check_held_out(self.data_config, measured, self._progress)
        found, wanted = len(self.answers), self.model_config.answers
        if wanted not in (None, found):
            raise ValueError(f"there are {found} answers to choose from, the model has {wanted}: "
                             "leave model.answers out")  # fmt: skip

    def build_model(self) -> QuestionAnswerer:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        config = self.sized_config()
        return QuestionAnswerer(replace(config, answers=config.answers or len(self.answers)))

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        """Return the multiple of the head above the pooler, if it is not 1."""
        rate = self.model_config.head_rate
        names = (name for name, _ in model.named_parameters() if name.startswith("head."))
        return {} if rate == 1 else dict.fromkeys(names, rate)

    @cached_property
    def train(self) -> QuestionBatches:
        """The training questions, tokenised, with augmented images."""
        taught, targets = self._taught, self.splits.train_targets
        transform = WholeImageAugmentation(self.reading, self.data_config.augmentation)
        return self._batches("training", taught, targets, transform)

    @cached_property
    def validation(self) -> QuestionBatches:
        """The validation questions, tokenised, with whole images."""
        found, transform = self.splits, WholeImage(self.reading)
        return self._batches("validation", found.validation, found.validation_targets, transform)

    def _batches(
        self, name: str, split: QuestionSplit, targets: Targets, transform: Transform
    ) -> QuestionBatches:
        blank, shows = self.reading.blank, self.data_config.input
        texts = ["" if shows == "image" else question.text for question in split.questions]
        seen: Transform = (lambda picture, random: blank) if shows == "question" else transform
        tokens = self.framed(name, "questions", texts)
        return QuestionBatches(split, tokens, targets, seen, blank, self.model_config.image_tokens)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return shuffled questions.

        Raises:
            ValueError: If the validation questions have no answers to choose checkpoints by.
        """
        return self.train.training(batch_size, seed)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images with the longest questions."""
        texts = self.longest_texts(examples)
        answers = self.model_config.answers or len(self.answers)
        return {
            "images": self.black_images(examples),
            "samples": join_samples(self.model_config.image_tokens, paired=texts),
            "targets": torch.zeros(examples, answers),
            "rows": torch.zeros(examples, dtype=torch.long),
            "broken": torch.zeros(examples, dtype=torch.bool),
        }

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Sum the binary cross-entropy of all answers over the questions.

        Logged with it: "soft_score", the target of the likeliest answer, and "broken", the share of
        questions that stand in the place of others whose image could not be read.
        """
        logits, targets = model(batch["images"], batch["samples"]).float(), batch["targets"]
        total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        credit = likeliest_target(logits.detach(), targets).sum()
        logs = {"soft_score": credit, "broken": batch["broken"].sum()}
        return Loss(total, torch.ones_like(batch["rows"]).sum(), logs)

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        """Return all validation questions in mixed order."""
        return self.validation.evaluation(EVALUATION_BATCH)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Sum losses and the released code's score; keep which answers were chosen."""
        logits, targets = model(batch["images"], batch["samples"]).float(), batch["targets"]
        broken = batch["broken"]
        sums = {
            "loss": F.binary_cross_entropy_with_logits(logits, targets, reduction="sum"),
            "soft_score": likeliest_target(logits, targets).masked_fill(broken, 0).sum(),
            "broken": broken.sum(),
            "count": torch.ones_like(batch["rows"]).sum(),
        }
        return Scores(sums, (batch["rows"], logits.argmax(1).masked_fill(broken, NO_ANSWER)))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the official accuracy, of all and by type of answer, the loss and what is odd.

        See `magneto.vision_language.question_answering.scores.summary`.
        """
        rows, questions, given = self._given(predictions)
        unknown = int((~self.splits.answerable[rows]).sum())
        sums = {**sums, "unknown": unknown}
        return summary(sums, questions, given, self.data_config.normalise_answers)

    def given_answers(self, predictions: Sequence[Any]) -> list[tuple[int, str]]:
        """Return the answers of an evaluation by the questions' numbers; "" where there is none."""
        _, questions, given = self._given(predictions)
        pairs = zip(questions, given, strict=True)
        return sorted((question.number, answer or "") for question, answer in pairs)

    def _given(
        self, predictions: Sequence[Any]
    ) -> tuple[list[int], list[Question], list[str | None]]:
        """Return rows, questions and chosen answers of scored batches."""
        rows, numbers = (torch.cat(part).tolist() for part in zip(*predictions, strict=True))
        questions = [self.splits.validation.questions[row] for row in rows]
        given = [None if number == NO_ANSWER else self.answers[number] for number in numbers]
        return rows, questions, given

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the scores of who reads the question and sees no image; of a test split none."""
        if not self.splits.validation.answered:
            return {}
        plans = self.validation.evaluation(EVALUATION_BATCH).plans
        rows = np.concatenate(list(islice(plans, limit)))
        return text_only_scores(self.splits, rows, self.data_config.normalise_answers)

    @torch.no_grad()
    def predict(self, model: nn.Module, pictures: Sequence[Picture], text: str) -> list[Prediction]:
        """Answer a question about each image: all answers, the likeliest first.

        An answer's share is the probability that the model gives to it by itself; they do not add
        up to 1.

        Args:
            model: With a run's weights, in evaluation mode.
            pictures: That can be decoded.
            text: The question.

        Raises:
            ValueError: If the model reads shorter questions.
        """
        config, random = self.model_config, np.random.default_rng(0)
        transform = WholeImage(Reading(config.image_size, config.channels,
                                       self.data_config.normalisation))  # fmt: skip
        images = torch.from_numpy(np.stack([transform(each, random) for each in pictures]))
        samples = join_samples(
            config.image_tokens, paired=[self.framed_whole(text, "question")] * len(pictures)
        )
        device = next(model.parameters()).device
        logits = model(images.to(device), samples.to(device)).float().cpu()
        shares, order = logits.sigmoid().sort(dim=1, descending=True, stable=True)
        return [
            Prediction([(self.answers[number], share) for number, share in zip(*row, strict=True)])
            for row in zip(order.tolist(), shares.tolist(), strict=True)
        ]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer, the answers, and which images are validated on."""
        write_json(directory / ANSWERS_FILE, self.answers)
        write_json(directory / HELD_OUT_FILE, self.splits.validation.image_keys())
        kept = super().save_assets(directory)
        kept["data.held_out"] = directory / HELD_OUT_FILE
        return {**kept, "data.answers": directory / ANSWERS_FILE}


def likeliest_target(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the target of each question's likeliest answer, (questions,)."""
    return targets.gather(1, logits.argmax(1, keepdim=True))[:, 0]


def figures(task: QuestionAnswering, model: nn.Module) -> Sequence[Figure]:
    """Return where the words of questions look in their images, and wrong answers."""
    return question_figures(model, task.validation, task.answers, task.tokenizer, task.reading)
