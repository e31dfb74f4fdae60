"""Images in zip files: the same bytes as zipfile reads; damage is an error that is counted."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from magneto.vision.decoding import BrokenImage
from magneto.vision.images import ImageSplit
from magneto.vision_language.zips import open_zips


def write_zip(path: Path, method: int) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    content = {f"folder/{n}.png": random.bytes(500) + bytes(500) for n in range(3)}
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("read.me", "words")
        for name, value in content.items():
            file.writestr(name, value)
    return content


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read_in_place(method: int, tmp_path: Path) -> None:
    content = write_zip(tmp_path / "a.zip", method)
    store = open_zips([tmp_path / "a.zip"], (".png",))
    assert [store.key(n) for n in range(len(store))] == list(content)
    assert [store.read(n) for n in range(len(store))] == list(content.values())
    assert store.sizes().tolist() == [1000] * 3
    assert store.name(1) == f"{tmp_path / 'a.zip'}, folder/1.png"


def test_damage_is_a_broken_image(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write_zip(path, zipfile.ZIP_DEFLATED)
    store = open_zips([path], (".png",))
    whole = path.read_bytes()
    path.write_bytes(whole[: store.places[2, 1] + 60])
    split = ImageSplit(store, np.arange(3), np.zeros(3, np.int64))
    with pytest.raises(BrokenImage, match="damaged zip file"):
        split.open(2)
    path.write_bytes(b"PK" + whole[2 : len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.zip: damaged zip file"):
        open_zips([path], (".png",))


def test_another_packing_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", zipfile.ZIP_LZMA)
    with pytest.raises(ValueError, match="unpack the archive"):
        open_zips([tmp_path / "a.zip"], (".png",))
