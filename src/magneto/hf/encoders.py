"""Our text encoder as transformers models: features, masked language model, classification."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from magneto.hf.configuration import MagnetoEncoderConfig
from magneto.hf.losses import classification_loss, token_loss
from magneto.hf.wrapper import MagnetoPreTrainedModel, as_mask, hidden_states, refuse
from magneto.language.classification.model import ClassificationHead, TextClassifier
from magneto.language.masked_language import MaskedLanguageHead, MaskedLanguageModel
from magneto.language.text_encoder import TextEncoder


class MagnetoEncoderPreTrainedModel(MagnetoPreTrainedModel):
    """A `TextEncoder` in `self.core`. Its subclasses read one another's directories."""

    config_class = MagnetoEncoderConfig
    core: TextEncoder

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.core.embedding.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table."""
        self.core.embedding.table = value  # type: ignore[assignment]

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        others: dict[str, Any],
    ) -> BaseModelOutput:
        """Return features (batch, length, width), and hidden states if asked for."""
        refuse(self.core, others)
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

    def __init__(self, config: MagnetoEncoderConfig, core: TextEncoder | None = None) -> None:
        super().__init__(config)
        self.core = core or TextEncoder(config.core_config())
        self.ready()

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

    def __init__(
        self, config: MagnetoEncoderConfig, model: MaskedLanguageModel | None = None
    ) -> None:
        super().__init__(config)
        model = model or MaskedLanguageModel(config.core_config())
        self.core: TextEncoder = model.text_encoder
        self.head: MaskedLanguageHead = model.head
        self.ready()

    def head_module(self) -> nn.Module:
        """Return the head."""
        return self.head

    def draw_head(self) -> nn.Module:
        """Return a new head."""
        config = self.config.core_config()
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

        Args:
            input_ids: (batch, length), some hidden.
            attention_mask: (batch, length), 1 or True for real tokens.
            token_type_ids: (batch, length), all 0 if not given.
            labels: (batch, length), -100 where nothing is to be guessed.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            **others: `output_hidden_states`, and arguments that change no number.

        Raises:
            ValueError: For embeddings or positions of the caller's own: there is no place for them.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, others)
        logits = self.head(encoded.last_hidden_state)
        loss = None
        if labels is not None:
            loss = token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class MagnetoForSequenceClassification(MagnetoEncoderPreTrainedModel):
    """A `TextClassifier`: its text encoder in `self.core`, its head in `self.classifier`.

    It also loads a directory without such a head, a masked language model's: the head is then new.
    """

    def __init__(self, config: MagnetoEncoderConfig, model: TextClassifier | None = None) -> None:
        super().__init__(config)
        if model is None:
            self.core = TextEncoder(config.core_config())
            self.classifier: ClassificationHead = self.draw_head()
        else:
            self.core, self.classifier = model.text_encoder, model.head
        self.ready()

    def head_module(self) -> nn.Module:
        """Return the head."""
        return self.classifier

    def draw_head(self) -> ClassificationHead:
        """Return a new head."""
        config: Any = self.config
        return ClassificationHead(config.hidden_size, config.num_labels, config.classifier_dropout)

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

        Args:
            input_ids: (batch, length).
            attention_mask: (batch, length), 1 or True for real tokens.
            token_type_ids: (batch, length), all 0 if not given.
            labels: (batch,) classes, or numbers: as `config.problem_type` says, see
                `classification_loss`.
            num_items_in_batch: What the summed loss is divided by; by default the labels' number.
            **others: `output_hidden_states`, and arguments that change no number.

        Raises:
            ValueError: For embeddings or positions of the caller's own: there is no place for them.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, others)
        logits = self.classifier(encoded.last_hidden_state)
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states
        )
