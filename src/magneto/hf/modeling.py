"""Our language model as a transformers model: AutoModel, generate, pipeline, Trainer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from magneto.functional.cross_entropy import IGNORED
from magneto.hf.cache import growing
from magneto.hf.configuration import MagnetoConfig
from magneto.hf.losses import token_loss
from magneto.hf.wrapper import MagnetoGenerationModel, as_mask, hidden_states, refuse
from magneto.language.model import LanguageModel


class MagnetoForCausalLM(MagnetoGenerationModel):
    """A `LanguageModel` in `self.core`."""

    def __init__(self, config: MagnetoConfig, core: LanguageModel | None = None) -> None:
        super().__init__(config)
        # With label smoothing, Trainer shifts the labels of models in this table alone, by name;
        # all others it would train, silently, to repeat their input.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(config.model_type, "MagnetoForCausalLM")
        self.core = core or LanguageModel(config.core_config())
        self.ready()

    def _get_name(self) -> str:
        """Return the name that stands in that table, for classes made of this one (FSDP's) too."""
        return "MagnetoForCausalLM"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and with labels the loss.

        Args:
            input_ids: (batch, length).
            attention_mask: (batch, cached + length), 1 or True for real tokens; padding on either
                side is fine. Or (batch, length, cached + length): who may attend to whom.
            past_key_values: A cache of transformers, dynamic or static.
            labels: (batch, length), as in transformers: shifted here, -100 for none.
            use_cache: Whether to make a cache if none is given.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            logits_to_keep: Compute the logits of so many last positions, or of those whose numbers
                are given; 0 for all. With labels, all are computed.
            **others: `shift_labels`, (batch, length), labels that are shifted already, before
                `labels`; `output_hidden_states`; and what transformers passes to every model.
                Arguments that change no number are ignored.

        Raises:
            ValueError: For embeddings or positions of the caller's own: there is no place for them.
        """
        # With a parameter of that name, Trainer would want it in every batch.
        shift_labels = others.pop("shift_labels", None)
        refuse(self.core, others)
        if past_key_values is None and use_cache and labels is None:
            past_key_values = DynamicCache()
        cache = growing(past_key_values)
        batch, length = input_ids.shape
        keys = length + (0 if cache is None else cache.get_seq_length())
        mask = as_mask(attention_mask, (batch, keys), (batch, length, keys))
        embedded = self.core.embedding(input_ids)
        with hidden_states(self.core.decoder, self.wants_hidden_states(others)) as states:
            features = self.core.decoder(embedded, mask, cache=cache)
        if labels is not None and shift_labels is None:
            shift_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        keep = logits_to_keep if shift_labels is None else 0
        # -0 keeps all
        logits = self.core.head(features[:, slice(-keep, None) if isinstance(keep, int) else keep])
        loss = None
        if shift_labels is not None:
            loss = token_loss(logits, shift_labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )
