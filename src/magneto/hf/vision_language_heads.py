"""Our fine-tuned models of vision and language as transformers models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from magneto.hf.losses import divided
from magneto.hf.vision_language import (
    MagnetoVisionLanguagePreTrainedModel,
    check_masks,
    check_pairs,
    packed_texts,
    padded,
    text_mask,
)
from magneto.hf.vision_language_configuration import (
    MagnetoImageCaptioningConfig,
    MagnetoImageTextRetrievalConfig,
    MagnetoQuestionAnsweringConfig,
    MagnetoVisualReasoningConfig,
)
from magneto.vision_language.captioning.decoding import CaptionSearch, CaptionWriter
from magneto.vision_language.captioning.left_to_right import left_to_right
from magneto.vision_language.captioning.model import ImageCaptioner
from magneto.vision_language.question_answering.model import AnswerHead, QuestionAnswerer
from magneto.vision_language.reasoning.config import IMAGES
from magneto.vision_language.reasoning.model import VisualReasoner
from magneto.vision_language.retrieval.contrastive import contrastive_losses
from magneto.vision_language.retrieval.model import ImageTextRetriever
from magneto.vision_language.samples import Samples, join_samples


class MagnetoForVisualQuestionAnswering(MagnetoVisionLanguagePreTrainedModel):
    """A `QuestionAnswerer`; `config.id2label` has the answers."""

    config_class = MagnetoQuestionAnsweringConfig

    def __init__(
        self, config: MagnetoQuestionAnsweringConfig, core: QuestionAnswerer | None = None
    ) -> None:
        super().__init__(config)
        self.core = core or QuestionAnswerer(config.core_config())
        self.ready()

    def head_module(self) -> nn.Module:
        """Return the head."""
        return self.core.head

    def draw_head(self) -> nn.Module:
        """Return a new head."""
        config: Any = self.config
        return AnswerHead(config.core_config(), config.num_labels)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return logits of the answers, whose sigmoid is each one's probability.

        Args:
            pixel_values: (questions, channels, height, width).
            input_ids: (questions, length).
            attention_mask: (questions, length), 1 for a question's own tokens.
            labels: Soft targets, (questions, answers). The loss is binary cross-entropy, summed
                over answers, the mean of questions.
            num_items_in_batch: Of Trainer, which counts labels, an answer each; the summed loss is
                divided by the questions in them, by default those given.
            **others: Arguments that change no number.
        """
        self.refuse(others)
        texts = packed_texts(input_ids, text_mask(input_ids, attention_mask))
        check_pairs(pixel_values, texts)
        check_masks(self, texts)
        samples = join_samples(self.core.config.image_tokens, paired=texts)
        images = self.images(pixel_values, input_ids)
        logits = self.core(images, samples.to(images.device))
        loss = None
        if labels is not None:
            total = F.binary_cross_entropy_with_logits(
                logits.float(), labels.float(), reduction="sum"
            )
            count = labels.numel() if num_items_in_batch is None else num_items_in_batch
            loss = total * labels.shape[1] / torch.as_tensor(count, device=total.device)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


class MagnetoForVisualReasoning(MagnetoVisionLanguagePreTrainedModel):
    """A `VisualReasoner`."""

    config_class = MagnetoVisualReasoningConfig

    def __init__(
        self, config: MagnetoVisualReasoningConfig, core: VisualReasoner | None = None
    ) -> None:
        super().__init__(config)
        self.core = core or VisualReasoner(config.core_config())
        self.ready()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return logits of false and true.

        Args:
            pixel_values: (statements, images of each, channels, height, width).
            input_ids: (statements, length).
            attention_mask: (statements, length), 1 for a statement's own tokens.
            labels: (statements,), 1 for true.
            num_items_in_batch: What the summed loss is divided by; by default the statements.
            **others: Arguments that change no number.

        Raises:
            ValueError: If there are not two images to a statement.
        """
        self.refuse(others)
        if pixel_values.ndim != 5 or pixel_values.shape[1] != IMAGES:
            raise ValueError(f"pixel_values is (statements, {IMAGES}, channels, height, "
                             f"width), not {tuple(pixel_values.shape)}")  # fmt: skip
        texts = packed_texts(input_ids, text_mask(input_ids, attention_mask))
        check_pairs(pixel_values, texts)
        check_masks(self, texts)
        paired = [text for text in texts for _ in range(IMAGES)]
        samples = join_samples(self.core.config.image_tokens, paired=paired)
        samples = samples.to(pixel_values.device)
        logits = self.core(self.images(pixel_values.flatten(0, 1), input_ids), samples)
        loss = None
        if labels is not None:
            total = F.cross_entropy(logits.float(), labels, reduction="sum")
            loss = divided(total, torch.ones_like(labels).sum(), num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


@dataclass
class RetrievalOutput(ModelOutput):
    """Of retrieval; what was not given is None.

    Attributes:
        loss: Mean contrastive loss of pairs.
        logits_per_image: Scaled similarities, (images, texts).
        logits_per_text: (texts, images).
        image_embeds: (images, embedding width), of length 1.
        text_embeds: (texts, embedding width), of length 1.
    """

    loss: Tensor | None = None
    logits_per_image: Tensor | None = None
    logits_per_text: Tensor | None = None
    image_embeds: Tensor | None = None
    text_embeds: Tensor | None = None


class MagnetoForImageTextRetrieval(MagnetoVisionLanguagePreTrainedModel):
    """An `ImageTextRetriever`, with the interface of transformers' CLIP."""

    config_class = MagnetoImageTextRetrievalConfig

    def __init__(
        self, config: MagnetoImageTextRetrievalConfig, core: ImageTextRetriever | None = None
    ) -> None:
        super().__init__(config)
        self.core = core or ImageTextRetriever(config.core_config())
        self.ready()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        **others: Any,
    ) -> RetrievalOutput:
        """Embed images, texts or both; their numbers may differ.

        Args:
            pixel_values: (images, channels, height, width).
            input_ids: (texts, length).
            attention_mask: (texts, length), 1 for a text's own tokens.
            return_loss: Whether image i belongs to text i and the loss is wanted.
            **others: Arguments that change no number.
        """
        self.refuse(others)
        images = self.images(pixel_values, input_ids)
        texts = []
        if input_ids is not None:
            texts = packed_texts(input_ids, text_mask(input_ids, attention_mask))
        tokens = self.core.config.image_tokens
        samples = join_samples(tokens, images=len(images), alone=texts).to(images.device)
        image, text, scale = self.core(images, samples)
        if pixel_values is None or input_ids is None:
            return RetrievalOutput(
                image_embeds=None if pixel_values is None else image,
                text_embeds=None if input_ids is None else text,
            )
        logits = scale * image @ text.T
        loss = contrastive_losses(image, text, scale).mean() if return_loss else None
        return RetrievalOutput(loss, logits, logits.T, image, text)


@dataclass(frozen=True)
class SpecialTokens:
    """Numbers of the tokens that a caption begins and ends with, is padded and masked with."""

    begin: int
    end: int
    pad: int
    mask: int


class MagnetoForImageCaptioning(MagnetoVisionLanguagePreTrainedModel):
    """An `ImageCaptioner`."""

    config_class = MagnetoImageCaptioningConfig

    def __init__(
        self, config: MagnetoImageCaptioningConfig, core: ImageCaptioner | None = None
    ) -> None:
        super().__init__(config)
        self.core = core or ImageCaptioner(config.core_config())
        self.ready()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Return logits of the word at each place, which is read from left to right.

        Args:
            pixel_values: (captions, channels, height, width).
            input_ids: (captions, length), with the mask token where a word is to be guessed.
            attention_mask: (captions, length), 1 for a caption's own tokens.
            **others: Arguments that change no number.
        """
        self.refuse(others)
        mask, tokens = text_mask(input_ids, attention_mask), self.core.config.image_tokens
        texts = packed_texts(input_ids, mask)
        check_pairs(pixel_values, texts)
        samples: Samples = join_samples(tokens, paired=texts)
        packed = replace(samples, packing=left_to_right(samples.packing, tokens))
        images = self.images(pixel_values, input_ids)
        places = torch.arange(len(samples.token_ids), device=images.device)
        logits = self.core(images, packed.to(images.device), places)
        return SequenceClassifierOutput(logits=padded(logits, mask))  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(
        self, pixel_values: Tensor, num_beams: int = 3, length_penalty: float = 0.6
    ) -> Tensor:
        """Write a caption of each image, as `magneto generate` does.

        Args:
            pixel_values: (images, channels, height, width).
            num_beams: Captions kept at each step.
            length_penalty: Power of the length by which log-probabilities are divided.

        Returns:
            (images, longest) tokens, padded, for the tokenizer's `batch_decode`.

        Raises:
            ValueError: If the configuration does not name the special tokens.
        """
        config = self.config
        numbers = [config.bos_token_id, config.eos_token_id, config.pad_token_id,
                   getattr(config, "mask_token_id", None)]  # fmt: skip
        if None in numbers:
            raise ValueError("config needs bos_token_id, eos_token_id, pad_token_id, mask_token_id")
        special: Any = SpecialTokens(*numbers)
        writer = CaptionWriter(self.core, self.core.config, special)
        images = self.images(pixel_values, None)
        found = writer.search(images, CaptionSearch(num_beams, length_penalty))
        made = torch.full((len(found), max(map(len, found))), special.pad)
        for row, tokens in zip(made, found, strict=True):
            row[: len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        return made.to(pixel_values.device)
