"""Our encoder-decoder as a transformers model: AutoModelForSeq2SeqLM, generate, Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from magneto.functional.cross_entropy import IGNORED
from magneto.hf.configuration import MagnetoSeq2SeqConfig
from magneto.hf.wrapper import (
    MagnetoGenerationModel,
    as_mask,
    growing,
    hidden_states,
    refuse,
    token_loss,
)
from magneto.translation.model import TranslationModel


def source_mask(attention_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    """Return transformers' mask as a boolean one; None while generating, if nothing is padding.

    Attention without a mask is faster. To look costs a wait for the device, so that it is not done
    in training.
    """
    mask = as_mask(attention_mask, shape)
    if mask is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask


def placeable(core: TranslationModel) -> TranslationModel:
    """Make the bias of the logits a fixed parameter; its name among the weights is the same.

    transformers' device maps have no place for a buffer beside modules.
    """
    bias = core.logits_bias
    del core.logits_bias
    core.register_parameter("logits_bias", nn.Parameter(bias, requires_grad=False))
    return core


@contextmanager
def own_weights(module: nn.Module) -> Iterator[None]:
    """Have a module's own weights at hand where a disk holds them until its `forward` is called."""
    if not hasattr(module, "_hf_hook"):
        yield
        return
    from accelerate.utils import align_module_device

    with align_module_device(module):
        yield


class SourceEncoder(nn.Module):
    """What reads the source, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, core: TranslationModel) -> None:
        super().__init__()
        self.core = core

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        """Encode (batch, source length) tokens."""
        refuse(self.core, others)
        encoder = self.core.transformer.encoder
        with hidden_states(encoder, bool(others.get("output_hidden_states"))) as states:
            mask = source_mask(attention_mask, (len(input_ids), input_ids.shape[1]))
            features = self.core.encode(input_ids, mask)
        return BaseModelOutput(
            last_hidden_state=features,  # type: ignore[arg-type]
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )


class MagnetoForSeq2SeqLM(MagnetoGenerationModel):
    """A `TranslationModel` in `self.core`."""

    config_class = MagnetoSeq2SeqConfig
    core_class = TranslationModel

    def __init__(self, config: MagnetoSeq2SeqConfig, model: TranslationModel | None = None) -> None:
        """Wrap a model of ours, by default a new one."""
        super().__init__(config, model or placeable(TranslationModel(config.core_config())))
        # Otherwise transformers breaks off after 20 tokens.
        self.generation_config.max_length = self.core.config.max_length

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection, and fit the bias of the logits to it."""
        super().set_output_embeddings(new_embeddings)
        bias, size = self.core.logits_bias, int(new_embeddings.weight.shape[0])  # type: ignore[index, union-attr]
        bias.data = nn.functional.pad(bias.data, (0, max(size - len(bias), 0)))[:size]

    def get_encoder(self, modality: str | None = None) -> SourceEncoder:
        """Return what reads the source."""
        return SourceEncoder(self.core)

    @staticmethod
    def _reorder_cache(past_key_values: Any, beam_idx: Tensor) -> Any:
        """Reorder what was written; all beams of a sentence read the same source."""
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return what the decoder reads to predict labels (batch, length): one place later.

        Raises:
            ValueError: If the configuration has no `decoder_start_token_id`.
        """
        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None:
            raise ValueError("labels need decoder_start_token_id in the model's configuration")
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=start)
        return shifted.masked_fill(shifted == IGNORED, start if padding is None else padding)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits, and with labels the loss.

        Args:
            input_ids: (batch, source length); not needed with `encoder_outputs`.
            attention_mask: (batch, source length), 1 or True for real tokens.
            decoder_input_ids: (batch, target length); by default the labels, one place later.
            decoder_attention_mask: (batch, cached + target length).
            encoder_outputs: What `get_encoder()` returned.
            past_key_values: An `EncoderDecoderCache` of transformers.
            labels: (batch, target length), not shifted, -100 for none.
            use_cache: Whether to make a cache if none is given.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            **others: `output_hidden_states`, and arguments that change no number.

        Raises:
            ValueError: If there is nothing to read, or for an argument without a place here.
        """
        refuse(self.core, others)
        target = self._target(decoder_input_ids, labels)
        wanted = self.wants_hidden_states(others)
        if encoder_outputs is None:
            encoder_outputs = self._encoded(input_ids, attention_mask, wanted)
        if past_key_values is None and use_cache and labels is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        memory = encoder_outputs[0]
        cache = growing(past_key_values)
        past = 0 if cache is None else cache.self_attention_cache.get_seq_length()
        masks = (
            as_mask(decoder_attention_mask, (len(target), past + target.shape[1])),
            source_mask(attention_mask, (len(memory), memory.shape[1])),
        )
        decoder = self.core.transformer.decoder
        with own_weights(self.core), hidden_states(decoder, wanted) as states:
            logits = self.core.decode(target, memory, *masks, cache)
        return Seq2SeqLMOutput(
            loss=self._loss(logits, labels, num_items_in_batch),  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            past_key_values=past_key_values,
            decoder_hidden_states=tuple(states) or None,  # type: ignore[arg-type]
            encoder_last_hidden_state=memory,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
        )

    def _target(self, decoder_input_ids: Tensor | None, labels: Tensor | None) -> Tensor:
        if decoder_input_ids is not None:
            return decoder_input_ids
        if labels is None:
            raise ValueError(
                "give decoder_input_ids, or labels; Trainer's label smoothing needs both: let "
                "DataCollatorForSeq2Seq(tokenizer, model=model) put batches together"
            )
        return self.prepare_decoder_input_ids_from_labels(labels)

    def _encoded(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, wanted: bool
    ) -> BaseModelOutput:
        if input_ids is None:
            raise ValueError("give input_ids, or encoder_outputs")
        return self.get_encoder()(input_ids, attention_mask, output_hidden_states=wanted)

    def _loss(
        self, logits: Tensor, labels: Tensor | None, number: Tensor | int | None
    ) -> torch.Tensor | None:
        if labels is None:
            return None
        return token_loss(logits, labels, number)
