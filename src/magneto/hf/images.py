"""Our image classifier as a transformers model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from magneto.hf.configuration import MagnetoImageConfig
from magneto.hf.losses import classification_loss
from magneto.hf.wrapper import MagnetoPreTrainedModel, hidden_states, like_weights, refuse
from magneto.vision.classification.model import ImageClassifier, new_head


class MagnetoForImageClassification(MagnetoPreTrainedModel):
    """An `ImageClassifier` in `self.core`."""

    config_class = MagnetoImageConfig
    main_input_name = "pixel_values"

    def __init__(self, config: MagnetoImageConfig, core: ImageClassifier | None = None) -> None:
        super().__init__(config)
        self.core = core or ImageClassifier(config.core_config())
        self.ready()

    def head_module(self) -> nn.Module:
        """Return the head."""
        return self.core.head

    def draw_head(self) -> nn.Module:
        """Return a new head."""
        return new_head(self.config.core_config())

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
