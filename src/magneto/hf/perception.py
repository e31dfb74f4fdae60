"""Our models of images, sounds, and images with texts as transformers models.

Arguments are called as transformers calls them: `pixel_values` are (images, channels, height,
width), `input_ids` (texts, length), and `attention_mask`, of the same shape, is 1 for a text's own
tokens. Of `others`, `output_hidden_states` is heeded where there are such, those that change no
number are ignored, and the rest are refused. Texts beside images are taken padded, as transformers'
tokenizers make them, and packed on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import (
    BaseModelOutput,
    ImageClassifierOutput,
    SemanticSegmenterOutput,
    SequenceClassifierOutput,
)
from transformers.models.clip.modeling_clip import CLIPOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from magneto.functional.cross_entropy import IGNORED as TRAINERS_IGNORED
from magneto.hf.configuration import (
    MagnetoImageCaptioningConfig,
    MagnetoImageConfig,
    MagnetoImageTextRetrievalConfig,
    MagnetoMaskedDataConfig,
    MagnetoQuestionAnsweringConfig,
    MagnetoSegmentationConfig,
    MagnetoTransducerConfig,
    MagnetoVisionLanguageConfig,
    MagnetoVisualReasoningConfig,
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
from magneto.vision_language.caption_decoding import CaptionSearch, CaptionWriter, left_to_right
from magneto.vision_language.config import IMAGES
from magneto.vision_language.model import (
    AnswerHead,
    ImageCaptioner,
    ImageTextRetriever,
    MaskedDataModel,
    QuestionAnswerer,
    VisionLanguageEncoder,
    VisualReasoner,
    contrastive_losses,
)
from magneto.vision_language.samples import Samples, join_samples


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
    features_by: ClassVar = "the core's transformer has features(...)"
    main_input_name = "pixel_values"

    def read(
        self,
        pixel_values: Tensor | None,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        paired: bool = True,
    ) -> tuple[Tensor, Samples, Tensor]:
        """Return images in the type of the weights, samples, and where tokens are.

        Images may also be (texts, images of each, channels, height, width). Where both are given,
        they are joined to texts if `paired`.

        Raises:
            ValueError: If neither is given; of pairs, if there are not as many of both, or a text
                lacks the mask that the head reads.
        """
        config, images = self.core.config, pixel_values
        if input_ids is None:
            input_ids = torch.zeros(0, 0, dtype=torch.long)
            if images is None:
                raise ValueError("give pixel_values, input_ids, or both")
        mask = as_mask(attention_mask, tuple(input_ids.shape))
        mask = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask
        rows = zip(input_ids.cpu().numpy(), mask.cpu().numpy(), strict=True)
        texts = [tokens[kept].astype(np.int64) for tokens, kept in rows]
        if images is None:
            # Not where the weights are: some may stay on a disk until they are used.
            shape = (0, config.channels, config.image_size, config.image_size)
            images = torch.zeros(shape, device=input_ids.device)
        each, count = images.shape[1] if images.ndim == 5 else 1, len(images)
        images = like_weights(self.core, images.flatten(0, 1) if images.ndim == 5 else images)
        if paired and pixel_values is not None and texts:
            self._check_pairs(count, texts)
            whole = [text for text in texts for _ in range(each)]
            samples = join_samples(config.image_tokens, paired=whole)
        else:
            samples = join_samples(config.image_tokens, images=count, alone=texts)
        return images, samples.to(images.device), mask

    def _check_pairs(self, images: int, texts: list[np.ndarray]) -> None:
        if images != len(texts):
            raise ValueError(f"{images} images with {len(texts)} texts are no pairs")
        token = getattr(self.config, "mask_token_id", None)
        reads_mask = token is not None and self.core.config.ends_in_mask
        if reads_mask and not all(len(text) > 1 and text[-2] == token for text in texts):
            raise ValueError(
                f"the head reads the mask token, {token}, before each text's end (pooling "
                "mask_token); the processor, where one was exported, puts it there"
            )

    def encode(
        self,
        encoder: VisionLanguageEncoder,
        pixel_values: Tensor | None,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Encode images, texts, or pairs where both are given.

        Returns:
            (images, 1 + patches, width) and (texts, length, width); None for what was not given.
        """
        images, samples, mask = self.read(pixel_values, input_ids, attention_mask)
        vision, language = encoder(images, samples, hidden)
        return (
            None if pixel_values is None
            else vision.unflatten(0, (-1, encoder.config.image_tokens)),
            None if input_ids is None else padded(language, mask),
        )  # fmt: skip


def padded(features: Tensor, mask: Tensor) -> Tensor:
    """Return features of packed tokens as (texts, length, width), with zeros for padding."""
    made = features.new_zeros(*mask.shape, features.shape[-1])
    made[mask] = features
    return made


class MagnetoVisionLanguageModel(MagnetoVisionLanguagePreTrainedModel):
    """A `VisionLanguageEncoder` without a head."""

    core_class = VisionLanguageEncoder

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> VisionLanguageOutput:
        """Return features of images, of texts, or of pairs where both are given."""
        self.refuse(others)
        found = self.encode(self.core, pixel_values, input_ids, attention_mask)
        return VisionLanguageOutput(*found)


class MagnetoForMaskedDataModelling(MagnetoVisionLanguagePreTrainedModel):
    """A `MaskedDataModel`."""

    config_class = MagnetoMaskedDataConfig
    core_class = MaskedDataModel

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

        Texts have the mask token where a word is hidden; `bool_masked_pos`, (images, patches), is
        True where a patch is.
        """
        self.refuse(others)
        hidden = None if bool_masked_pos is None else bool_masked_pos.bool()
        vision, language = self.encode(
            self.core.encoder, pixel_values, input_ids, attention_mask, hidden
        )
        return MaskedDataOutput(
            None if vision is None else self.core.patch_head(vision[:, 1:]),
            None if language is None else self.core.word_head(language),
        )


class MagnetoForVisualQuestionAnswering(MagnetoVisionLanguagePreTrainedModel):
    """A `QuestionAnswerer`; `config.id2label` has the answers."""

    config_class = MagnetoQuestionAnsweringConfig
    core_class = QuestionAnswerer
    head_name = "core.head"

    @staticmethod
    def new_head(config: Any) -> nn.Module:
        """Draw a head."""
        return AnswerHead(config, config.answers)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return logits of the answers, whose sigmoid is each one's probability.

        With `labels`, soft targets (questions, answers), the loss is binary cross-entropy, summed
        over answers, the mean of questions. `num_items_in_batch` is Trainer's, which counts labels,
        an answer each: the sum is divided by the questions in them, by default those given.
        """
        self.refuse(others)
        images, samples, _ = self.read(pixel_values, input_ids, attention_mask)
        logits = self.core(images, samples)
        loss = None
        if labels is not None:
            total = F.binary_cross_entropy_with_logits(
                logits.float(), labels.float(), reduction="sum"
            )
            count = labels.numel() if num_items_in_batch is None else num_items_in_batch
            loss = total * labels.shape[1] / torch.as_tensor(count, device=total.device)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


class MagnetoForVisualReasoning(MagnetoVisionLanguagePreTrainedModel):
    """A `VisualReasoner`."""

    config_class = MagnetoVisualReasoningConfig
    core_class = VisualReasoner

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return logits of false and true.

        `pixel_values` is (statements, 2, channels, height, width); `labels`, (statements,), 1 for
        true. The summed loss is divided by `num_items_in_batch`, by default by the statements.

        Raises:
            ValueError: If there are not two images to a statement.
        """
        self.refuse(others)
        if pixel_values.ndim != 5 or pixel_values.shape[1] != IMAGES:
            raise ValueError(f"pixel_values is (statements, {IMAGES}, channels, height, "
                             f"width), not {tuple(pixel_values.shape)}")  # fmt: skip
        images, samples, _ = self.read(pixel_values, input_ids, attention_mask)
        logits = self.core(images, samples)
        loss = classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


class MagnetoForImageTextRetrieval(MagnetoVisionLanguagePreTrainedModel):
    """An `ImageTextRetriever`, with the interface of transformers' CLIP."""

    config_class = MagnetoImageTextRetrievalConfig
    core_class = ImageTextRetriever

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        **others: Any,
    ) -> CLIPOutput:
        """Embed images, texts or both; their numbers may differ, but with `return_loss`."""
        self.refuse(others)
        images, samples, _ = self.read(pixel_values, input_ids, attention_mask, paired=False)
        image, text, scale = self.core(images, samples)
        if pixel_values is None or input_ids is None:
            return CLIPOutput(
                image_embeds=None if pixel_values is None else image,
                text_embeds=None if input_ids is None else text,
            )  # type: ignore[arg-type]
        logits = scale * image @ text.T
        loss = contrastive_losses(image, text, scale).mean() if return_loss else None
        return CLIPOutput(loss, logits, logits.T, text, image)  # type: ignore[arg-type]


class MagnetoForImageCaptioning(MagnetoVisionLanguagePreTrainedModel):
    """An `ImageCaptioner`."""

    config_class = MagnetoImageCaptioningConfig
    core_class = ImageCaptioner

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Return logits of the word at each place, which is read from left to right.

        Texts have the mask token where a word is to be guessed.
        """
        self.refuse(others)
        images, samples, mask = self.read(pixel_values, input_ids, attention_mask)
        packing = left_to_right(samples.packing, self.core.config.image_tokens)
        places = torch.arange(len(samples.token_ids), device=images.device)
        logits = self.core(images, replace(samples, packing=packing), places)
        return SequenceClassifierOutput(logits=padded(logits, mask))  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(
        self, pixel_values: Tensor, num_beams: int = 3, length_penalty: float = 0.6
    ) -> Tensor:
        """Write a caption of each image, as `magneto generate` does.

        Args:
            pixel_values: Images.
            num_beams: Captions kept at each step.
            length_penalty: Power of the length by which log-probabilities are divided.

        Returns:
            (images, longest) tokens, padded, for the tokenizer's `batch_decode`.

        Raises:
            ValueError: If the configuration does not name the special tokens.
        """
        names = {"begin": "bos", "end": "eos", "pad": "pad", "mask": "mask"}
        special: Any = SimpleNamespace(
            **{ours: getattr(self.config, f"{name}_token_id", None) for ours, name in names.items()}
        )
        if None in vars(special).values():
            raise ValueError("config needs bos_token_id, eos_token_id, pad_token_id, mask_token_id")
        writer = CaptionWriter(self.core, self.core.config, special)
        images = like_weights(self.core, pixel_values)
        found = writer.search(images, CaptionSearch(beams=num_beams, length_penalty=length_penalty))
        rows = [torch.tensor(tokens, dtype=torch.long) for tokens in found]
        made = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=special.pad)
        return made.to(pixel_values.device)
