"""Language models, text encoders and translation models for the library transformers.

Arguments are named as in the library transformers. `input_ids` have shape (batch, length).
`attention_mask` is 1 for tokens and 0 for padding. Padding is on the left or on the right. Labels
of -100 are ignored. The loss is summed over labels and divided by `num_items_in_batch`, by default
the number of labels. `others` accepts `output_hidden_states`, arguments named in a method's
docstring, and arguments of transformers that do not change the result. Any other argument raises
ValueError.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from magneto.functional.cross_entropy import IGNORED
from magneto.hf.wrapper import (
    MagnetoConfig,
    MagnetoEncoderConfig,
    MagnetoPreTrainedModel,
    MagnetoSeq2SeqConfig,
    as_mask,
    classification_loss,
    hidden_states,
    token_loss,
)
from magneto.language.models import (
    ClassificationHead,
    LanguageModel,
    MaskedLanguageHead,
    MaskedLanguageModel,
    TextClassifier,
    TextEncoder,
)
from magneto.nn.config import RELATIVE_POSITIONS
from magneto.translation.model import TranslationModel

# peft's prefix tuning and code for older versions give the cache its name before transformers 5.24.
with_old_cache_name = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")


class MagnetoTextModel(MagnetoPreTrainedModel):
    """Base class of models with a token embedding."""

    def get_input_embeddings(self) -> nn.Module:
        return self.core.embedding.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.core.embedding.table = value


class MagnetoGenerationModel(MagnetoTextModel, GenerationMixin):
    """Base class of models that generate text."""

    _tied_weights_keys = {"core.head.weight": "core.embedding.table.weight"}  # noqa: RUF012

    def get_output_embeddings(self) -> nn.Module:
        return self.core.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.core.head = new_embeddings

    def _valid_auto_compile_criteria(
        self, model_kwargs: dict[str, Any], generation_config: Any
    ) -> bool:
        # On a GPU, transformers would compile `generate` for each static cache. Attention reads
        # only the filled part of a cache, so each step would need another CUDA graph.
        if generation_config.compile_config is None:
            return False
        return super()._valid_auto_compile_criteria(  # type: ignore[attr-defined]
            model_kwargs, generation_config
        )

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        return attention_mask


class GrowingView:
    """View of the filled part of a preallocated cache."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.past = int(cache.get_seq_length())

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append keys and values of shape (batch, heads, length, head width)."""
        keys, values = self.cache.update(key, value, layer)
        end = self.past + key.shape[2]
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.past


def growing_cache(cache: Any) -> Any:
    if isinstance(cache, EncoderDecoderCache):  # the cross-attention part is filled once
        return SimpleNamespace(
            self_attention_cache=growing_cache(cache.self_attention_cache),
            cross_attention_cache=cache.cross_attention_cache, is_updated=cache.is_updated,
        )  # fmt: skip
    return GrowingView(cache) if getattr(cache, "is_compileable", False) else cache


class MagnetoForCausalLM(MagnetoGenerationModel):
    """`LanguageModel` for transformers."""

    core_class = LanguageModel

    def __init__(self, config: MagnetoConfig, model: nn.Module | None = None) -> None:
        # With label smoothing, Trainer shifts labels only for models in this table, by name. It
        # would silently train others to repeat their input.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(config.model_type, "MagnetoForCausalLM")
        super().__init__(config, model)

    def _get_name(self) -> str:
        return "MagnetoForCausalLM"  # Trainer needs this name, also of FSDP's subclasses

    @with_old_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and the loss if there are labels.

        `attention_mask` has shape (batch, cached + length). For packed documents, the shape of the
        mask is (batch, length, cached + length). `cache` is transformers'
        `DynamicCache` or `StaticCache`. The model shifts `labels` of shape (batch, length). If the
        caller has shifted the labels already, they are passed as `shift_labels`.

        If `logits_to_keep` is a number N, only the last N positions have logits. If
        `logits_to_keep` is a tensor of positions, only these positions have logits. By default, and
        always with labels, all positions have logits.

        `inputs_embeds` of shape (batch, length, width) replace `input_ids`. The model multiplies
        `inputs_embeds` by `embedding_scale`. `resolve_positions` explains the argument
        `position_ids`.
        """
        # If these were named parameters, Trainer or `generate` would pass them with every batch.
        shift_labels = others.pop("shift_labels", None)
        position_ids = others.pop("position_ids", None)
        self.check_arguments(others)
        if cache is None and use_cache and labels is None:
            cache = DynamicCache()
        filled = growing_cache(cache)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if inputs_embeds is None:
            embedded = self.core.embedding(input_ids)
        else:
            embedded = self.core.embedding.scaled(inputs_embeds)
        batch, length, _ = embedded.shape
        keys = length + (0 if filled is None else filled.get_seq_length())
        mask = as_mask(attention_mask, (batch, keys), (batch, length, keys))
        mask, positions = self.resolve_positions(position_ids, mask, batch, length, keys)
        with hidden_states(self.core.decoder, self.wants_hidden_states(others)) as states:
            features = self.core.decoder(embedded, mask, cache=filled, positions=positions)
        if labels is not None and shift_labels is None:
            shift_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        keep = logits_to_keep if shift_labels is None else 0
        # slice(-0, None) keeps all.
        logits = self.core.head(features[:, slice(-keep, None) if isinstance(keep, int) else keep])
        loss = token_loss(logits, shift_labels, num_items_in_batch)
        return CausalLMOutputWithPast(loss, logits, cache, tuple(states) or None)

    def resolve_positions(
        self, position_ids: Tensor | None, mask: Tensor | None, batch: int, length: int, keys: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Convert `position_ids` to an attention mask and positions.

        Without a cache, a row may contain several documents, which do not attend to each other.
        Without a mask, a new document begins wherever positions do not increase by one. With a
        padding mask, a new document begins wherever positions do not increase; padding is skipped.

        Raises:
            ValueError: If the shape of `position_ids` is wrong.
            ValueError: If the model has relative positions, and `position_ids` are combined with a
                cache or a mask. A padding mask is allowed if a row contains several documents.
        """
        if position_ids is None:
            return mask, None
        if tuple(position_ids.shape) not in ((batch, length), (1, length)):
            raise ValueError(f"the shape of position_ids is {tuple(position_ids.shape)}, but must "
                             f"be {(batch, length)}")  # fmt: skip
        relative = self.core.config.positions in RELATIVE_POSITIONS
        if keys == length and mask is None:
            goes_on = position_ids[:, 1:] == position_ids[:, :-1] + 1
            begins = nn.functional.pad(~goes_on, (1, 0)).expand(batch, length)
            return same_document(begins), position_ids
        if keys == length and mask is not None and mask.ndim == 2:
            begins = position_resets(position_ids.expand(batch, length), mask)
            if not relative or bool(begins.any()):
                return same_document(begins) & mask[:, None], position_ids
        if relative:
            kind = self.core.config.positions
            raise ValueError(f"with {kind} positions, position_ids cannot be combined with "
                             "attention_mask or a cache: omit position_ids")  # fmt: skip
        return mask, position_ids


def position_resets(positions: Tensor, mask: Tensor) -> Tensor:
    columns = torch.arange(positions.shape[1], device=positions.device)
    last = torch.where(mask, columns, -1).cummax(1).values
    before = nn.functional.pad(last[:, :-1], (1, 0), value=-1)
    return mask & (before >= 0) & (positions <= positions.gather(1, before.clamp(min=0)))


def same_document(begins: Tensor) -> Tensor:
    """Return the mask (batch, length, length) of token pairs in the same document."""
    document = begins.cumsum(1)
    return document[:, :, None] == document[:, None]


class MagnetoEncoderPreTrainedModel(MagnetoTextModel):
    """Base class of models with a `TextEncoder` in `self.core`.

    A subclass can load a checkpoint of another subclass. The head is then new, because the heads of
    subclasses have different names.
    """

    config_class = MagnetoEncoderConfig

    def set_core(self, model: Any) -> None:
        self.core = model.text_encoder if self.head_name else model
        if self.head_name:
            self.add_module(self.head_name, model.head)

    def unwrap(self) -> nn.Module:
        if not self.head_name:
            return super().unwrap()
        model = self.core_class(self.own_config())
        model.text_encoder, model.head = self.core, self.get_submodule(self.head_name)
        return model.eval()

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        others: dict[str, Any],
    ) -> BaseModelOutput:
        """Return features (batch, length, width), and hidden states if requested."""
        self.check_arguments(others)
        batch, length = input_ids.shape
        mask = as_mask(attention_mask, (batch, length), (batch, length, length))
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            features = self.core(input_ids, mask, token_type_ids)
        return BaseModelOutput(last_hidden_state=features, hidden_states=tuple(states) or None)


class MagnetoEncoderModel(MagnetoEncoderPreTrainedModel):
    """`TextEncoder` for transformers, loaded by `AutoModel`."""

    core_class = TextEncoder

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutput:
        """Return features of shape (batch, length, width)."""
        return self.encode(input_ids, attention_mask, token_type_ids, others)


class MagnetoForMaskedLM(MagnetoEncoderPreTrainedModel):
    """`MaskedLanguageModel` for transformers."""

    _tied_weights_keys = {"head.vocabulary.weight": "core.embedding.table.weight"}  # noqa: RUF012

    core_class = MaskedLanguageModel
    head_name = "head"
    head: MaskedLanguageHead

    def get_output_embeddings(self) -> nn.Module:
        return self.head.vocabulary

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.head.vocabulary = new_embeddings  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> MaskedLMOutput:
        """Return the logits of all positions, and the loss if there are labels.

        By default, `token_type_ids` are 0.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, others)
        logits = self.head(encoded.last_hidden_state)
        loss = token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class MagnetoForSequenceClassification(MagnetoEncoderPreTrainedModel):
    """`TextClassifier` for transformers.

    Loaded from the directory of a masked language model, the classifier has the encoder's weights
    and a new head.
    """

    core_class = TextClassifier
    head_name = "classifier"
    classifier: ClassificationHead

    def own_config(self) -> Any:
        return self.config.classifier_config()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return logits (batch, num_labels), and the loss of `classification_loss`."""
        encoded = self.encode(input_ids, attention_mask, token_type_ids, others)
        mask = None
        if self.classifier.pooling == "mean":
            mask = as_mask(attention_mask, tuple(input_ids.shape))
        logits = self.classifier(encoded.last_hidden_state, mask)
        loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states
        )


def source_mask(attention_mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    # Attention without a mask is faster. `mask.all()` waits for the device, so training skips it.
    mask = as_mask(attention_mask, shape)
    if mask is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask


def loaded_weights(module: nn.Module) -> AbstractContextManager[None]:
    # Offloaded weights would be loaded only by the module's `forward`.
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)


class SourceEncoder(nn.Module):
    """Encoder of a translation model for transformers' `generate`."""

    main_input_name = "input_ids"

    def __init__(self, model: MagnetoForSeq2SeqLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        """Encode source tokens of shape (batch, length)."""
        self.model.check_arguments(others)
        core = self.model.core
        enabled = bool(others.get("output_hidden_states"))
        with hidden_states(core.transformer.encoder, enabled) as states:
            features = core.encode(input_ids, source_mask(attention_mask, tuple(input_ids.shape)))
        return BaseModelOutput(last_hidden_state=features, hidden_states=tuple(states) or None)


class MagnetoForSeq2SeqLM(MagnetoGenerationModel):
    """`TranslationModel` for transformers."""

    config_class = MagnetoSeq2SeqConfig
    core_class = TranslationModel

    def __init__(self, config: MagnetoConfig, model: nn.Module | None = None) -> None:
        if model is None:
            model = TranslationModel(config.core_config())
            bias = model.logits_bias
            del model.logits_bias  # device maps need a parameter
            model.register_parameter("logits_bias", nn.Parameter(bias, requires_grad=False))
        super().__init__(config, model)
        # transformers' default is 20 tokens.
        self.generation_config.max_length = self.core.config.max_length

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection, and resize the logits' bias."""
        super().set_output_embeddings(new_embeddings)
        bias, size = self.core.logits_bias, int(new_embeddings.weight.shape[0])  # type: ignore[index, union-attr]
        bias.data = nn.functional.pad(bias.data, (0, max(size - len(bias), 0)))[:size]

    def get_encoder(self, modality: str | None = None) -> SourceEncoder:
        """Return the source encoder for `generate`."""
        return SourceEncoder(self)

    @staticmethod
    def _reorder_cache(cache: Any, beam_idx: Tensor) -> Any:
        # The cross-attention cache is equal for all beams of a sentence.
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels of shape (batch, length) by one to the right."""
        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None:
            raise ValueError("labels need decoder_start_token_id in the configuration")
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=start)
        return shifted.masked_fill(shifted == IGNORED, start if padding is None else padding)

    @with_old_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits, and the loss if there are labels.

        `input_ids` and `attention_mask` belong to the source. `encoder_outputs`, computed by the
        encoder of `get_encoder()`, replace `input_ids`. `decoder_input_ids` of shape
        (batch, target length) are by default the shifted labels. `decoder_attention_mask` has shape
        (batch, cached + target length). `cache` is an `EncoderDecoderCache` of transformers. Pass
        `labels` of shape (batch, target length) unshifted.
        """
        self.check_arguments(others)
        enabled, target = self.wants_hidden_states(others), decoder_input_ids
        if target is None:
            if labels is None:
                raise ValueError(
                    "give decoder_input_ids or labels. For Trainer's label smoothing, use "
                    "DataCollatorForSeq2Seq(tokenizer, model=model)."
                )
            target = self.prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError("give input_ids or encoder_outputs")
            encoder_outputs = self.get_encoder()(
                input_ids, attention_mask, output_hidden_states=enabled
            )
        if cache is None and use_cache and labels is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        memory, filled = encoder_outputs[0], growing_cache(cache)
        past = 0 if filled is None else filled.self_attention_cache.get_seq_length()
        masks = (
            as_mask(decoder_attention_mask, (len(target), past + target.shape[1])),
            source_mask(attention_mask, tuple(memory.shape[:2])),
        )
        decoder = self.core.transformer.decoder
        with loaded_weights(self.core), hidden_states(decoder, enabled) as states:
            logits = self.core.decode(target, memory, *masks, filled)
        return Seq2SeqLMOutput(
            loss=token_loss(logits, labels, num_items_in_batch),
            logits=logits,
            cache=cache,
            decoder_hidden_states=tuple(states) or None,
            encoder_last_hidden_state=memory,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
        )
