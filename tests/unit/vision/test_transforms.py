"""From files to inputs: pixels of every format, crops, colours, an image with its mask."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest

from magneto.vision import augmentation, decoding
from magneto.vision.augmentation import (
    OPERATIONS,
    Augmentation,
    PairedAugmentation,
    adjust_colour,
    colour_jitter,
    photometric_distortion,
    rand_augment,
    random_erasing,
)
from magneto.vision.config import (
    IGNORED,
    AugmentationConfig,
    ImageDataConfig,
    PairedAugmentationConfig,
)
from magneto.vision.decoding import (
    BrokenImage,
    EncodedPicture,
    PixelPicture,
    apply_orientation,
    decode_mask,
)
from magneto.vision.transforms import (
    NORMALISATIONS,
    Box,
    InputFormat,
    centre_crop,
    crop_and_resize,
    random_crop_box,
    validation_transform,
    with_channels,
)
from tests.unit.vision.image_files import Image, encoded, photo


def pixels(content: bytes) -> np.ndarray:
    picture = EncodedPicture(content)
    found = picture.pixels()
    assert found.dtype == np.uint8 and found.shape == (picture.height, picture.width, 3)
    return found


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(decoding, "simplejpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    return request.param


def test_exif_orientations(decoder) -> None:
    """Against Pillow's own ImageOps.exif_transpose."""
    from PIL import ImageOps

    for way, kind in itertools.product(range(1, 9), ("JPEG", "PNG", "TIFF", "WEBP")):
        exif = Image.Exif()
        exif[decoding.ORIENTATION] = way
        content = encoded(photo(3, 16, 24), kind, exif=exif)
        wanted = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
        found = pixels(content)
        assert found.shape == wanted.shape, (way, kind)
        assert np.abs(found.astype(int) - wanted).max() <= 1, (way, kind)
        assert way == 1 or not np.array_equal(apply_orientation(found, way), found)


def test_transparent_parts_are_white() -> None:
    seen = np.zeros((2, 2, 4), np.uint8)
    seen[0, 0] = (10, 20, 30, 255)
    seen[1, 1] = (0, 0, 0, 128)
    found = pixels(encoded(seen))
    assert found[0, 0].tolist() == [10, 20, 30] and found[0, 1].tolist() == [255] * 3
    assert found[1, 1].tolist() == [127] * 3
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([9, 9, 9, 200, 0, 0])
    assert pixels(encoded(palette, "PNG", transparency=0))[0].tolist() == [[255] * 3, [200, 0, 0]]


def test_16_bits_are_scaled() -> None:
    wide = np.array([[0, 257, 32896, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert pixels(encoded(Image.fromarray(wide), kind))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_cmyk_grey_bilevel_and_one_pixel(decoder) -> None:
    cmyk = Image.fromarray(photo()).convert("CMYK")
    content = encoded(cmyk, "JPEG", quality=95)
    assert np.abs(pixels(content).astype(int) - photo()).mean() < 3
    grey = pixels(encoded(photo()[..., 0], "JPEG", quality=95))
    assert np.array_equal(grey[..., 0], grey[..., 2])
    assert np.abs(grey[..., 0].astype(int) - photo()[..., 0]).mean() < 3
    assert pixels(encoded(Image.new("1", (2, 1), 1)))[0, 0].tolist() == [255] * 3
    assert pixels(encoded(np.full((1, 1, 3), 7, np.uint8), "JPEG")).tolist() == [[[7, 7, 7]]]


def test_of_an_animation_the_first_frame_is_seen() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    for kind in ("GIF", "PNG", "WEBP"):
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert np.abs(pixels(content)[0, 0].astype(int) - (250, 0, 0)).max() < 8


def chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def header(width: int, height: int, bits: int, colours: int) -> bytes:
    """The beginning of a PNG."""
    size = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size)


def test_broken_files_are_said_to_be(decoder) -> None:
    whole = encoded(photo(), "JPEG")
    wrong = {
        "empty": b"", "text": b"no image", "cut off": whole[: len(whole) // 2],
        "header alone": whole[:200], "png cut off": encoded(photo())[:900],
        "of 100,000 x 100,000 pixels": header(10**5, 10**5, 8, 2) + encoded(photo())[33:],
    }  # fmt: skip
    for what, content in wrong.items():
        with pytest.raises(BrokenImage) as caught:
            EncodedPicture(content).pixels()
        assert str(caught.value) and "object at" not in str(caught.value), what
    with pytest.raises(BrokenImage, match="range"):
        EncodedPicture(encoded(Image.new("F", (2, 2)), "TIFF")).pixels()


def test_damaged_bytes_never_raise_anything_else() -> None:
    random = np.random.default_rng(0)
    kinds = [encoded(photo(), kind) for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP")]
    outcomes = set()
    for content in kinds:
        for _ in range(30):
            damaged = bytearray(content)
            for place in random.integers(len(damaged), size=8):
                damaged[place] = random.integers(256)
            try:
                outcomes.add(EncodedPicture(bytes(damaged)).pixels().dtype)
            except BrokenImage:
                outcomes.add("broken")
    assert outcomes == {np.dtype(np.uint8), "broken"}


def grey_png(rows: list[list[int]], bits: int) -> bytes:
    """A grey PNG of few bits, which Pillow does not write."""
    words = ["".join(f"{number:0{bits}b}" for number in row).ljust(8, "0") for row in rows]
    lines = b"".join(b"\0" + int(word, 2).to_bytes(1) for word in words)
    head = header(len(rows[0]), len(rows), bits, 0)
    return head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_masks_are_numbers_of_classes() -> None:
    for bits, rows in ((1, [[0, 1]]), (2, [[3, 1], [0, 2]]), (4, [[15, 7]])):  # are not spread
        assert decode_mask(grey_png(rows, bits)).tolist() == rows
    mask = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for kind in ("PNG", "BMP"):
        assert np.array_equal(decode_mask(encoded(mask, kind)), mask)
    palette = Image.fromarray(mask, "P")
    palette.putpalette([255, 0, 0] * 256)
    assert np.array_equal(decode_mask(encoded(palette)), mask)
    assert np.array_equal(decode_mask(encoded(Image.fromarray(mask.astype(np.uint16)))), mask)
    exif = Image.Exif()
    exif[decoding.ORIENTATION] = 6  # as its image, it is turned clockwise
    assert decode_mask(encoded(mask, exif=exif)).tolist() == [[3, 0], [4, 1], [5, 2]]
    with pytest.raises(BrokenImage, match="not colours"):
        decode_mask(encoded(photo()))
    for kind in ("GIF", "JPEG", "TIFF", "WEBP"):  # may change numbers
        with pytest.raises(BrokenImage, match=f"must be PNG or BMP, not {kind}"):
            decode_mask(encoded(mask, kind))
    with pytest.raises(BrokenImage, match="class 300 is above 255"):
        decode_mask(encoded(Image.fromarray(np.full((2, 2), 300, np.uint16))))
    with pytest.raises(BrokenImage):
        decode_mask(encoded(mask.repeat(50, 0).repeat(50, 1))[:70])


ALL = AugmentationConfig(
    crop="random_resized", flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1,
    rand_augment=9, erasing=0.5,
)  # fmt: skip


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def test_without_augmentation_pixels_are_normalised_alone() -> None:
    """The digits go through as they are: (pixel / peak - 0.5) / 0.5, to the last bit."""
    levels = np.arange(17, dtype=np.uint8).repeat(4).reshape(1, 68, 1)[:, :64].reshape(8, 8, 1)
    input_format = InputFormat(8, 1, "half", 240)
    found = Augmentation(input_format, AugmentationConfig())(PixelPicture(levels * 15), rng(1))
    assert np.array_equal(found, levels.transpose(2, 0, 1).astype(np.float32) / 8 - 1)
    fixed = validation_transform(ImageDataConfig(), input_format)(PixelPicture(levels * 15), rng(1))
    assert np.array_equal(fixed, found)
    assert np.array_equal(
        input_format.restore(found), np.rint(levels * (255 / 16)).astype(np.uint8)
    )
    assert [validation_transform(ImageDataConfig(resize=n), input_format).resize
            for n in (None, 12)] == [8, 12]  # fmt: skip
    with pytest.raises(ValueError):
        validation_transform(ImageDataConfig(resize=7), input_format)
    for name, values in NORMALISATIONS.items():
        mean, std = (np.array(value)[:, None, None] for value in values)
        wanted = (photo().transpose(2, 0, 1) / 255 - mean) / std
        found = InputFormat(48, 3, name).normalise(photo())
        assert found.dtype == np.float32 and np.allclose(found, wanted, atol=1e-5)
        assert np.array_equal(InputFormat(48, 3, name).restore(found), photo())


def test_extreme_shapes_stay_small() -> None:
    for height, width in ((1, 1), (1, 5000), (3000, 2)):
        picture = PixelPicture(np.full((height, width, 3), 9, np.uint8))
        assert centre_crop(picture, 16, 20).tolist() == [[[9] * 3] * 16] * 16
        box = random_crop_box(picture, (0.08, 1.0), (3 / 4, 4 / 3), rng(1))
        assert 1 <= box.height <= height and 1 <= box.width <= width
    # Where no rectangle of this area fits, it is the largest one in the middle.
    for (height, width), wanted in (
        ((10, 100), Box(0, 43, 10, 13)),
        ((100, 10), Box(43, 0, 13, 10)),
    ):
        picture = PixelPicture(np.zeros((height, width, 3), np.uint8))
        assert random_crop_box(picture, (1.0, 1.0), (3 / 4, 4 / 3), rng(1)) == wanted


def test_a_large_jpeg_is_decoded_smaller_where_the_crop_allows(monkeypatch) -> None:
    picture = EncodedPicture(encoded(photo(4, 256, 256), "JPEG", quality=95))
    scales: list[int] = []
    decode = picture.pixels
    monkeypatch.setattr(picture, "pixels", lambda scale: scales.append(scale) or decode(scale))
    boxes = [Box(0, 0, 256, 256), Box(0, 64, 128, 192), Box(10, 10, 60, 60)]
    for box in boxes:
        near = crop_and_resize(picture, box, 32, reduce=True).astype(int)
        exact = crop_and_resize(picture, box, 32).astype(int)
        assert np.abs(near - exact).mean() < 3
    assert scales == [8, 1, 4, 1, 1, 1]


def test_a_smaller_jpeg_is_cut_where_the_whole_one_is(decoder) -> None:
    """Its last pixels stand for fewer than 8 of the whole one's: they must not stretch the rest."""
    ramp = np.linspace(0, 255, 257).round().astype(np.uint8)
    for pixels in (np.tile(ramp, (257, 1)), np.tile(ramp[:, None], (1, 257))):
        pixels = np.repeat(pixels[..., None], 3, -1)
        picture = EncodedPicture(encoded(pixels, "JPEG", quality=100, subsampling=0))
        near = crop_and_resize(picture, Box(0, 0, 256, 256), 32, reduce=True).astype(int)
        exact = crop_and_resize(PixelPicture(pixels), Box(0, 0, 256, 256), 32)
        assert np.abs(near - exact)[2:-2, 2:-2].max() <= 1


def test_grey_images_and_other_numbers_of_channels() -> None:
    grey = PixelPicture(photo(6)[..., :1])
    assert Augmentation(InputFormat(24, 1), ALL)(grey, rng(3)).shape == (1, 24, 24)
    assert Augmentation(InputFormat(24, 3), ALL)(grey, rng(3)).shape == (3, 24, 24)
    for name, change in OPERATIONS.items():
        image = change(Image.fromarray(photo()[..., 0]), 1.0, rng(1))
        assert (image.size, image.mode) == ((64, 48), "L"), name
    assert np.array_equal(with_channels(photo()[..., :1], 3)[..., 2], photo()[..., 0])
    luma = with_channels(photo(), 1)[..., 0]
    assert np.abs(luma - photo() @ [0.299, 0.587, 0.114]).max() < 1


def test_flipping_and_erasing() -> None:
    picture = PixelPicture(photo(7, 24, 24))
    flipped = Augmentation(InputFormat(24), AugmentationConfig(flip=1.0)).pixels(picture, rng(1))
    assert np.array_equal(flipped[:, ::-1], picture.pixels())
    plain = Augmentation(InputFormat(12), AugmentationConfig()).pixels(picture, rng(1))
    assert np.array_equal(plain, centre_crop(picture, 12, 12))
    whole = FORMAT.normalise(photo(7, 32, 32))
    for name, strength in {"flip": 1, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4,
                           "hue": 0.1, "rand_augment": 9, "erasing": 1}.items():  # fmt: skip
        change = Augmentation(FORMAT, AugmentationConfig(**{name: strength}))  # type: ignore[arg-type]
        found = [change(PixelPicture(photo(7, 32, 32)), rng(number)) for number in range(4)]
        assert not all(np.array_equal(image, whole) for image in found), name
    config = AugmentationConfig(crop="random_resized", crop_scale=(0.01, 0.02))
    ramp = PixelPicture(np.arange(100, dtype=np.uint8).repeat(300).reshape(100, 100, 3))
    part = Augmentation(InputFormat(24), config).pixels(ramp, rng(1))
    assert np.ptp(part) < 20  # a small part of the image
    image = np.full((3, 40, 40), 5.0, np.float32)
    assert (random_erasing(image.copy(), 0.0, rng(1)) == 5).all()
    for number in range(20):
        noise = random_erasing(image.copy(), 1.0, rng(number)) != 5
        assert 0.01 < noise.mean() < 0.4
        rows, columns = np.flatnonzero(noise[0].any(1)), np.flatnonzero(noise[0].any(0))
        assert noise[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()


FORMAT = InputFormat(32)


def pair(height: int = 60, width: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """A mask of blocks of 20 pixels, with numbers 20 apart, and an image as bright as these."""
    mask = (np.arange(height)[:, None] // 20 * 4 + np.arange(width) // 20).astype(np.uint8) * 20
    return np.repeat(mask[..., None], 3, 2), mask


def test_an_image_and_its_mask_go_the_same_way() -> None:
    pixels, mask = pair()
    change = PairedAugmentation(FORMAT, PairedAugmentationConfig(photometric=0))
    for number in range(20):
        image, part = change(pixels, mask, rng(number))
        assert image.shape == (3, 32, 32) and part.shape == (32, 32) and part.dtype == np.uint8
        seen = part != IGNORED
        assert not (part[seen] % 20).any(), "a resized mask has no class between two others"
        assert np.median(np.abs((image[0] + 1) * 127.5 - part)[seen]) < 0.2
        assert not image[:, ~seen].any()
    pixels, mask = pair(20, 20)
    config = PairedAugmentationConfig(resize=(1.0, 1.0))
    _, part = PairedAugmentation(FORMAT, config)(pixels, mask, rng(1))
    assert (part != IGNORED).sum() == 400 and (part[20:] == IGNORED).all()
    _, part = PairedAugmentation(FORMAT, config, (16, 16))(pixels, mask, rng(1))
    assert (part != IGNORED).sum() == 256
    change = PairedAugmentation(FORMAT, PairedAugmentationConfig(resize=(0.5, 1.5)))
    sides = [(change(pixels, mask, rng(n))[1] != IGNORED).sum() ** 0.5 for n in range(30)]
    assert 10 <= min(sides) < 12 and 28 < max(sides) <= 30
    pixels, mask = pair()
    for flip in (0.0, 1.0):
        config = PairedAugmentationConfig(resize=(1.0, 1.0), flip=flip)
        parts = [PairedAugmentation(FORMAT, config)(pixels, mask, rng(n))[1] for n in range(40)]
        assert {*np.unique(parts)} == {*np.unique(mask)}, "crops reach every corner"
        rising = np.diff(np.array(parts, int), axis=2) * (-1) ** flip
        assert (rising >= 0).all()


def test_no_class_has_nearly_all_of_a_crop() -> None:
    mask = np.zeros((200, 200), np.uint8)
    mask[:, 150:] = 1
    pixels = np.zeros((200, 200, 3), np.uint8)
    shares = {}
    for largest in (0.75, 1.0):
        config = PairedAugmentationConfig(resize=(1.0, 1.0), largest_share=largest)
        change = PairedAugmentation(FORMAT, config)
        parts = [change(pixels, mask, rng(number))[1] for number in range(40)]
        shares[largest] = np.mean([max((p == 0).mean(), (p == 1).mean()) > 0.75 for p in parts])
    # With 1.0, every crop is taken: nine in ten have more than 75 % of one class.
    assert shares[0.75] < 0.5 and shares[1.0] > 0.75
    mask[1::2, 150:] = 0
    mask[:, ::2] = IGNORED  # which is no second class
    change = PairedAugmentation(FORMAT, PairedAugmentationConfig(resize=(1.0, 1.0)))
    assert np.mean([(change(pixels, mask, rng(n))[1] == 1).any() for n in range(40)]) > 0.7


def test_distortion_changes_colours_alone() -> None:
    pixels = photo()
    assert np.array_equal(photometric_distortion(pixels, 0.0, rng(1)), pixels)
    found = [photometric_distortion(pixels, 1.0, rng(number)) for number in (1, 2, 2)]
    assert all(image.shape == pixels.shape and image.dtype == np.uint8 for image in found)
    assert np.array_equal(found[1], found[2]) and not np.array_equal(found[0], found[1])
    # Brightness changes by up to 32, and then contrast by a factor from 0.5 to 1.5.
    grey, red = (np.full((1, 1, 3), colour, np.uint8) for colour in ([100] * 3, [220, 60, 60]))
    levels = [int(photometric_distortion(grey, 1.0, rng(n))[0, 0, 0]) for n in range(300)]
    assert 33 <= min(levels) < 45 and 170 < max(levels) <= 198
    shifted = np.array([photometric_distortion(red, 1.0, rng(n))[0, 0] for n in range(50)], int)
    assert (shifted.argmax(1) == 0).all()
    assert {*np.sign(shifted[:, 1] - shifted[:, 2])} >= {-1, 1}  # to yellow and to magenta
    saturations = 1 - shifted.min(1) / shifted.max(1)  # 0.73 before
    assert saturations.min() < 0.5 and saturations.max() > 0.9


def test_jitter_changes_by_its_strengths() -> None:
    image = Image.fromarray(photo(3))
    same = colour_jitter(image, AugmentationConfig(), rng(1))
    assert np.array_equal(np.asarray(same), photo(3))
    config = AugmentationConfig(brightness=0.4)
    means = [np.asarray(colour_jitter(image, config, rng(n))).mean() for n in range(60)]
    assert 0.58 < min(means) / photo(3).mean() < 0.7 and max(means) / photo(3).mean() > 1.15
    assert np.array_equal(np.asarray(adjust_colour(image, 0.0)), photo(3))
    red = Image.new("RGB", (1, 1), (200, 0, 0))
    assert [np.asarray(adjust_colour(red, turn))[0, 0].argmax() for turn in (1 / 3, -1 / 3)] == [
        1,
        2,
    ]
    assert np.asarray(adjust_colour(red, 0.0, 2.0))[0, 0].tolist() == [200, 0, 0]
    assert np.asarray(adjust_colour(red, 0.0, 0.5))[0, 0].tolist() == [200, 100, 100]

    def changed(shown: np.ndarray, **strength: float) -> np.ndarray:
        config = AugmentationConfig(**strength)
        made = [colour_jitter(Image.fromarray(shown), config, rng(n)) for n in range(20)]
        return np.array([np.asarray(image) for image in made], int)

    steps = np.array([[[50] * 3, [150] * 3]], np.uint8)
    assert (changed(steps, saturation=0.5) == steps).all()
    contrast = np.diff(changed(steps, contrast=0.5)[:, 0, :, 0])
    assert contrast.min() < 80 and contrast.max() > 120
    assert np.diff(changed(steps, contrast=3.0)[:, 0, :, 0]).min() >= 0  # no factor is negative
    bright = np.full((1, 1, 3), 100, np.uint8)
    assert (changed(bright, contrast=0.5) == bright).all()
    hues = changed(np.asarray(red), hue=0.3)[:, 0, 0]
    assert (hues[:, 1] > hues[:, 2]).any() and (hues[:, 1] < hues[:, 2]).any()
    both = {tuple(np.sign(image[0, 0, :1] - 100)) for image in changed(bright, brightness=0.5)}
    assert both >= {(1,), (-1,)}


def test_random_boxes_have_the_shares_and_shapes_that_are_asked_for() -> None:
    picture, random = PixelPicture(photo(1, 300, 400)), rng(1)
    boxes = [random_crop_box(picture, (0.2, 0.8), (0.5, 2.0), random) for _ in range(500)]
    shares = [box.height * box.width / 120_000 for box in boxes]
    shapes = [box.width / box.height for box in boxes]
    assert 0.19 < min(shares) < 0.25 and 0.7 < max(shares) < 0.81
    assert 0.49 < min(shapes) < 0.6 and 1.7 < max(shapes) < 2.02
    assert all(box.top + box.height <= 300 and box.left + box.width <= 400 for box in boxes)
    places = [(box.top / (301 - box.height), box.left / (401 - box.width)) for box in boxes]
    assert np.mean(places, axis=0) == pytest.approx(0.5, abs=0.05)


def test_about_half_of_two_operations_are_applied() -> None:
    image = Image.fromarray(photo())
    config = AugmentationConfig(rand_augment=9)
    same = sum(
        np.array_equal(np.asarray(rand_augment(image, config, np.random.default_rng(n))), photo())
        for n in range(200)
    )
    assert 30 < same < 90  # a quarter, and where an operation finds nothing to change


def test_strengths_of_operations_are_normal_and_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    strengths: list[float] = []
    monkeypatch.setattr(
        augmentation, "OPERATIONS", {"": lambda image, strength, _: strengths.append(strength)}
    )
    config = AugmentationConfig(rand_augment=2, rand_augment_std=2.0)
    for number in range(1000):
        rand_augment(None, config, rng(number))
    assert 900 < len(strengths) < 1100
    assert np.mean(np.array(strengths) == 0) == pytest.approx(
        0.159, abs=0.03
    )  # below one deviation
    assert np.median(strengths) == pytest.approx(0.2, abs=0.02) and 0.6 < max(strengths) <= 1
