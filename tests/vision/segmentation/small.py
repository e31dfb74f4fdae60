"""A small segmentation model, for tests."""

from typing import Any

import torch

from magneto.vision.config import SegmenterConfig
from magneto.vision.segmenter import Segmenter

SIZES: dict[str, Any] = {
    "width": 16, "layers": 4, "heads": 2, "ffn_width": 24, "positions": "learned",
    "max_length": 17, "image_size": 16, "patch_size": 4, "classes": 5, "class_token": "learned",
    "feature_layers": (0, 1, 2, 3), "head_channels": 8, "auxiliary_channels": 8, "stride": 8,
    "pool_scales": (1, 2),
}  # fmt: skip


def small_config(**changes: Any) -> SegmenterConfig:
    return SegmenterConfig(**{**SIZES, **changes})


def small_model(**changes: Any) -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(small_config(**changes)).eval()
