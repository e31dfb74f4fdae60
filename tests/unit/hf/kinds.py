"""Small models of every kind, wrapped for transformers, and their inputs."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from magneto import hf
from tests.unit.nn.grids import shaken

STACK: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24}
TEXT = {**STACK, "vocab_size": 40, "positions": "rotary", "pad_token_id": 0, "eos_token_id": 0}
IMAGE = {**STACK, "image_size": 8, "patch_size": 4}
PAIRS = {**IMAGE, "vocab_size": 40, "max_length": 9}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "MagnetoForCausalLM": ("MagnetoConfig", TEXT),
    "MagnetoEncoderModel": ("MagnetoEncoderConfig", TEXT),
    "MagnetoForMaskedLM": ("MagnetoEncoderConfig", TEXT),
    "MagnetoForSequenceClassification": ("MagnetoEncoderConfig", {**TEXT, "num_labels": 3}),
    "MagnetoForSeq2SeqLM": (
        "MagnetoSeq2SeqConfig",
        {**TEXT, "encoder_layers": 1, "decoder_layers": 2, "bos_token_id": 0},
    ),
    "MagnetoForTransducer": (
        "MagnetoTransducerConfig",
        {**STACK, "vocab_size": 20, "front_channels": (2, 4), "predictor_width": 16,
         "joint_width": 16},
    ),
    "MagnetoForImageClassification": ("MagnetoImageConfig", {**IMAGE, "classes": 3}),
    "MagnetoVisionLanguageModel": ("MagnetoVisionLanguageConfig", PAIRS),
    "MagnetoForMaskedDataModelling": ("MagnetoMaskedDataConfig", {**PAIRS, "codes": 6}),
    "MagnetoForVisualQuestionAnswering": (
        "MagnetoQuestionAnsweringConfig", {**PAIRS, "answers": 4},
    ),
    "MagnetoForVisualReasoning": ("MagnetoVisualReasoningConfig", PAIRS),
    "MagnetoForImageTextRetrieval": ("MagnetoImageTextRetrievalConfig", PAIRS),
    "MagnetoForImageCaptioning": ("MagnetoImageCaptioningConfig", PAIRS),
}  # fmt: skip
"""Configuration class and sizes of each wrapper; segmentation has separate tests."""
TEXTS = [name for name in KINDS if KINDS[name][1].get("positions") == "rotary"]
SEEN = [name for name in KINDS if "image_size" in KINDS[name][1] and "vocab_size" in KINDS[name][1]]
IDS = torch.randint(4, 40, (2, 7), generator=torch.Generator().manual_seed(1))
PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])


def wrapped(name: str, **changes: Any) -> Any:
    """Return a model in evaluation mode, with noise added to every parameter."""
    config, values = KINDS[name]
    torch.manual_seed(0)
    return shaken(getattr(hf, name)(getattr(hf, config)(**{**values, **changes})), 0.1)


def inputs(name: str) -> dict[str, Tensor]:
    """Return inputs for a model of the kind."""
    if name in TEXTS:
        return {"input_ids": IDS} | ({"decoder_input_ids": IDS} if "Seq2Seq" in name else {})
    if name == "MagnetoForTransducer":
        return {"input_features": torch.randn(2, 40, 80, generator=torch.manual_seed(1))}
    if name not in SEEN:
        return {"pixel_values": PIXELS}
    two = torch.stack((PIXELS, PIXELS.flip(0)), 1)
    images = two if name == "MagnetoForVisualReasoning" else PIXELS
    return {"pixel_values": images, "input_ids": IDS, "attention_mask": MASK}


def says(model: Any, name: str) -> Tensor:
    """Return the first tensor of a model's output."""
    return model(**inputs(name))[0]


def export_text(model: Any, tokenizer: Any, directory: Path, length: int, how: Any = None) -> str:
    """Export a text model; `how` is an encoder's input template, None for a decoder."""
    if how is None:
        return hf.save_export(model, directory, hf.decoder_assets(tokenizer, length))
    return hf.save_export(model, directory, hf.encoder_assets(tokenizer, length, how))
