"""Every kind of image file comes out as 8-bit RGB, upright, or is said to be broken."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest

from magneto.vision import decoding
from magneto.vision.decoding import BrokenImage, EncodedPicture, apply_orientation, decode_mask
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


def test_what_simplejpeg_refuses_pillow_reads() -> None:
    library = pytest.importorskip("simplejpeg")
    whole = encoded(photo(), "JPEG")
    odd = whole[:-40] + whole[-2:]  # the last blocks are missing, the end mark is there
    with pytest.raises(ValueError):
        library.decode_jpeg(odd)
    assert np.array_equal(pixels(odd)[:24], pixels(whole)[:24])


def bomb() -> bytes:
    """A PNG whose header says 100,000 x 100,000."""
    body = b"IHDR" + struct.pack(">IIBBBBB", 10**5, 10**5, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + head + encoded(photo())[33:]


def test_broken_files_are_said_to_be(decoder) -> None:
    whole = encoded(photo(), "JPEG")
    wrong = {
        "empty": b"", "text": b"no image", "cut off": whole[: len(whole) // 2],
        "header alone": whole[:200], "png cut off": encoded(photo())[:900], "bomb": bomb(),
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

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    words = ["".join(f"{number:0{bits}b}" for number in row).ljust(8, "0") for row in rows]
    lines = b"".join(b"\0" + int(word, 2).to_bytes(1) for word in words)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), bits, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_masks_are_numbers_of_classes() -> None:
    for bits, rows in ((1, [[0, 1]]), (2, [[3, 1], [0, 2]]), (4, [[15, 7]])):  # are not spread
        assert decode_mask(grey_png(rows, bits)).tolist() == rows
    mask = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(decode_mask(encoded(mask)), mask)
    palette = Image.fromarray(mask, "P")
    palette.putpalette([255, 0, 0] * 256)
    assert np.array_equal(decode_mask(encoded(palette)), mask)
    assert np.array_equal(decode_mask(encoded(Image.fromarray(mask.astype(np.uint16)))), mask)
    with pytest.raises(BrokenImage, match="not colours"):
        decode_mask(encoded(photo()))
    with pytest.raises(BrokenImage, match="must be PNG or BMP, not JPEG"):
        decode_mask(encoded(mask, "JPEG"))
    with pytest.raises(BrokenImage, match="class 300 is above 255"):
        decode_mask(encoded(Image.fromarray(np.full((2, 2), 300, np.uint16))))
    with pytest.raises(BrokenImage):
        decode_mask(encoded(mask.repeat(50, 0).repeat(50, 1))[:70])
