"""The model of visual question answering: an encoder of the pair, a pooler, a head over answers."""

from __future__ import annotations

from torch import Tensor, nn

from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.nn.norm import build_norm
from magneto.vision_language.config import QuestionAnsweringConfig
from magneto.vision_language.model import (
    FirstOfImage,
    MaskOfText,
    PairPooling,
    VisionLanguageEncoder,
)
from magneto.vision_language.samples import Samples


class Pooler(nn.Sequential):
    """A norm, a linear layer and tanh over the features that are read."""

    def __init__(self, config: QuestionAnsweringConfig) -> None:
        super().__init__(
            build_norm("layernorm", config.width, config),
            NormalLinear(config.width, config.width, bias=True, std=NORMAL_STD),
            nn.Tanh(),
        )


class AnswerHead(nn.Sequential):
    """A hidden layer of twice the width, and a logit for each answer."""

    def __init__(self, config: QuestionAnsweringConfig, answers: int) -> None:
        super().__init__(
            NormalLinear(config.width, 2 * config.width, bias=True, std=NORMAL_STD),
            build_norm("layernorm", 2 * config.width, config),
            nn.GELU(),
            NormalLinear(2 * config.width, answers, bias=True, std=NORMAL_STD),
        )


def question_pooling(config: QuestionAnsweringConfig) -> PairPooling:
    """Return what reads the features of a question and its image, (questions, width)."""
    parts = {"first": FirstOfImage(), "mask_token": MaskOfText()}
    return PairPooling([parts[config.pooling]])


class QuestionAnswerer(nn.Module):
    """BEiT-3's model of VQA: features that have read image and question answer.

    In BEiT-3 they are those of the image's class token; see `QuestionAnsweringConfig.pooling`.

    Raises:
        ValueError: If the number of answers or the vocabulary is not known.
    """

    def __init__(self, config: QuestionAnsweringConfig) -> None:
        super().__init__()
        if config.answers is None:
            raise ValueError("answers is not known: prepare the task, which reads the data")
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        self.pooling = question_pooling(config)
        self.pooler = Pooler(config)
        self.head = AnswerHead(config, config.answers)

    def forward(self, images: Tensor, samples: Samples) -> Tensor:
        """Answer the questions of a batch.

        Args:
            images: (questions, channels, height, width).
            samples: The questions, each beside its image.

        Returns:
            Logits, (questions, answers).
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
        return self.head(self.pooler(self.pooling(vision, language, samples)))
