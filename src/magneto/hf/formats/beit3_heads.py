"""What stands on BEiT-3 in its authors' models, and in ours: their tensors' names, and its sizes.

Names are those of unilm's beit3/modeling_finetune.py, and of the pre-trained weights, which have
`mlm_head` and `mim_head`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from magneto.hf.formats.beit3 import PREFIX
from magneto.hf.formats.layout import Pair, as_row, module, squeezed
from magneto.vision_language.captioning.config import ImageCaptionerConfig
from magneto.vision_language.captioning.model import ImageCaptioner
from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.modelling.config import MaskedDataModelConfig
from magneto.vision_language.modelling.model import MaskedDataModel
from magneto.vision_language.question_answering.config import QuestionAnsweringConfig
from magneto.vision_language.question_answering.model import QuestionAnswerer
from magneto.vision_language.reasoning.config import VisualReasonerConfig
from magneto.vision_language.reasoning.model import VisualReasoner
from magneto.vision_language.retrieval.config import ImageTextRetrieverConfig
from magneto.vision_language.retrieval.model import ImageTextRetriever

MASK_TOKEN = f"{PREFIX}vision_embed.mask_token"


@dataclass(frozen=True)
class Head:
    """One of the authors' models on BEiT-3, and ours that computes the same.

    Attributes:
        mark: A tensor of theirs that no model before it in `HEADS` has.
        model: Our class.
        config: Its configuration.
        pairs: Which tensor of the head is which.
        encoder: Prefix of our encoder's tensors.
        sizes: Our sizes that belong to the head, by the tensor of theirs that is so long.
        normed: Whether the head has norms, whose epsilon is torch's own in theirs.
    """

    mark: str
    model: Callable[[Any], nn.Module]
    config: Callable[..., VisionLanguageConfig]
    pairs: tuple[Pair, ...] = ()
    encoder: str = "encoder."
    sizes: tuple[tuple[str, str], ...] = ()
    normed: bool = False


ANSWERS = Head(
    "pooler.dense.weight", QuestionAnswerer, QuestionAnsweringConfig,
    (
        *module("pooler.0", "pooler.norm"), *module("pooler.1", "pooler.dense"),
        *module("head.0", "head.0"), *module("head.1", "head.1"), *module("head.3", "head.3"),
    ),
    sizes=(("answers", "head.3.bias"),), normed=True,
)  # fmt: skip
STATEMENTS = Head(
    "head.dense1.weight", VisualReasoner, VisualReasonerConfig,
    (
        *module("head.0", "head.norm1"), *module("head.1", "head.dense1"),
        *module("head.2", "head.norm2"), *module("head.4", "head.dense2"),
    ),
    normed=True,
)  # fmt: skip
RETRIEVAL = Head(
    "vision_head.weight", ImageTextRetriever, ImageTextRetrieverConfig,
    (
        Pair("vision_head.weight", ("vision_head.weight",)),
        Pair("language_head.weight", ("language_head.weight",)),
        Pair("scale.logarithm", ("logit_scale",)),
    ),
)  # fmt: skip
PRETRAINING = Head(
    "mim_head.weight", MaskedDataModel, MaskedDataModelConfig,
    (
        *module("patch_head", "mim_head"), *module("word_head", "mlm_head"),
        Pair("encoder.vision_embedding.mask_token.vector", (MASK_TOKEN,), squeezed, as_row),
    ),
    sizes=(("codes", "mim_head.bias"),),
)  # fmt: skip
CAPTIONS = Head(
    "mlm_head.weight", ImageCaptioner, ImageCaptionerConfig, (*module("word_head", "mlm_head"),)
)
BARE = Head("", VisionLanguageEncoder, VisionLanguageConfig, encoder="")
# The first whose mark is there is taken.
HEADS = (ANSWERS, STATEMENTS, RETRIEVAL, PRETRAINING, CAPTIONS, BARE)


def head_of_weights(names: Mapping[str, Tensor]) -> Head:
    """Return which of the authors' models has tensors of these names."""
    return next(head for head in HEADS if head.mark in names or head is BARE)


def head_of_model(model: nn.Module) -> Head | None:
    """Return which of the authors' models is a model of ours; None if there is none."""
    return next((head for head in HEADS if type(model) is head.model), None)
