"""Models of images, of speech, and of images with texts, for the library transformers.

Arguments have transformers' names. `pixel_values` have shape (images, channels, height, width).
`input_ids` and `attention_mask` have shape (texts, length). The mask is 1 for tokens and 0 for
padding. `others` accepts arguments of transformers that do not change the result, such as
`use_cache`. Some models also support `output_hidden_states`. Any other argument raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import (
    BaseModelOutput,
    ImageClassifierOutput,
    SemanticSegmenterOutput,
    SequenceClassifierOutput,
)
from transformers.models.clip.modeling_clip import CLIPOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from magneto.functional.cross_entropy import IGNORED as TRAINERS_IGNORED
from magneto.hf.wrapper import (
    MagnetoImageCaptioningConfig,
    MagnetoImageConfig,
    MagnetoImageTextRetrievalConfig,
    MagnetoMaskedDataConfig,
    MagnetoPreTrainedModel,
    MagnetoQuestionAnsweringConfig,
    MagnetoSegmentationConfig,
    MagnetoTransducerConfig,
    MagnetoVisionLanguageConfig,
    MagnetoVisualReasoningConfig,
    as_mask,
    classification_loss,
    hidden_states,
    mean_loss,
)
from magneto.speech.decoding import GreedySearch
from magneto.speech.model import Transducer
from magneto.vision.config import IGNORED
from magneto.vision.models import ImageClassifier, Segmenter, pixel_logits, resize
from magneto.vision_language.caption_decoding import CaptionSearch, CaptionWriter, left_to_right
from magneto.vision_language.config import IMAGES
from magneto.vision_language.model import (
    ImageCaptioner,
    ImageTextRetriever,
    MaskedDataModel,
    QuestionAnswerer,
    VisionLanguageEncoder,
    VisualReasoner,
    contrastive_losses,
)
from magneto.vision_language.samples import Samples, join_samples


class MagnetoForImageClassification(MagnetoPreTrainedModel):
    """`ImageClassifier` for transformers."""

    config_class = MagnetoImageConfig
    core_class = ImageClassifier
    head_name = "core.head"
    main_input_name = "pixel_values"

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> ImageClassifierOutput:
        """Return logits (images, num_labels), and the loss of `classification_loss`."""
        self.check_arguments(others)
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            logits = self.core(pixel_values.to(self.dtype))
        loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return ImageClassifierOutput(loss, logits, tuple(states) or None)


class MagnetoForSemanticSegmentation(MagnetoPreTrainedModel):
    """`Segmenter` for transformers."""

    config_class = MagnetoSegmentationConfig
    core_class = Segmenter
    hidden_states_advice: ClassVar = "call model.core.features(images)"
    main_input_name = "pixel_values"

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SemanticSegmenterOutput:
        """Return the logits of all pixels, and the loss if there are labels.

        Logits have shape (images, num_labels, height, width). Images without labels may have any
        size. Images with labels must have `image_size` x `image_size` pixels. Labels are the class
        numbers of pixels, of shape (images, height, width). Pixels with the label 255 or -100 are
        ignored.

        The loss is summed over labelled pixels and divided by the number of labelled pixels. With
        Trainer's `num_items_in_batch`, the divisor is `num_items_in_batch` minus the number of
        pixels with the label 255 in the micro-batch. With gradient accumulation, give ignored
        pixels the label -100, not 255. Trainer counts pixels with the label 255 in all
        micro-batches, but only those of one micro-batch are subtracted.

        Raises:
            ValueError: If images with labels do not have the size of the model's input.
            ValueError: If `inference` in the configuration is "whole" and weights are offloaded.
        """
        self.check_arguments(others)
        pixel_values = pixel_values.to(self.dtype)
        if labels is None:
            if self.training:
                raise ValueError(
                    "training needs labels; Trainer's label smoothing is not supported"
                )
            self._check_weights_in_memory()
            logits = torch.stack(list(pixel_logits(self.core, list(pixel_values))))
            return SemanticSegmenterOutput(logits=logits)  # type: ignore[arg-type]
        side = self.core.config.image_size
        if tuple(pixel_values.shape[2:]) != (side, side):
            raise ValueError(f"images with labels must have {side} x {side} pixels, not "
                             f"{' x '.join(map(str, pixel_values.shape[2:]))}")  # fmt: skip
        outputs = self.core(pixel_values)
        main, auxiliary = (resize(x.float(), labels.shape[1:]) for x in outputs)
        weight = self.core.config.auxiliary_weight
        known = torch.where(labels == TRAINERS_IGNORED, IGNORED, labels.long())
        total = _summed(main, known) + weight * _summed(auxiliary, known)
        number = num_items_in_batch
        if number is not None:
            number = torch.as_tensor(number, device=labels.device) - (labels == IGNORED).sum()
        loss = mean_loss(total, (known != IGNORED).sum(), number)
        return SemanticSegmenterOutput(loss=loss, logits=main)  # type: ignore[arg-type]

    def _check_weights_in_memory(self) -> None:
        offloaded = any(parameter.is_meta for parameter in self.core.parameters())
        if offloaded and self.core.config.inference == "whole":
            raise ValueError("inference 'whole' needs all weights in memory. Load the model "
                             "without an offload_folder, or set core['inference'] in its "
                             "configuration to 'slide'.")  # fmt: skip


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


class MagnetoForTransducer(MagnetoPreTrainedModel):
    """`Transducer` for transformers."""

    config_class = MagnetoTransducerConfig
    core_class = Transducer
    main_input_name = "input_features"

    @can_return_tuple
    def forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        """Return encoder outputs (batch, frames // 4, width).

        `input_features` have shape (batch, frames, mel bins). `attention_mask` of shape (batch,
        frames) is 0 for padding.
        """
        self.check_arguments(others)
        lengths = frame_counts(input_features, attention_mask)
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            encoded, _ = self.core.encode(input_features.to(self.dtype), lengths)
        return BaseModelOutput(last_hidden_state=encoded, hidden_states=tuple(states) or None)

    @torch.no_grad()
    def transcribe(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
    ) -> list[list[int]]:
        """Return the tokens of each utterance by greedy search.

        The tokenizer's `batch_decode` returns the texts.
        """
        lengths = frame_counts(input_features, attention_mask)
        encoded, lengths = self.core.encode(input_features.to(self.dtype), lengths)
        found = GreedySearch()(self.core, encoded, lengths)
        return [[label - 1 for label in best[0].labels] for best in found]


def frame_counts(features: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return how many frames of each recording are not padding, shape (batch,)."""
    mask = as_mask(attention_mask, tuple(features.shape[:2]))
    if mask is None:
        return torch.full((len(features),), features.shape[1], device=features.device)
    return mask.sum(1)


@dataclass
class VisionLanguageOutput(ModelOutput):
    """Features of images and texts, or None for a missing input.

    Attributes:
        image_features: Shape (images, 1 + patches, width), with the class token first.
        text_features: Shape (texts, length, width), with 0 for padding.
    """

    image_features: Tensor | None = None
    text_features: Tensor | None = None


@dataclass
class MaskedDataOutput(ModelOutput):
    """Logits of masked data modelling, or None for a missing input.

    Attributes:
        image_logits: Shape (images, patches, codes).
        logits: Shape (texts, length, vocabulary).
    """

    image_logits: Tensor | None = None
    logits: Tensor | None = None


class MagnetoVisionLanguagePreTrainedModel(MagnetoPreTrainedModel):
    """Base class of models with a `VisionLanguageEncoder`."""

    config_class = MagnetoVisionLanguageConfig
    hidden_states_advice: ClassVar = "call features(...) of the MultiwayEncoder in model.core"
    main_input_name = "pixel_values"

    def read(
        self,
        pixel_values: Tensor | None,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        paired: bool = True,
    ) -> tuple[Tensor, Samples, Tensor]:
        """Return the images, the packed samples, and the mask of tokens.

        With several images per text, `pixel_values` have shape (texts, images per text, channels,
        height, width). If `paired` is set, the number of texts must equal the number of images or
        of groups of images.
        """
        config, images = self.core.config, pixel_values
        if input_ids is None:
            input_ids = torch.zeros(0, 0, dtype=torch.long)
            if images is None:
                raise ValueError("give pixel_values, input_ids, or both")
        mask = as_mask(attention_mask, tuple(input_ids.shape))
        mask = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask
        rows = zip(input_ids.cpu().numpy(), mask.cpu().numpy(), strict=True)
        texts = [tokens[kept].astype(np.int64) for tokens, kept in rows]
        if images is None:
            # Not on the weights' device, because weights may be offloaded.
            shape = (0, config.channels, config.image_size, config.image_size)
            images = torch.zeros(shape, device=input_ids.device)
        each, count = images.shape[1] if images.ndim == 5 else 1, len(images)
        images = (images.flatten(0, 1) if images.ndim == 5 else images).to(self.dtype)
        if paired and pixel_values is not None and texts:
            self._check_pairs(count, texts)
            repeated = [text for text in texts for _ in range(each)]
            samples = join_samples(config.image_tokens, paired=repeated)
        else:
            samples = join_samples(config.image_tokens, images=count, alone=texts)
        return images, samples.to(images.device), mask

    def _check_pairs(self, images: int, texts: list[np.ndarray]) -> None:
        if images != len(texts):
            raise ValueError(
                f"pixel_values has batch size {images}, but input_ids has batch size {len(texts)}: "
                "the two must be equal"
            )
        token = getattr(self.config, "mask_token_id", None)
        reads_mask = token is not None and self.core.config.ends_in_mask
        if reads_mask and not all(len(text) > 1 and text[-2] == token for text in texts):
            raise ValueError(
                f"each text must have the mask token, {token}, before its end token. The "
                "exported processor adds the mask token."
            )

    def encode(
        self,
        encoder: VisionLanguageEncoder,
        pixel_values: Tensor | None,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the features of images and texts, as in `VisionLanguageOutput`."""
        images, samples, mask = self.read(pixel_values, input_ids, attention_mask)
        vision, language = encoder(images, samples, hidden)
        return (
            None if pixel_values is None
            else vision.unflatten(0, (-1, encoder.config.image_tokens)),
            None if input_ids is None else padded(language, mask),
        )  # fmt: skip


def padded(features: Tensor, mask: Tensor) -> Tensor:
    """Unpack features of tokens to shape (texts, length, width), with 0 for padding."""
    unpacked = features.new_zeros(*mask.shape, features.shape[-1])
    unpacked[mask] = features
    return unpacked


class MagnetoVisionLanguageModel(MagnetoVisionLanguagePreTrainedModel):
    """`VisionLanguageEncoder` for transformers."""

    core_class = VisionLanguageEncoder

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> VisionLanguageOutput:
        """Return the features of images, of texts, or of image-text pairs."""
        self.check_arguments(others)
        found = self.encode(self.core, pixel_values, input_ids, attention_mask)
        return VisionLanguageOutput(*found)


class MagnetoForMaskedDataModelling(MagnetoVisionLanguagePreTrainedModel):
    """`MaskedDataModel` for transformers."""

    config_class = MagnetoMaskedDataConfig
    core_class = MaskedDataModel

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        **others: Any,
    ) -> MaskedDataOutput:
        """Return the logits of all patches and of all tokens.

        In `input_ids`, the mask token replaces each masked token. `bool_masked_pos` of shape
        (images, patches) is True for masked patches.
        """
        self.check_arguments(others)
        hidden = None if bool_masked_pos is None else bool_masked_pos.bool()
        vision, language = self.encode(
            self.core.encoder, pixel_values, input_ids, attention_mask, hidden
        )
        return MaskedDataOutput(
            None if vision is None else self.core.patch_head(vision[:, 1:]),
            None if language is None else self.core.word_head(language),
        )


class MagnetoForVisualQuestionAnswering(MagnetoVisionLanguagePreTrainedModel):
    """`QuestionAnswerer` for transformers.

    `config.id2label` contains the possible answers.
    """

    config_class = MagnetoQuestionAnsweringConfig
    core_class = QuestionAnswerer
    head_name = "core.head"

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
        """Return logits (questions, answers), and the loss if there are labels.

        The sigmoid of a logit is an answer's probability. `labels` are soft targets of shape
        (questions, answers). The loss is the binary cross-entropy, summed over answers and averaged
        over questions. If `num_items_in_batch` is given, the average is over the questions of all
        micro-batches. Trainer sets `num_items_in_batch` to the number of entries in the `labels`
        of all micro-batches.
        """
        self.check_arguments(others)
        images, samples, _ = self.read(pixel_values, input_ids, attention_mask)
        logits = self.core(images, samples)
        loss = None
        if labels is not None:
            total = F.binary_cross_entropy_with_logits(
                logits.float(), labels.float(), reduction="sum"
            )
            loss = mean_loss(total * labels.shape[1], labels.numel(), num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


class MagnetoForVisualReasoning(MagnetoVisionLanguagePreTrainedModel):
    """`VisualReasoner` for transformers."""

    config_class = MagnetoVisualReasoningConfig
    core_class = VisualReasoner

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
        """Return logits of the classes false and true, and the loss of `classification_loss`.

        `pixel_values` have shape (statements, 2, channels, height, width). `labels` of shape
        (statements,) are 1 for true statements.
        """
        self.check_arguments(others)
        if pixel_values.ndim != 5 or pixel_values.shape[1] != IMAGES:
            raise ValueError(f"the shape of pixel_values must be (statements, {IMAGES}, channels, "
                             f"height, width), not {tuple(pixel_values.shape)}")  # fmt: skip
        images, samples, _ = self.read(pixel_values, input_ids, attention_mask)
        logits = self.core(images, samples)
        loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


class MagnetoForImageTextRetrieval(MagnetoVisionLanguagePreTrainedModel):
    """`ImageTextRetriever` for transformers, with CLIP's interface."""

    config_class = MagnetoImageTextRetrievalConfig
    core_class = ImageTextRetriever

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        **others: Any,
    ) -> CLIPOutput:
        """Return the embeddings of images, of texts, or of both.

        `return_loss` needs as many images as texts.
        """
        self.check_arguments(others)
        images, samples, _ = self.read(pixel_values, input_ids, attention_mask, paired=False)
        image, text, scale = self.core(images, samples)
        if pixel_values is None or input_ids is None:
            return CLIPOutput(
                image_embeds=None if pixel_values is None else image,
                text_embeds=None if input_ids is None else text,
            )  # type: ignore[arg-type]
        logits = scale * image @ text.T
        loss = contrastive_losses(image, text, scale).mean() if return_loss else None
        return CLIPOutput(loss, logits, logits.T, text, image)  # type: ignore[arg-type]


class MagnetoForImageCaptioning(MagnetoVisionLanguagePreTrainedModel):
    """`ImageCaptioner` for transformers."""

    config_class = MagnetoImageCaptioningConfig
    core_class = ImageCaptioner

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Return the logits of all positions.

        Attention among tokens is causal. The positions to predict contain mask tokens.
        """
        self.check_arguments(others)
        images, samples, mask = self.read(pixel_values, input_ids, attention_mask)
        packing = left_to_right(samples.packing, self.core.config.image_tokens)
        predicted = torch.arange(len(samples.token_ids), device=images.device)
        logits = self.core(images, replace(samples, packing=packing), predicted)
        return SequenceClassifierOutput(logits=padded(logits, mask))  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(
        self, pixel_values: Tensor, num_beams: int = 3, length_penalty: float = 0.6
    ) -> Tensor:
        """Return captions by beam search, as padded tokens of shape (images, longest).

        The search divides log-probabilities by length ** length_penalty. The tokenizer's
        `batch_decode` returns the texts.
        """
        names = {"begin": "bos", "end": "eos", "pad": "pad", "mask": "mask"}
        special: Any = SimpleNamespace(
            **{ours: getattr(self.config, f"{name}_token_id", None) for ours, name in names.items()}
        )
        if None in vars(special).values():
            raise ValueError("the configuration needs bos_token_id, eos_token_id, pad_token_id and "
                             "mask_token_id")  # fmt: skip
        writer = CaptionWriter(self.core, self.core.config, special)
        images = pixel_values.to(self.dtype)
        found = writer.search(images, CaptionSearch(beams=num_beams, length_penalty=length_penalty))
        rows = [torch.tensor(tokens, dtype=torch.long) for tokens in found]
        made = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=special.pad)
        return made.to(pixel_values.device)
