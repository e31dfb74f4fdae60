"""Our image classifier, segmentation model and speech recogniser as transformers models."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import (
    BaseModelOutput,
    ImageClassifierOutput,
    SemanticSegmenterOutput,
)
from transformers.utils.generic import can_return_tuple

from magneto.functional.cross_entropy import IGNORED as TRAINERS_IGNORED
from magneto.hf.configuration import (
    MagnetoImageConfig,
    MagnetoSegmentationConfig,
    MagnetoTransducerConfig,
)
from magneto.hf.wrapper import (
    MagnetoPreTrainedModel,
    as_mask,
    classification_loss,
    divided,
    hidden_states,
    like_weights,
)
from magneto.speech.decoding import GreedySearch, Search
from magneto.speech.model import Transducer
from magneto.vision.config import IGNORED
from magneto.vision.models import ImageClassifier, Segmenter, new_head, pixel_logits, resize


class MagnetoForImageClassification(MagnetoPreTrainedModel):
    """An `ImageClassifier` in `self.core`."""

    config_class = MagnetoImageConfig
    core_class = ImageClassifier
    head_name = "core.head"
    main_input_name = "pixel_values"
    new_head = staticmethod(new_head)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> ImageClassifierOutput:
        """Return logits, and with labels the mean loss.

        Args:
            pixel_values: (images, channels, height, width).
            labels: (images,) classes, or numbers: as `config.problem_type` says, see
                `classification_loss`.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            **others: `output_hidden_states`, for example.
        """
        self.refuse(others)
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            logits = self.core(like_weights(self.core, pixel_values))
        loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return ImageClassifierOutput(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )


class MagnetoForSemanticSegmentation(MagnetoPreTrainedModel):
    """A `Segmenter` in `self.core`; it reads images of any size, as `magneto evaluate` does."""

    config_class = MagnetoSegmentationConfig
    core_class = Segmenter
    features_by: ClassVar = "the core has features(images)"
    main_input_name = "pixel_values"

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SemanticSegmenterOutput:
        """Return logits of every pixel, and with labels the mean loss.

        Args:
            pixel_values: (images, channels, height, width); of any size without labels, by windows
                or whole as the configuration's `inference` says; with labels, of `image_size`.
            labels: (images, height, width), 255 or -100 for none.
            num_items_in_batch: Of Trainer, which counts all labels but -100; the summed loss is
                divided by it less what is 255 here, by default by the labelled pixels. So where a
                step is accumulated from several batches, -100 is exact.
            **others: Hidden states are refused.

        Returns:
            Logits (images, num_labels, height, width).

        Raises:
            ValueError: If images with labels are of another size, or if weights are on a disk, and
                images are read as a whole.
        """
        self.refuse(others)
        pixel_values = like_weights(self.core, pixel_values)
        if labels is None:
            if self.training:
                raise ValueError("labels are needed in training; they can't be smoothed by Trainer")
            self._refuse_weights_elsewhere()
            logits = torch.stack(list(pixel_logits(self.core, list(pixel_values))))
            return SemanticSegmenterOutput(logits=logits)  # type: ignore[arg-type]
        side = self.core.config.image_size
        if tuple(pixel_values.shape[2:]) != (side, side):
            raise ValueError(f"images with labels are {side} x {side} pixels, not "
                             f"{' x '.join(map(str, pixel_values.shape[2:]))}")  # fmt: skip
        answers = self.core(pixel_values)
        main, auxiliary = (resize(x.float(), labels.shape[1:]) for x in answers)
        weight = self.core.config.auxiliary_weight
        known = torch.where(labels == TRAINERS_IGNORED, IGNORED, labels.long())
        total = _summed(main, known) + weight * _summed(auxiliary, known)
        number = num_items_in_batch
        if number is not None:
            number = torch.as_tensor(number, device=labels.device) - (labels == IGNORED).sum()
        loss = divided(total, (known != IGNORED).sum(), number)
        return SemanticSegmenterOutput(loss=loss, logits=main)  # type: ignore[arg-type]

    def _refuse_weights_elsewhere(self) -> None:
        elsewhere = any(parameter.is_meta for parameter in self.core.parameters())
        if elsewhere and self.core.config.inference == "whole":
            raise ValueError("inference 'whole' makes a model of each image's size, and needs all "
                             "weights in memory: load them without an offload_folder, or set "
                             "core['inference'] to 'slide'")  # fmt: skip


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


class MagnetoForTransducer(MagnetoPreTrainedModel):
    """A `Transducer` in `self.core`."""

    config_class = MagnetoTransducerConfig
    core_class = Transducer
    main_input_name = "input_features"

    @can_return_tuple
    def forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        """Return the encoder's features, a quarter as many as frames.

        Args:
            input_features: (batch, frames, mel bins).
            attention_mask: (batch, frames), 1 for an utterance's own.
            **others: `output_hidden_states`, and arguments that change no number.
        """
        self.refuse(others)
        lengths = frame_counts(input_features, attention_mask)
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            encoded, _ = self.core.encode(like_weights(self.core, input_features), lengths)
        return BaseModelOutput(
            last_hidden_state=encoded,  # type: ignore[arg-type]
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )

    @torch.no_grad()
    def transcribe(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        search: Search | None = None,
    ) -> list[list[int]]:
        """Return the tokens of each utterance, by default greedily, for `batch_decode`."""
        lengths = frame_counts(input_features, attention_mask)
        encoded, lengths = self.core.encode(like_weights(self.core, input_features), lengths)
        found = (search or GreedySearch())(self.core, encoded, lengths)
        return [[label - 1 for label in best[0].labels] for best in found]


def frame_counts(features: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return how many frames are an utterance's own, (batch,).

    Raises:
        ValueError: If the mask has another shape than (batch, frames).
    """
    mask = as_mask(attention_mask, tuple(features.shape[:2]))
    if mask is None:
        return torch.full((len(features),), features.shape[1], device=features.device)
    return mask.sum(1)
