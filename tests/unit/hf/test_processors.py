"""Processors of images, texts and sounds for transformers give the inputs of training."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
Image: Any = pytest.importorskip("PIL.Image")

from magneto import hf  # noqa: E402
from magneto.data.tokenizer import SPECIAL, load_tokenizer, train_bpe  # noqa: E402
from magneto.hf.export import save_processors, vision_language_assets  # noqa: E402
from magneto.hf.processors import FRAMED, encoder_tokenizer  # noqa: E402
from magneto.vision.decoding import EncodedPicture, PixelPicture  # noqa: E402
from magneto.vision.transforms import InputFormat  # noqa: E402
from magneto.vision_language.config import (  # noqa: E402
    QuestionAnsweringConfig,
    VisionLanguageConfig,
)
from magneto.vision_language.samples import WholeImage, frame_text  # noqa: E402
from tests.unit.vision.image_files import encoded, photo  # noqa: E402

TEXTS = ["a red circle at the top left", "a blue cross"]


def test_pixel_values_equal_the_inputs_of_validation() -> None:
    grey, colour = hf.MagnetoImageProcessor(8, 1), hf.MagnetoImageProcessor(4, 3)
    array = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)
    expected = (torch.from_numpy(array).float() - 127.5) / 127.5
    for picture in (array, Image.fromarray(array), Image.fromarray(array).convert("RGB")):
        found = grey(picture, return_tensors="pt")["pixel_values"]
        assert torch.equal(found, expected[None, None])
    found = colour([array, array], return_tensors="pt")["pixel_values"]
    assert found.shape == (2, 3, 4, 4) and found.min() >= -1 and found.max() <= 1
    wide = hf.MagnetoImageProcessor(4, 1, resize=8)(np.repeat(array, 2, 1), return_tensors="pt")
    assert torch.equal(wide["pixel_values"][0, 0], expected.repeat_interleave(2, 1)[2:6, 6:10])
    with pytest.raises(TypeError, match="uint8 arrays, not float64"):
        grey(array / 255)
    with pytest.raises(ValueError, match="channels must be 1 or 3, not 2"):
        hf.MagnetoImageProcessor(8, 2)
    with pytest.raises(ValueError, match="different sizes"):
        hf.MagnetoImageProcessor(0)([array, array[1:]])


def test_image_files_have_the_pixels_of_a_run() -> None:
    """One that is turned, one that is transparent, one of 16 bits, one with a palette."""
    pixels = photo()
    turned = Image.Exif()
    turned[0x0112] = 6  # taken with the camera upright
    clear = np.full((*pixels.shape[:2], 1), 255, np.uint8)
    clear[:20] = 64
    for content in (
        encoded(pixels, "PNG", exif=turned),
        encoded(np.concatenate((pixels, clear), axis=2)),
        encoded(pixels[..., 0].astype(np.uint16) * 257),
        encoded(Image.fromarray(pixels).convert("P")),
    ):
        picture = Image.open(io.BytesIO(content))
        found = hf.MagnetoImageProcessor(0)(picture, return_tensors="np")["pixel_values"]
        wanted = InputFormat(0).normalise(EncodedPicture(content).pixels())
        np.testing.assert_array_equal(found[0], wanted)


def test_logits_are_resized_before_classes_are_chosen() -> None:
    """Between class 0 and class 2 lies no class 1, as resized numbers of classes would say."""
    logits = torch.tensor([[[[5.0, -5.0]], [[0.0, 0.0]], [[-5.0, 5.0]]]])
    processor = hf.MagnetoImageProcessor(0)
    outputs = SimpleNamespace(logits=torch.cat((logits, logits.flip(3))))
    found = processor.post_process_semantic_segmentation(outputs, [(2, 8), (1, 4)])
    assert [each.tolist() for each in found] == [[[0, 0, 0, 0, 2, 2, 2, 2]] * 2, [[2, 2, 0, 0]]]
    own = processor.post_process_semantic_segmentation(outputs)
    assert [each.tolist() for each in own] == [[[0, 2]], [[2, 0]]]


def test_an_array_is_an_image_or_a_batch_and_may_keep_its_ratio() -> None:
    several = np.random.default_rng(0).integers(0, 256, (3, 10, 30, 3), np.uint8)
    processor = hf.MagnetoImageProcessor(8, 3, "imagenet")
    found = processor(several, return_tensors="pt")["pixel_values"]
    expected = WholeImage(InputFormat(8, 3, "imagenet"))(
        PixelPicture(several[1]), np.random.default_rng(0)
    )
    assert torch.equal(found[1], torch.from_numpy(expected))
    for given, rows in ((list(several), found), (several[1], found[1:2])):
        assert torch.equal(processor(given, return_tensors="pt")["pixel_values"], rows)
    processor = hf.MagnetoImageProcessor(0, fit=(2048, 512))
    found = processor(np.zeros((256, 400, 3), np.uint8), return_tensors="pt")["pixel_values"]
    assert found.shape == (1, 3, 512, 800) and (found == -1).all()


def test_texts_are_truncated_and_names_of_files_refused(tmp_path: Path) -> None:
    train_bpe(TEXTS * 10, 290, tmp_path / "tokenizer.json", SPECIAL)
    tokenizer = load_tokenizer(tmp_path)
    fast = encoder_tokenizer(tokenizer, 7, FRAMED)
    processor = hf.MagnetoVisionLanguageProcessor(hf.MagnetoImageProcessor(8), fast)
    read = processor(text=TEXTS)
    for row, mask, text in zip(read["input_ids"], read["attention_mask"], TEXTS, strict=True):
        ids = tokenizer.encode([text])[0]
        assert row[mask.bool()].tolist() == frame_text(ids, tokenizer, 7).tolist()
    assert set(read) == {"input_ids", "attention_mask"}
    config = QuestionAnsweringConfig(max_length=7, pooling="mask_token")
    assets = vision_language_assets(config, tokenizer, processor.image_processor, ["no", "yes"])
    row = assets.processors[0](text=TEXTS[0])["input_ids"][0].tolist()
    ids = tokenizer.encode(TEXTS[:1])[0]
    assert row == frame_text(ids, tokenizer, 7, [tokenizer.mask]).tolist()
    assert assets.values == {
        "bos_token_id": tokenizer.begin, "eos_token_id": tokenizer.end,
        "pad_token_id": tokenizer.pad, "mask_token_id": tokenizer.mask,
        **hf.class_names(["no", "yes"]),
    }  # fmt: skip
    for named in ("cat.png", ["cat.png"], Path("cat.png")):
        with pytest.raises(TypeError, match=r"Open cat\.png with PIL\.Image\.open"):
            processor(images=named)
    with pytest.raises(ValueError, match="the same number of images"):
        processor(images=[[np.zeros((8, 8), np.uint8)] * count for count in (1, 3)])
    grey = np.arange(6, dtype=np.uint8).reshape(3, 2, 1, 1).repeat(8, 2).repeat(8, 3)
    pixels = processor(images=[list(group) for group in grey])["pixel_values"]
    assert pixels.shape == (3, 2, 3, 8, 8)
    assert pixels[:, :, 0, 0, 0].flatten().argsort().tolist() == list(range(6))


def test_byte_tokenizers_are_saved_for_magneto_only(tmp_path: Path) -> None:
    """Transformers has no byte tokenizer; the image processor and Magneto's tokenizer are saved."""
    config = VisionLanguageConfig(image_size=8, patch_size=4, max_length=7)
    assets = vision_language_assets(config, load_tokenizer("bytes"), hf.MagnetoImageProcessor(8))
    save_processors(assets, tmp_path)
    assert (tmp_path / "preprocessor_config.json").is_file()
    assert not (tmp_path / "processor_config.json").exists()
    assert load_tokenizer(tmp_path).encode(["a"]) == load_tokenizer("bytes").encode(["a"])


def test_rows_of_an_array_are_recordings_and_invalid_samples_are_refused() -> None:
    extractor = hf.MagnetoSpeechFeatureExtractor(8000)
    sounds = np.random.default_rng(0).standard_normal((3, 800)).astype(np.float32)
    wanted = extractor(list(sounds))["input_features"]
    assert wanted.shape == (3, 8, 80) and np.ptp(wanted) > 1
    for given in (sounds, torch.from_numpy(sounds), sounds.tolist()):
        np.testing.assert_array_equal(extractor(given)["input_features"], wanted)
    np.testing.assert_array_equal(extractor(sounds[0].tolist())["input_features"], wanted[:1])
    masks = extractor([sounds[0], sounds[0, :0]])["attention_mask"]
    assert masks.sum(1).tolist() == [8, 0]  # three frames are filled up, as in training
    for wrong, words in ((sounds.T, "must be mono"), ([sounds], "must be mono"),
                         (np.zeros(800, np.int16), "Divide 16-bit samples by 32768")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            extractor(wrong)
    with pytest.raises(ValueError, match="Resample"):
        extractor(sounds[0], sampling_rate=16000)
