"""`magneto predict` on images: labels, segmented images, and files that are not images."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.commands import answer, outcome, printed, refused
from tests.unit.vision.image_files import Image
from tests.unit.vision.small import striped, train_classifier, train_small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    made = train_classifier(tmp_path_factory.mktemp("predict"))
    shutil.rmtree(made.parent / "images")  # predicting needs no training data
    return made


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, colour in (("a.png", "red"), ("b.jpg", "blue"), ("c.gif", "white")):
        Image.new("RGB", (20, 10), colour).save(folder / name)
    return folder


def test_a_table(run: Path, images: Path, capsys, monkeypatch) -> None:
    """The inputs are a folder, an image, and standard input."""
    content = io.BytesIO((images / "a.png").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content))
    words = ["predict", run, images, images / "a.png", "-", "--top", "2"]
    lines = printed(capsys, *words).splitlines()
    names = [*(str(images / name) for name in ("a.png", "b.jpg", "c.gif", "a.png")), "-"]
    assert [line.split()[0] for line in lines] == names
    labels = ["n01000001", "n01000003", "n01000004", "n01000001", "n01000001"]
    assert [line.split()[2] for line in lines] == labels
    assert all(len(line.split()) == 5 for line in lines)  # a path, and two labels


def test_json_and_what_is_no_image(run: Path, images: Path, capsys, monkeypatch) -> None:
    """In several batches, of which the last one has no image."""
    monkeypatch.setattr("magneto.commands.predict.BATCH", 2)
    (images / "d.png").write_bytes(b"no image")
    (images / "e.jpg").write_bytes((images / "b.jpg").read_bytes()[:200])
    code, out, err = outcome(capsys, "predict", run, images, "--json", "--top", "7")
    assert code == 0
    found = json.loads(out)
    assert [Path(each["path"]).name for each in found["images"]] == ["a.png", "b.jpg", "c.gif"]
    first = found["images"][0]
    assert sum(label["share"] for label in first["labels"]) == pytest.approx(1, abs=1e-5)
    labels = [each["labels"][0]["label"] for each in found["images"]]
    assert labels == ["n01000001", "n01000003", "n01000004"] and first["pictures"] == []
    assert {Path(each["path"]).name for each in found["broken"]} == {"d.png", "e.jpg"}
    assert "2 of 5 images were left out" in err and "d.png: Pillow does not recognise" in err


def test_mistakes_of_a_user(run: Path, images: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("words")
    os.mkfifo(tmp_path / "pipe.png")
    for words, message in (
        ([tmp_path / "pipe.png"], "is neither a file nor a folder"),
        ([tmp_path / "notes.txt"], "none of 1 files could be read as an image"),
        ([images / "aa.png"], "did you mean"),
        (["-", "-"], "standard input (-) can be given only once"),
        ([images, "--probabilities"], "--probabilities has no effect with image-classification"),
        ([images, "--out", tmp_path], "--out has no effect with image-classification runs"),
    ):
        assert message in refused(capsys, "predict", run, *words)


def test_segmentation_is_drawn(tmp_path: Path, capsys) -> None:
    run, out, inside = tmp_path / "run", tmp_path / "out", tmp_path / "pairs" / "images"
    train_small("segmentation", run, **striped("segmentation", inside.parent), training__steps=1)
    file = inside / "0.png"
    assert f"--out: {file} is a file" in refused(capsys, "predict", run, inside, "--out", file)
    found = answer(capsys, "predict", run, inside, file, "--out", out)["images"]
    names = [Path(file).name for each in found for file in each["pictures"]]
    assert names == [f"{stem}-segmentation.png" for stem in (*"012345", "0-2")]
    assert sum(label["share"] for label in found[0]["labels"]) == pytest.approx(1)
    drawn = np.asarray(Image.open(io.BytesIO((out / names[0]).read_bytes())))
    assert drawn.ndim == 3 and drawn.shape[1] > drawn.shape[0]
