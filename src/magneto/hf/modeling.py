"""Our language model as a transformers model: AutoModel, generate, pipeline, Trainer.

A thin wrapper: all arithmetic is the core's. `_init_weights` does nothing, since the core is
initialised already, and transformers' own initialisation would erase the placement's gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from magneto.hf.configuration import MagnetoConfig
from magneto.models.language import IGNORED, LanguageModel, cross_entropy


class GrowingView:
    """A preallocated cache of transformers, seen as one that grows: only what is filled."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.past = int(cache.get_seq_length())

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append (batch, heads, length, head width) to a layer; return all that is filled."""
        keys, values = self.cache.update(key, value, layer)
        end = self.past + key.shape[2]
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many positions were filled before this forward pass."""
        return self.past


class MagnetoForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel` in `self.core`."""

    config_class = MagnetoConfig
    base_model_prefix = "core"
    _tied_weights_keys = {"core.head.weight": "core.embedding.table.weight"}  # noqa: RUF012
    _supports_sdpa = True
    supports_gradient_checkpointing = False

    def __init__(self, config: MagnetoConfig, core: LanguageModel | None = None) -> None:
        super().__init__(config)
        self.core = core or LanguageModel(config.language_model_config())
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the core's initialisation alone."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.core.embedding.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table."""
        self.core.embedding.table = value  # type: ignore[assignment]

    def get_output_embeddings(self) -> nn.Module:
        """Return the output projection."""
        return self.core.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection."""
        self.core.head = new_embeddings  # type: ignore[assignment]

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Keep the mask two-dimensional: the core makes what its attention needs."""
        return attention_mask

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and with labels the loss.

        Args:
            input_ids: (batch, length).
            attention_mask: (batch, cached + length), 1 or True for real tokens; padding on either
                side is fine.
            past_key_values: A cache of transformers, dynamic or static.
            labels: (batch, length), as in transformers: shifted here, -100 for none.
            use_cache: Whether to make a cache if none is given.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            logits_to_keep: Compute the logits of so many last positions; 0 for all.
            **others: Arguments that transformers passes to every model; those that change no
                number are ignored.

        Raises:
            ValueError: For embeddings or positions of the caller's own: there is no place for them.
        """
        refuse(others, "inputs_embeds", "position_ids")
        if past_key_values is None and use_cache and labels is None:
            past_key_values = DynamicCache()
        mask = None if attention_mask is None else attention_mask.bool()
        embedded = self.core.embedding(input_ids)
        static = getattr(past_key_values, "is_compileable", False)
        cache = GrowingView(past_key_values) if static else past_key_values
        features = self.core.decoder(embedded, mask, cache=cache)
        keep = 0 if labels is not None else logits_to_keep
        logits = self.core.head(features[:, -keep:])  # -0 keeps all
        loss = None
        if labels is not None:
            shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
            summed = cross_entropy(logits, shifted, nn.Identity(), chunk=0)
            count = summed.count if num_items_in_batch is None else num_items_in_batch
            loss = summed.total / torch.as_tensor(count, device=features.device).clamp(min=1)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)  # type: ignore[arg-type]


def refuse(others: Mapping[str, Any], *names: str) -> None:
    """Raise ValueError if one of these arguments is given."""
    for name in names:
        if others.get(name) is not None:
            raise ValueError(f"{name} cannot be given: positions are counted from attention_mask, "
                             "and embeddings are the core's own")  # fmt: skip
