"""Our encoder of images and texts as a transformers model, and what it learns before fine-tuning.

Models take texts padded, as transformers' tokenizers make them, and pack them on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput, can_return_tuple

from magneto.hf.vision_language_configuration import (
    MagnetoMaskedDataConfig,
    MagnetoVisionLanguageConfig,
)
from magneto.hf.wrapper import MagnetoPreTrainedModel, as_mask, like_weights, refuse
from magneto.nn.multiway import MultiwayEncoder
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.modelling.model import MaskedDataModel
from magneto.vision_language.samples import join_samples


@dataclass
class VisionLanguageOutput(ModelOutput):
    """Of an encoder; what was not given is None.

    Attributes:
        image_features: (images, 1 + patches, width), the class token first.
        text_features: (texts, length, width), zeros where there is padding.
    """

    image_features: Tensor | None = None
    text_features: Tensor | None = None


@dataclass
class MaskedDataOutput(ModelOutput):
    """Of pre-training; what was not given is None.

    Attributes:
        image_logits: (images, patches, codes).
        logits: (texts, length, vocabulary).
    """

    image_logits: Tensor | None = None
    logits: Tensor | None = None


class MagnetoVisionLanguagePreTrainedModel(MagnetoPreTrainedModel):
    """A model of ours with a `VisionLanguageEncoder`, in `self.core`."""

    config_class = MagnetoVisionLanguageConfig
    main_input_name = "pixel_values"
    _no_split_modules = ["MultiwayLayer"]  # noqa: RUF012
    core: Any

    def _stacks(self) -> Iterator[Any]:
        return (module for module in self.modules() if isinstance(module, MultiwayEncoder))

    def refuse(self, others: Mapping[str, Any]) -> None:
        """Refuse arguments that would change numbers, and hidden states."""
        refuse(self.core, others)
        if self.wants_hidden_states(others):
            raise ValueError("output_hidden_states cannot be given: the core's transformer has "
                             "features(...)")  # fmt: skip

    def images(self, pixel_values: Tensor | None, input_ids: Tensor | None) -> Tensor:
        """Return images in the type of the weights; none, beside the texts, where none are given.

        Raises:
            ValueError: If neither is given.
        """
        if pixel_values is not None:
            return like_weights(self.core, pixel_values)
        if input_ids is None:
            raise ValueError("give pixel_values, input_ids, or both")
        config = self.core.config
        shape = (0, config.channels, config.image_size, config.image_size)
        # Not where the weights are: some may stay on a disk until they are used.
        return like_weights(self.core, torch.zeros(shape, device=input_ids.device))


def text_mask(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return which tokens are no padding, boolean (texts, length)."""
    mask = as_mask(attention_mask, tuple(input_ids.shape))
    return torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask


def packed_texts(input_ids: Tensor, mask: Tensor) -> list[np.ndarray]:
    """Return each text's tokens without padding, on the CPU."""
    rows = zip(input_ids.cpu().numpy(), mask.cpu().numpy(), strict=True)
    return [tokens[kept].astype(np.int64) for tokens, kept in rows]


def check_masks(model: MagnetoVisionLanguagePreTrainedModel, texts: Sequence[np.ndarray]) -> None:
    """Raise ValueError unless each text has the mask before its end that the head reads.

    Args:
        model: Whose head may read one; nothing is known where its configuration names none.
        texts: Without padding.
    """
    mask = getattr(model.config, "mask_token_id", None)
    if mask is None or not model.core.config.ends_in_mask:
        return
    if not all(len(text) > 1 and text[-2] == mask for text in texts):
        raise ValueError(
            f"the head reads the mask token, {mask}, before each text's end (pooling "
            "mask_token); the processor, where one was exported, puts it there"
        )


def check_pairs(images: Tensor, texts: Sized) -> None:
    """Raise ValueError unless there are as many texts as images, or groups of images."""
    if len(images) != len(texts):
        raise ValueError(f"{len(images)} images with {len(texts)} texts are no pairs")


def padded(features: Tensor, mask: Tensor) -> Tensor:
    """Return features of packed tokens as (texts, length, width), with zeros for padding."""
    made = features.new_zeros(*mask.shape, features.shape[-1])
    made[mask] = features
    return made


def encode(
    model: MagnetoVisionLanguagePreTrainedModel,
    encoder: VisionLanguageEncoder,
    pixel_values: Tensor | None,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    hidden: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Encode images, texts, or pairs where both are given.

    Returns:
        (images, 1 + patches, width) and (texts, length, width); None for what was not given.

    Raises:
        ValueError: If nothing is given, or not as many texts as images.
    """
    tokens = encoder.config.image_tokens
    images = model.images(pixel_values, input_ids)
    mask = None if input_ids is None else text_mask(input_ids, attention_mask)
    texts = [] if input_ids is None or mask is None else packed_texts(input_ids, mask)
    if pixel_values is None:
        samples = join_samples(tokens, alone=texts)
    elif input_ids is None:
        samples = join_samples(tokens, images=len(images))
    else:
        check_pairs(images, texts)
        samples = join_samples(tokens, paired=texts)
    samples = samples.to(images.device)
    vision, language = encoder(
        images, samples.token_ids, samples.token_positions, samples.packing, hidden
    )
    return (
        None if pixel_values is None else vision.unflatten(0, (-1, tokens)),
        None if mask is None else padded(language, mask),
    )


class MagnetoVisionLanguageModel(MagnetoVisionLanguagePreTrainedModel):
    """A `VisionLanguageEncoder` without a head."""

    def __init__(
        self, config: MagnetoVisionLanguageConfig, core: VisionLanguageEncoder | None = None
    ) -> None:
        super().__init__(config)
        self.core = core or VisionLanguageEncoder(config.core_config())
        self.ready()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> VisionLanguageOutput:
        """Return features of images, of texts, or of pairs where both are given.

        Args:
            pixel_values: (images, channels, height, width).
            input_ids: (texts, length).
            attention_mask: (texts, length), 1 for a text's own tokens.
            **others: Arguments that change no number.
        """
        self.refuse(others)
        found = encode(self, self.core, pixel_values, input_ids, attention_mask)
        return VisionLanguageOutput(*found)


class MagnetoForMaskedDataModelling(MagnetoVisionLanguagePreTrainedModel):
    """A `MaskedDataModel`."""

    config_class = MagnetoMaskedDataConfig

    def __init__(
        self, config: MagnetoMaskedDataConfig, core: MaskedDataModel | None = None
    ) -> None:
        super().__init__(config)
        self.core = core or MaskedDataModel(config.core_config())
        self.ready()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        **others: Any,
    ) -> MaskedDataOutput:
        """Return logits of every patch and of every token, hidden or not.

        Args:
            pixel_values: (images, channels, height, width).
            input_ids: (texts, length), with the mask token where a word is hidden.
            attention_mask: (texts, length), 1 for a text's own tokens.
            bool_masked_pos: (images, patches), True where a patch is hidden.
            **others: Arguments that change no number.
        """
        self.refuse(others)
        hidden = None if bool_masked_pos is None else bool_masked_pos.bool()
        vision, language = encode(
            self, self.core.encoder, pixel_values, input_ids, attention_mask, hidden
        )
        return MaskedDataOutput(
            None if vision is None else self.core.patch_head(vision[:, 1:]),
            None if language is None else self.core.word_head(language),
        )
