"""Decoding of image files to upright 8-bit RGB pixels, and decoding of mask files.

If the package simplejpeg is installed, it decodes RGB and grey JPEG files. Pillow decodes all other
files, and the JPEG files that simplejpeg refuses.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from magneto.data.media import MediaColumn
from magneto.data.problems import BadRecord, guarded
from magneto.files import import_extra

# A larger image is refused before it is decoded: Pillow's own limit on decompression bombs, in
# pixels. 268 MB in memory.
MOST_PIXELS = 89_478_485
# Divisors of height and width by which a JPEG can be decoded at a smaller size, at less cost.
SCALES = (8, 4, 2, 1)
ORIENTATION = 0x0112  # in Exif
# Steps between the values of grey images of 2 and 4 bits, which Pillow scales to 0 to 255.
GREY_STEPS = {"L;2": 85, "L;4": 17}
# Lossless formats of masks, by Pillow's names.
EXACT = ("PNG", "BMP")
# Colour behind transparent pixels: white, as in a browser.
BACKGROUND = (255, 255, 255, 255)


class BrokenImage(BadRecord):
    """Error for an image that can't be read."""


class PixelPicture:
    """Decoded image in memory, uint8 (height, width, channels); see `EncodedPicture`."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.height, self.width = pixels.shape[:2]
        self._pixels = pixels

    def pixels(self, scale: int = 1) -> np.ndarray:
        return self._pixels


class EncodedPicture:
    """Image file whose pixels are decoded on demand; of an animation, only the first frame is used.

    Args:
        content: Bytes of the file.
        refused: Callback that gets an error message of simplejpeg. `refused` is called if only
            Pillow can decode the file.

    Raises:
        BrokenImage: If Pillow can't identify the image, or the image has more than
            `MOST_PIXELS`.
    """

    def __init__(self, content: bytes, refused: Callable[[str], None] = lambda why: None) -> None:
        self.content, self.refused = content, refused
        self._image = open_by_pillow(content)
        self._orientation = orientation(self._image)
        self.width, self.height = self._image.size
        if self._orientation > 4:
            self.width, self.height = self.height, self.width

    def pixels(self, scale: int = 1) -> np.ndarray:
        """Return upright RGB pixels, uint8 (height, width, 3).

        With a `scale` from `SCALES`, a JPEG may be decoded at 1 / `scale` of its size.
        """
        found, why = None, ""
        if self._image.format == "JPEG" and self._image.mode in ("RGB", "L"):
            try:
                with guarded():
                    found = decode_jpeg(self.content, scale)
            except BadRecord as error:
                why = str(error)
        if found is None:
            found = decode_by_pillow(open_by_pillow(self.content), scale)
            if why:
                self.refused(why)
        return apply_orientation(found, self._orientation)


Picture = EncodedPicture | PixelPicture
"""Image with a known size, whose pixels are in memory or are decoded on demand."""


def pillow(module: str = "Image") -> Any:
    return import_extra(f"PIL.{module}", "vision", "images need Pillow")


@cache
def simplejpeg() -> Any:
    try:
        return import_extra("simplejpeg", "vision", "")
    except ModuleNotFoundError:
        return None


def open_by_pillow(content: bytes) -> Any:
    with guarded(BrokenImage):
        library = pillow()
        try:
            image = library.open(io.BytesIO(content))
        except library.UnidentifiedImageError as error:  # its message contains a memory address
            raise BrokenImage("Pillow does not recognise an image in this file") from error
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise BrokenImage(f"{width} x {height} pixels exceed the limit of {MOST_PIXELS:,}")
        return image


def orientation(image: Any) -> int:
    if image.format == "TIFF":
        return 1  # Pillow applies the orientation itself
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged Exif data of a good image
        return 1
    return found if found in range(1, 9) else 1


def apply_orientation(pixels: np.ndarray, way: int) -> np.ndarray:
    """Rotate and flip pixels upright; `way` is Exif's orientation, from 1 to 8."""
    if way > 4:
        pixels = pixels.swapaxes(0, 1)
    if way in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if way in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def decode_jpeg(content: bytes, scale: int) -> np.ndarray | None:
    # Unlike Pillow, it raises ValueError for a stray byte between two markers.
    library = simplejpeg()
    if library is None:
        return None
    height, width = library.decode_jpeg_header(content)[:2]
    least = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
    return library.decode_jpeg(content, "RGB", **least)


def decode_by_pillow(image: Any, scale: int) -> np.ndarray:
    with guarded(BrokenImage):
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
        return np.asarray(to_rgb(image))


def to_rgb(image: Any) -> Any:
    """Convert an image to RGB; 16 bits become 8, and transparent parts become white."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        grey = (wide.clip(0, 65535) + 128) // 257
        return pillow().fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BrokenImage("pixels are floating-point numbers of unknown range: save 8-bit pixels")
    if image.has_transparency_data:
        above = image.convert("RGBA")
        below = pillow().new("RGBA", above.size, BACKGROUND)
        return pillow().alpha_composite(below, above).convert("RGB")
    return image.convert("RGB")


def decode_mask(content: bytes) -> np.ndarray:
    """Decode a mask to its stored class numbers, uint8 (height, width)."""
    image = open_by_pillow(content)
    if image.format not in EXACT:
        raise BrokenImage(f"a mask must be PNG or BMP, not {image.format}: save it as PNG")
    if image.mode not in ("L", "P", "1") and not image.mode.startswith("I"):
        raise BrokenImage(
            f"a mask must have class numbers as pixels, not colours (mode {image.mode})"
        )
    how = image.tile[0][3] if image.tile else ""  # in the file: "L;4", for example
    step = GREY_STEPS.get(str(how[0] if isinstance(how, tuple) else how), 1)
    with guarded(BrokenImage):
        found = np.asarray(image)
    if found.size and found.max() > 255:
        raise BrokenImage(f"class {found.max()} is above 255, the highest class number of a mask")
    return apply_orientation(found.astype(np.uint8) // step, orientation(image))


class Pixels(MediaColumn):
    """Column of decoded images in memory, with pixel values from 0 to `peak`.

    Images are uint8 (count, height, width, channels), and masks are uint8 (count, height, width).
    """

    def __init__(self, pixels: np.ndarray, peak: int = 255) -> None:
        self.all, self.peak = pixels, peak

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, number: int) -> PixelPicture:
        return PixelPicture(self.all[number])

    def key(self, number: int) -> str:
        return str(number)

    def name(self, number: int) -> str:
        return f"image {number}"

    def sizes(self) -> np.ndarray:
        return np.full(len(self.all), self.all[0].nbytes, np.int64)

    def read(self, number: int) -> bytes:
        return self.all[number].tobytes()


def open_image(value: Any, refused: Callable[[str], None]) -> Picture:
    with guarded(BrokenImage):
        return value if isinstance(value, PixelPicture) else EncodedPicture(value.read(), refused)


def open_mask(value: Any) -> np.ndarray:
    with guarded(BrokenImage, "its mask: "):
        return value.pixels() if isinstance(value, PixelPicture) else decode_mask(value.read())
