"""transformers' DeiT (arXiv 2012.12877) as our image classifier, and back.

It is a ViT with a distillation token after the class token, and either a head on the class token
or one on each of the two, whose answers are averaged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magneto.hf.formats import vit
from magneto.hf.formats.layout import Pair, as_row, module, squeezed
from magneto.vision.classification.config import ImageClassifierConfig


def ours(config: Any) -> ImageClassifierConfig:
    """Return our configuration of a DeiTForImageClassification.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    found = vit.ours(config)
    return replace(found, distillation_token="learned", max_length=1 + found.max_length)


def ours_with_teacher(config: Any) -> ImageClassifierConfig:
    """Return our configuration of a DeiTForImageClassificationWithTeacher.

    Raises:
        ValueError: For an option that has no counterpart.
    """
    return replace(ours(config), pooling="first_two")


def theirs(config: ImageClassifierConfig) -> dict[str, Any]:
    """Return the values of a DeiTConfig.

    Raises:
        ValueError: If ours has no distillation token, which every DeiT has.
    """
    if config.distillation_token == "none":
        raise ValueError("deit cannot hold this model: distillation_token is 'none' here, "
                         "'learned' there")  # fmt: skip
    return vit.theirs(config)


def has_two_heads(config: ImageClassifierConfig) -> bool:
    """Whether ours answers from the distillation token, too."""
    return config.pooling == "first_two"


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which, in both classes."""
    made = [pair for pair in vit.pairs(config) if not pair.ours.startswith("class_token")]
    return [
        *made,
        Pair("class_token.first.vector", ("embeddings.cls_token",), squeezed, as_row),
        Pair("class_token.second.vector", ("embeddings.distillation_token",), squeezed, as_row),
        *module("head.class_head", "cls_classifier"),
        *module("head.distillation_head", "distillation_classifier"),
    ]
