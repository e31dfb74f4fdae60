"""Every task's data and model in small, so that all recipes can be tried: changes of a recipe."""

from pathlib import Path
from typing import Any

import pytest

from magneto.vision import images
from magneto.vision_language import scenes

# Recipes count in epochs; two steps are enough here.
IN_STEPS = {"training.epochs": None, "training.warmup_ratio": None}
DIGITS = {
    "data.source": "builtin:digits", "model.channels": 1, "model.image_size": 8,
    "model.patch_size": 2, "model.max_length": 17, "data.resize": None,
    "training.num_workers": 0, **IN_STEPS,
}  # fmt: skip
SCENES = {
    "data.source": "builtin:scenes", "data.classes": None, "data.ignored": [],
    "data.reduce_zero_label": False, "data.fit": None,
    "model.image_size": 48, "model.patch_size": 8, "model.max_length": 37, "model.classes": 11,
    "model.stride": 48, "model.layers": 4, "model.feature_layers": [0, 1, 2, 3],
    "model.head_channels": 8, "model.auxiliary_channels": 8, "training.num_workers": 0,
}  # fmt: skip
SPOKEN = {
    "data.source": "builtin:spoken-digits", "data.tokenizer": "characters",
    "data.cmvn": "utterance", "data.max_frames": 800, "data.max_duration": 8.0,
    "data.synthetic.train_utterances": 8, "data.synthetic.validation_utterances": 4,
    "data.synthetic.words": [1, 1], "data.train_splits": None, "data.validation_splits": None,
    "model.front_channels": [2, 4], "model.predictor_width": 16, "model.joint_width": 16,
    "training.num_workers": 0,
}  # fmt: skip
SHAPES = {
    "data.source": "builtin:shapes", "data.image_source": "builtin:shapes",
    "data.text_source": "builtin:shapes", "data.image_tokenizer": "builtin:patches",
    "data.tokenizer": "bpe", "data.vocab_size": 512, "data.resize": None, "data.text_length": 16,
    "data.paired_text_length": None, "model.image_size": 48, "model.patch_size": 16,
    "model.max_length": 40, "model.codes": 8, "model.vocab_size": None,
    "training.batch_size": 6, "training.num_workers": 0, "training.evaluate_limit": 1,
}  # fmt: skip

DRAWN = {
    "data.source": "builtin:shapes", "data.tokenizer": "bytes", "model.vocab_size": None,
    "model.image_size": 48, "model.patch_size": 16, "model.max_length": 96,
    "training.batch_size": 4, "training.num_workers": 0, "training.evaluate_limit": 1, **IN_STEPS,
}  # fmt: skip


def draw_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let built-in data that is drawn have few images, as many as some batches take."""
    for counts in (scenes.PAIRS, scenes.ANSWERED, scenes.ROUNDS, images.SCENES):
        for split, count in counts.items():
            monkeypatch.setitem(counts, split, min(count, 40 if counts is scenes.PAIRS else 8))
    monkeypatch.setitem(scenes.ROUNDS, "train", 1)
    monkeypatch.setitem(scenes.ROUNDS, "validation", 1)
    monkeypatch.setattr(scenes, "POOL", 4096)


def shrunken(task: str, place: Path) -> dict[str, Any]:
    """Return changes of a task's recipes, with data that is written in a folder.

    Args:
        task: Its name.
        place: Where to write.
    """
    if task in ("causal-lm", "masked-lm"):
        return paragraphs(place)
    if task == "text-classification":
        return rows(place)
    if task == "translation":
        return pairs(place)
    if task == "transducer":
        pytest.importorskip("soundfile")
        return SPOKEN
    if task == "visual-question-answering":
        return questions(place)
    if task == "vision-language-modelling":
        pytest.importorskip("tokenizers")
        return SHAPES
    if task in ("visual-reasoning", "image-text-retrieval", "image-captioning"):
        return DRAWN
    pytest.importorskip("sklearn")
    return {
        "image-classification": DIGITS | {"model.classes": 10},
        "image-modelling": DIGITS | {"data.image_tokenizer": "builtin:patches", "model.codes": 8},
        "image-tokenizer": DIGITS
        | {"model.teacher": "pixels", "model.codes": 8, "model.target_width": None},
        "segmentation": SCENES,
    }[task]


def paragraphs(place: Path) -> dict[str, Any]:
    """Return the changes of language models."""
    text = "\n\n".join(f"A paragraph about number {i}. " * 40 for i in range(200))
    (place / "text.txt").write_text(text)
    return {
        "data.source": str(place / "text.txt"), "data.tokenizer": "bytes", "data.max_length": 16,
        "model.vocab_size": 300,
    }  # fmt: skip


def rows(place: Path) -> dict[str, Any]:
    """Return the changes of text classification."""
    lines = (f"{'abc' * (i % 7)} {i}\t{i} cb\t{i % 2}\n" for i in range(200))
    (place / "rows.tsv").write_text("one\ttwo\tlabel\n" + "".join(lines))
    return {
        "data.source": str(place / "rows.tsv"), "data.glue": "none", "data.text_column": "one",
        "data.pair_column": "two", "data.tokenizer": "bytes", "data.max_length": 16,
        "model.vocab_size": 300, **IN_STEPS,
    }  # fmt: skip


def questions(place: Path) -> dict[str, Any]:
    """Return the changes of visual question answering."""
    from tests.unit.vision_language.folders import write_vqa  # which needs Pillow

    write_vqa(place)
    return {
        "data.source": str(place), "data.tokenizer": "bytes", "model.answers": None,
        "data.validation_images": 2, "data.least_answer_count": 1, "model.image_size": 8,
        "model.patch_size": 4, "model.max_length": 32, "model.vocab_size": 300,
        "training.num_workers": 0, **IN_STEPS,
    }  # fmt: skip


def pairs(place: Path) -> dict[str, Any]:
    """Return the changes of translation."""
    for language in ("en", "de"):
        lines = (f"{language} {'word ' * (i % 7)}{i}\n" for i in range(200))
        (place / f"text.{language}").write_text("".join(lines))
    return {
        "data.source": str(place / "text"), "data.languages": None, "data.max_length": 60,
        "data.tokenizer": "bytes", "data.max_tokens": 128, "model.vocab_size": 300,
        "model.encoder_layers": 2, "model.decoder_layers": 1,
    }  # fmt: skip
