"""Our image classifier and our segmentation model as transformers models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import ImageClassifierOutput, SemanticSegmenterOutput
from transformers.utils.generic import can_return_tuple

from magneto.functional.cross_entropy import IGNORED as TRAINERS_IGNORED
from magneto.hf.configuration import MagnetoImageConfig, MagnetoSegmentationConfig
from magneto.hf.wrapper import (
    MagnetoPreTrainedModel,
    classification_loss,
    divided,
    hidden_states,
    like_weights,
    refuse,
)
from magneto.vision.config import IGNORED
from magneto.vision.encoder import ImageClassifier, new_head
from magneto.vision.segmenter import Segmenter, pixel_logits, resize


class MagnetoForImageClassification(MagnetoPreTrainedModel):
    """An `ImageClassifier` in `self.core`."""

    config_class = MagnetoImageConfig
    core_class = ImageClassifier
    head_name = "core.head"
    main_input_name = "pixel_values"

    def draw_head(self) -> nn.Module:
        """Return a new head."""
        return new_head(self.own_config())

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
            pixel_values: (batch, channels, height, width).
            labels: (batch,) classes, or numbers: as `config.problem_type` says, see
                `classification_loss`.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            **others: `output_hidden_states`, and arguments that change no number.
        """
        refuse(self.core, others)
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            logits = self.core(like_weights(self.core, pixel_values))
        loss = None
        if labels is not None:
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
            pixel_values: (batch, channels, height, width): of any size without labels, by windows
                or whole as the configuration's `inference` says; with labels, of `image_size`.
            labels: (batch, height, width), 255 or -100 for none.
            num_items_in_batch: Of Trainer, which counts all labels but -100; the summed loss is
                divided by it less what is 255 here, by default by the labelled pixels. So where a
                step is accumulated from several batches, -100 is exact.
            **others: Arguments that change no number.

        Returns:
            Logits (batch, num_labels, height, width).

        Raises:
            ValueError: If images with labels are of another size, or hidden states are asked for;
                or if weights are on a disk, and images are read as a whole.
        """
        refuse(self.core, others)
        if self.wants_hidden_states(others):
            raise ValueError("output_hidden_states cannot be given: the core has features(images)")
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
