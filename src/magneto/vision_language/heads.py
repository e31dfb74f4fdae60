"""What stands on the encoder: a model for each task of vision and language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.functional.cross_entropy import CrossEntropyLoss, linear_cross_entropy
from magneto.nn.init import NORMAL_STD, MaskToken, NormalLinear, build_norm
from magneto.vision_language.config import (
    IMAGES,
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    MaskedDataModelConfig,
    QuestionAnsweringConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.model import (
    FirstOfImage,
    FirstOfText,
    MaskOfText,
    MeanOfImage,
    MeanOfText,
    PairPooling,
    VisionLanguageEncoder,
)
from magneto.vision_language.samples import Samples

# Names of the two answers, in the order of their numbers.
ANSWERS = ("False", "True")

# Similarities are multiplied by no more (CLIP, arXiv 2103.00020).
MOST_SCALE = 100.0


@dataclass(frozen=True)
class MaskedSamples:
    """What is hidden in a batch.

    Attributes:
        samples: Images alone, pairs and texts alone; hidden words are masked in it.
        hidden: Boolean, (images, patches): True where a patch is hidden.
        patches: (hidden patches,) number of each: image * patches of an image + patch. Those of
            images alone come first.
        words: (hidden words,) number of each among the language tokens. Those of pairs come first.
        alone_patches: How many of the hidden patches are of images alone.
        paired_words: How many of the hidden words are of pairs.
    """

    samples: Samples
    hidden: Tensor
    patches: Tensor
    words: Tensor
    alone_patches: int
    paired_words: int


@dataclass(frozen=True)
class MaskedDataLoss:
    """Cross-entropies of a batch: of hidden patches and of hidden words."""

    patches: CrossEntropyLoss
    words: CrossEntropyLoss


class MaskedDataModel(nn.Module):
    """`VisionLanguageEncoder`, and two linear heads that see the hidden places alone.

    Raises:
        ValueError: If `vocab_size` or `codes` is None.
    """

    def __init__(self, config: MaskedDataModelConfig) -> None:
        super().__init__()
        if config.codes is None or config.vocab_size is None:
            raise ValueError("codes and vocab_size are not known: prepare the task, which asks "
                             "both tokenizers")  # fmt: skip
        self.config = config
        width = config.width
        self.encoder = VisionLanguageEncoder(config, MaskToken(width))
        self.patch_head = NormalLinear(width, config.codes, bias=True, std=NORMAL_STD)
        self.word_head = NormalLinear(width, config.vocab_size, bias=True, std=NORMAL_STD)

    def features(self, images: Tensor, masked: MaskedSamples) -> tuple[Tensor, Tensor]:
        """Return what the heads read: (hidden patches, width) and (hidden words, width)."""
        given = masked.samples
        vision, language = self.encoder(
            images, given.token_ids, given.token_positions, given.packing, masked.hidden
        )
        # Each image has its class token before its patches.
        places = masked.patches + masked.patches // self.config.patches + 1
        return vision.index_select(0, places), language.index_select(0, masked.words)

    def forward(
        self,
        images: Tensor,
        masked: MaskedSamples,
        codes: Tensor | None = None,
        words: Tensor | None = None,
    ) -> Any:
        """Return logits, or with both targets the losses, whose logits never exist all at once.

        Args:
            images: (images, channels, height, width).
            masked: What is hidden.
            codes: Of the hidden patches, (hidden patches,); -100 for none.
            words: That are hidden, (hidden words,); -100 for none.

        Returns:
            Logits (hidden patches, codes) and (hidden words, vocab_size); or a `MaskedDataLoss`.
        """
        patches, language = self.features(images, masked)
        if codes is None or words is None:
            return self.patch_head(patches), self.word_head(language)
        losses = [
            linear_cross_entropy(
                features, head.weight, targets, head.bias, chunk=self.config.loss_chunk
            )
            for head, features, targets in (
                (self.patch_head, patches, codes),
                (self.word_head, language, words),
            )
        ]
        return MaskedDataLoss(*losses)


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
        part = FirstOfImage() if config.pooling == "first" else MaskOfText()
        self.pooling = PairPooling([part])
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


class VisualReasoner(nn.Module):
    """The statement is read with each image by itself; the head reads all of them (BEiT-3).

    Of each pass it has the features of the image's class token and of the text's `<s>`, or others:
    see `VisualReasonerConfig.pooling`. Then 4 x width, a norm, 2 x width, a norm, GELU,
    two logits.
    """

    def __init__(self, config: VisualReasonerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        first = config.pooling == "first"
        self.pooling = PairPooling([FirstOfImage(), FirstOfText()] if first else [MaskOfText()])
        std, inner = NORMAL_STD * config.head_scale, 2 * config.width
        inputs = len(self.pooling.parts) * config.width * IMAGES
        self.head = nn.Sequential(
            nn.LayerNorm(inputs, eps=config.norm_eps),
            NormalLinear(inputs, inner, bias=True, std=std),
            nn.LayerNorm(inner, eps=config.norm_eps),
            nn.GELU(),
            NormalLinear(inner, len(ANSWERS), bias=True, std=std),
        )

    def forward(self, images: Tensor, samples: Samples) -> Tensor:
        """Judge statements.

        Args:
            images: (statements * images, channels, height, width), those of a statement one after
                the other.
            samples: As many pairs: each image with its statement.

        Returns:
            Logits (statements, 2) of false and true.
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
        read = self.pooling(vision, language, samples)
        return self.head(read.unflatten(0, (-1, IMAGES)).flatten(1))


class SimilarityScale(nn.Module):
    """What similarities are multiplied by: the exponential of a learnt number.

    Args:
        temperature: One divided by what it is at first.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.logarithm = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the first value."""
        nn.init.constant_(self.logarithm, -math.log(self.temperature))

    def forward(self) -> Tensor:
        """Return the scale, a scalar."""
        return self.logarithm.float().clamp(max=math.log(MOST_SCALE)).exp()


class ImageTextRetriever(nn.Module):
    """An encoder over images alone and texts alone, and a linear head for each (BEiT-3).

    An image is the feature of its class token, a text that of its `<s>`; or means, see
    `ImageTextRetrieverConfig.pooling`.
    """

    def __init__(self, config: ImageTextRetrieverConfig) -> None:
        super().__init__()
        self.config = config
        width, outputs = config.width, config.embedding_width or config.width
        self.encoder = VisionLanguageEncoder(config)
        first = config.pooling == "first"
        self.image_pooling = FirstOfImage() if first else MeanOfImage(config.image_tokens)
        self.text_pooling = FirstOfText() if first else MeanOfText()
        self.vision_head = NormalLinear(width, outputs, bias=False, std=NORMAL_STD)
        self.language_head = NormalLinear(width, outputs, bias=False, std=NORMAL_STD)
        self.scale = SimilarityScale(config.temperature)

    def forward(self, images: Tensor, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
        """Embed images and texts; their numbers may differ.

        Args:
            images: (images, channels, height, width).
            samples: As many images alone, then texts alone.

        Returns:
            Vectors of length 1 of the images, (images, embedding_width), and of the texts, (texts,
            embedding_width), in float32; and what similarities are multiplied by, a scalar.
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
        first = self.vision_head(self.image_pooling(vision, language, samples))
        second = self.language_head(self.text_pooling(vision, language, samples))
        return F.normalize(first.float(), dim=-1), F.normalize(second.float(), dim=-1), self.scale()


class ImageCaptioner(nn.Module):
    """An encoder, and a linear head over the vocabulary that reads the places to be filled in.

    Raises:
        ValueError: If `vocab_size` is None.
    """

    def __init__(self, config: ImageCaptionerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        self.word_head = NormalLinear(
            config.width, config.vocab_size or 1, bias=True, std=NORMAL_STD
        )

    def forward(
        self, images: Tensor, samples: Samples, words: Tensor, targets: Tensor | None = None
    ) -> Tensor | CrossEntropyLoss:
        """Return logits, or with targets the loss, whose logits never exist all at once.

        Args:
            images: (pairs, channels, height, width).
            samples: As many pairs, packed by `left_to_right`.
            words: (words,) numbers of the places to be filled in, among the language tokens.
            targets: (words,) what belongs there.

        Returns:
            Logits (words, vocab_size), or the summed cross-entropy.
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
        # The image's features are read by nobody; with this their experts have gradients, of zeros,
        # for which ranks wait.
        features = language[words] + 0 * vision.sum()
        if targets is None:
            return self.word_head(features)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return linear_cross_entropy(
            features, self.word_head.weight, targets, self.word_head.bias,
            smoothing=smoothing, chunk=self.config.loss_chunk,
        )  # fmt: skip
