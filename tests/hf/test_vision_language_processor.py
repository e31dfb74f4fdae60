"""What reads pictures and texts for our models of vision and language."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("PIL")

from PIL import Image

from magneto.data.tokenizer import SPECIAL, load_tokenizer, train_bpe
from magneto.hf import MagnetoVisionLanguageProcessor, MagnetoWholeImageProcessor
from magneto.hf.export import images_and_texts, save_readers
from magneto.hf.tokenizer import FRAMED, encoder_tokenizer
from magneto.vision.decoding import PixelPicture
from magneto.vision.transforms import Reading
from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.samples import WholeImage, frame_text

TEXTS = ["a red circle at the top left", "a blue cross"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    train_bpe(TEXTS * 10, 290, path, SPECIAL)
    return load_tokenizer(path)


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_all_of_a_picture_is_read() -> None:
    wide = picture(10, 30)
    for normalisation in ("half", "imagenet"):
        processor = MagnetoWholeImageProcessor(8, 3, normalisation)
        found = processor([wide, wide], return_tensors="pt")["pixel_values"]
        transform = WholeImage(Reading(8, 3, normalisation))
        expected = transform(PixelPicture(wide), np.random.default_rng(0))
        assert torch.equal(found[1], torch.from_numpy(expected))
    changed = wide.copy()
    changed[:, 0] = 255
    assert not np.array_equal(processor(wide)["pixel_values"], processor(changed)["pixel_values"])


def test_texts_are_framed_and_cut_as_in_training(tokenizer: Any) -> None:
    fast = encoder_tokenizer(tokenizer, 7, FRAMED)
    processor = MagnetoVisionLanguageProcessor(MagnetoWholeImageProcessor(8), fast)
    read = processor(text=TEXTS)
    for row, mask, text in zip(read["input_ids"], read["attention_mask"], TEXTS, strict=True):
        ids = tokenizer.encode([text])[0]
        assert row[mask.bool()].tolist() == frame_text(ids, tokenizer, 7).tolist()
    assert set(read) == {"input_ids", "attention_mask"}
    assert processor(text=TEXTS[0])["input_ids"].shape == (1, 7)


def test_several_pictures_of_a_statement(tokenizer: Any) -> None:
    fast = encoder_tokenizer(tokenizer, 7, FRAMED)
    processor = MagnetoVisionLanguageProcessor(MagnetoWholeImageProcessor(8), fast)
    one, two = picture(9, 9), picture(9, 12)
    pixels = processor(images=[[one, two], [two, one]])["pixel_values"]
    flat = processor(images=[one, two, two, one])["pixel_values"]
    assert pixels.shape == (2, 2, 3, 8, 8)
    assert torch.equal(pixels.flatten(0, 1), flat)


def test_one_picture_without_a_list_and_none_by_its_name(tokenizer: Any) -> None:
    fast = encoder_tokenizer(tokenizer, 7, FRAMED)
    processor = MagnetoVisionLanguageProcessor(MagnetoWholeImageProcessor(8), fast)
    one = Image.fromarray(picture(9, 12))
    expected = processor(images=[one])["pixel_values"]
    for given in (one, np.asarray(one)):
        assert torch.equal(processor(images=given, text="a circle")["pixel_values"], expected)
    for named in ("cat.png", ["cat.png"], Path("cat.png")):
        with pytest.raises(TypeError, match=r"open cat\.png by PIL\.Image\.open"):
            processor(images=named)


def test_bytes_are_for_our_own_reading(tmp_path: Path) -> None:
    """transformers has no tokenizer of bytes: the image processor is written, and ours."""
    config = VisionLanguageConfig(image_size=8, patch_size=4, max_length=7)
    beside = images_and_texts(config, load_tokenizer("bytes"), MagnetoWholeImageProcessor(8))
    save_readers(beside, tmp_path)
    assert (tmp_path / "preprocessor_config.json").is_file()
    assert not (tmp_path / "processor_config.json").exists()
    assert load_tokenizer(tmp_path).encode(["a"]) == load_tokenizer("bytes").encode(["a"])
