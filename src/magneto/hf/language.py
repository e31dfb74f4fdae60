"""Our language model, text encoder and translation model as transformers models.

Arguments are called as transformers calls them. `input_ids` are (batch, length), and
`attention_mask` is 1 or True for real tokens; padding may stand on either side. `labels` are -100
where there are none; the summed loss is divided by `num_items_in_batch`, which Trainer gives, by
default by the labels' number. Of `others`, `output_hidden_states` is heeded, those that change no
number are ignored, and the rest are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from magneto.functional.cross_entropy import IGNORED
from magneto.hf.configuration import MagnetoConfig, MagnetoEncoderConfig, MagnetoSeq2SeqConfig
from magneto.hf.wrapper import (
    MagnetoGenerationModel,
    MagnetoTextModel,
    as_mask,
    classification_loss,
    growing,
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


class MagnetoForCausalLM(MagnetoGenerationModel):
    """A `LanguageModel` in `self.core`."""

    core_class = LanguageModel

    def __init__(self, config: MagnetoConfig, model: nn.Module | None = None) -> None:
        """Wrap a model of ours, by default a new one."""
        # With label smoothing, Trainer shifts the labels of models in this table alone, by name;
        # all others it would train, silently, to repeat their input.
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(config.model_type, "MagnetoForCausalLM")
        super().__init__(config, model)

    def _get_name(self) -> str:
        """Return the name that stands in that table, for classes made of this one (FSDP's) too."""
        return "MagnetoForCausalLM"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and with labels the loss.

        Args:
            input_ids: (batch, length).
            attention_mask: (batch, cached + length). Or (batch, length, cached + length): who may
                attend to whom; positions count from the beginning of each document in it.
            past_key_values: A cache of transformers, dynamic or static.
            labels: (batch, length), shifted here, as in transformers.
            use_cache: Whether to make a cache if none is given.
            num_items_in_batch: What the summed loss is divided by.
            logits_to_keep: Compute the logits of so many last positions, or of those whose numbers
                are given; 0 for all. With labels, all are computed.
            inputs_embeds: (batch, length, width), instead of `input_ids`: vectors as the embedding
                table has them, `embedding_scale` not applied.
            **others: `shift_labels`, (batch, length), labels that are shifted already, before
                `labels`; `position_ids`, (batch or 1, length), see `places`.

        Raises:
            ValueError: If there is nothing to read, or for an argument without a place here.
        """
        # With parameters of these names, Trainer or `generate` would give them with every batch.
        shift_labels = others.pop("shift_labels", None)
        position_ids = others.pop("position_ids", None)
        self.refuse(others)
        if past_key_values is None and use_cache and labels is None:
            past_key_values = DynamicCache()
        cache = growing(past_key_values)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        if inputs_embeds is None:
            embedded = self.core.embedding(input_ids)
        else:
            embedded = self.core.embedding.scaled(inputs_embeds)
        batch, length, _ = embedded.shape
        keys = length + (0 if cache is None else cache.get_seq_length())
        mask = as_mask(attention_mask, (batch, keys), (batch, length, keys))
        mask, positions = self.places(position_ids, mask, batch, length, keys)
        with hidden_states(self.core.decoder, self.wants_hidden_states(others)) as states:
            features = self.core.decoder(embedded, mask, cache=cache, positions=positions)
        if labels is not None and shift_labels is None:
            shift_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        keep = logits_to_keep if shift_labels is None else 0
        # -0 keeps all
        kept = features[:, slice(-keep, None) if isinstance(keep, int) else keep]
        logits = self.core.logits(kept)
        loss = token_loss(logits, shift_labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )

    def places(
        self, position_ids: Tensor | None, mask: Tensor | None, batch: int, length: int, keys: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the mask and the positions that `position_ids` stand for.

        Without a cache, several documents may be packed in a row, and each sees itself alone.
        Without a mask one begins where positions do not go on by one, as in transformers; beside a
        mask of padding, where they are not above those of the real token before.

        Raises:
            ValueError: If the positions have another shape; or if there is a mask of one document
                or a cache, and the model tells distances, which are counted in places.
        """
        if position_ids is None:
            return mask, None
        if tuple(position_ids.shape) not in ((batch, length), (1, length)):
            raise ValueError(f"position_ids is {tuple(position_ids.shape)}, not {(batch, length)}")
        relative = self.core.config.positions in RELATIVE_POSITIONS
        if keys == length and mask is None:
            goes_on = position_ids[:, 1:] == position_ids[:, :-1] + 1
            begins = nn.functional.pad(~goes_on, (1, 0)).expand(batch, length)
            return same_document(begins), position_ids
        if keys == length and mask is not None and mask.ndim == 2:
            begins = goes_back(position_ids.expand(batch, length), mask)
            if not relative or bool(begins.any()):
                return same_document(begins) & mask[:, None], position_ids
        if relative:
            raise ValueError(f"position_ids cannot be given beside attention_mask or a cache: "
                             f"{self.core.config.positions} positions count places")  # fmt: skip
        return mask, position_ids


def goes_back(positions: Tensor, mask: Tensor) -> Tensor:
    """Return where a real token's position is not above that of the real token before it."""
    places = torch.arange(positions.shape[1], device=positions.device)
    last = torch.where(mask, places, -1).cummax(1).values
    before = nn.functional.pad(last[:, :-1], (1, 0), value=-1)
    return mask & (before >= 0) & (positions <= positions.gather(1, before.clamp(min=0)))


def same_document(begins: Tensor) -> Tensor:
    """Return which tokens are of one document, (batch, length, length), from where each begins."""
    document = begins.cumsum(1)
    return document[:, :, None] == document[:, None]


class MagnetoEncoderPreTrainedModel(MagnetoTextModel):
    """A `TextEncoder` in `self.core`, maybe with a head beside it.

    Its subclasses read one another's directories; so heads of two kinds have two names.
    """

    config_class = MagnetoEncoderConfig

    def take(self, model: Any) -> None:
        """Make the model's encoder and its head parts of this one."""
        self.core = model.text_encoder if self.head_name else model
        if self.head_name:
            self.add_module(self.head_name, model.head)

    def unwrap(self) -> nn.Module:
        """Return the model of ours, in evaluation mode; the weights are shared."""
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
        """Return features (batch, length, width), and hidden states if asked for."""
        self.refuse(others)
        batch, length = input_ids.shape
        mask = as_mask(attention_mask, (batch, length), (batch, length, length))
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            features = self.core(input_ids, mask, token_type_ids)
        return BaseModelOutput(
            last_hidden_state=features,
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )


class MagnetoEncoderModel(MagnetoEncoderPreTrainedModel):
    """The text encoder alone: `AutoModel`, `pipeline("feature-extraction")`."""

    core_class = TextEncoder

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutput:
        """Return features of (batch, length) tokens; see `MagnetoForMaskedLM.forward`."""
        return self.encode(input_ids, attention_mask, token_type_ids, others)


class MagnetoForMaskedLM(MagnetoEncoderPreTrainedModel):
    """A `MaskedLanguageModel`: its text encoder in `self.core`, its head in `self.head`."""

    _tied_weights_keys = {"head.vocabulary.weight": "core.embedding.table.weight"}  # noqa: RUF012

    core_class = MaskedLanguageModel
    head_name = "head"
    head: MaskedLanguageHead

    @staticmethod
    def new_head(config: Any) -> nn.Module:
        """Draw a head."""
        return MaskedLanguageHead(config, config.vocab_size)

    def get_output_embeddings(self) -> nn.Module:
        """Return the output projection."""
        return self.head.vocabulary

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection."""
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
        """Return the logits of every place, and with labels the loss.

        `token_type_ids` are all 0 if not given.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, others)
        logits = self.head(encoded.last_hidden_state)
        loss = token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class MagnetoForSequenceClassification(MagnetoEncoderPreTrainedModel):
    """A `TextClassifier`: its text encoder in `self.core`, its head in `self.classifier`.

    It also loads a directory without such a head, a masked language model's: the head is then new.
    """

    core_class = TextClassifier
    head_name = "classifier"
    classifier: ClassificationHead

    @staticmethod
    def new_head(config: Any) -> nn.Module:
        """Draw a head."""
        return ClassificationHead(config.width, config.classes, config.head_dropout, config.pooling)

    def own_config(self) -> Any:
        """Return the configuration of the model of ours."""
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
        """Return one row of logits per text, and with labels the mean loss.

        `labels` are (batch,) classes, or numbers: as `config.problem_type` says, see
        `classification_loss`.
        """
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

    def __init__(self, model: MagnetoForSeq2SeqLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        """Encode (batch, source length) tokens."""
        self.model.refuse(others)
        core = self.model.core
        wanted = bool(others.get("output_hidden_states"))
        with hidden_states(core.transformer.encoder, wanted) as states:
            features = core.encode(input_ids, source_mask(attention_mask, tuple(input_ids.shape)))
        return BaseModelOutput(
            last_hidden_state=features,
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )


class MagnetoForSeq2SeqLM(MagnetoGenerationModel):
    """A `TranslationModel` in `self.core`."""

    config_class = MagnetoSeq2SeqConfig
    core_class = TranslationModel

    def __init__(self, config: MagnetoConfig, model: nn.Module | None = None) -> None:
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
        return SourceEncoder(self)

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
            attention_mask: (batch, source length).
            decoder_input_ids: (batch, target length); by default the labels, one place later.
            decoder_attention_mask: (batch, cached + target length).
            encoder_outputs: What `get_encoder()` returned.
            past_key_values: An `EncoderDecoderCache` of transformers.
            labels: (batch, target length), not shifted.
            use_cache: Whether to make a cache if none is given.
            num_items_in_batch: What the summed loss is divided by.
            **others: `output_hidden_states`, for example.

        Raises:
            ValueError: If there is nothing to read, or for an argument without a place here.
        """
        self.refuse(others)
        wanted, target = self.wants_hidden_states(others), decoder_input_ids
        if target is None and labels is None:
            raise ValueError(
                "give decoder_input_ids, or labels; Trainer's label smoothing needs both: let "
                "DataCollatorForSeq2Seq(tokenizer, model=model) put batches together"
            )
        if target is None:
            target = self.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[arg-type]
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError("give input_ids, or encoder_outputs")
            encoder_outputs = self.get_encoder()(
                input_ids, attention_mask, output_hidden_states=wanted
            )
        if past_key_values is None and use_cache and labels is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        memory, cache = encoder_outputs[0], growing(past_key_values)
        past = 0 if cache is None else cache.self_attention_cache.get_seq_length()
        masks = (
            as_mask(decoder_attention_mask, (len(target), past + target.shape[1])),
            source_mask(attention_mask, tuple(memory.shape[:2])),
        )
        decoder = self.core.transformer.decoder
        with own_weights(self.core), hidden_states(decoder, wanted) as states:
            logits = self.core.decode(target, memory, *masks, cache)
        return Seq2SeqLMOutput(
            loss=token_loss(logits, labels, num_items_in_batch),  # type: ignore[arg-type]
            logits=logits,
            past_key_values=past_key_values,
            decoder_hidden_states=tuple(states) or None,  # type: ignore[arg-type]
            encoder_last_hidden_state=memory,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
        )
