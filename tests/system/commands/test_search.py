"""`magneto search`: image search by text, text search by image, and the cached index."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from magneto.runs import load_run
from tests.commands import outcome, refused
from tests.unit.vision.image_files import encoded, photo, write
from tests.unit.vision_language.small_tasks import retrieval_task, run


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    place = tmp_path_factory.mktemp("retrieval")
    run(retrieval_task(place), place / "run", steps=1)
    return place / "run"


def search(capsys: pytest.CaptureFixture, *words: object) -> tuple[dict, str]:
    """Return the JSON output and stderr of a search."""
    code, out, err = outcome(capsys, "search", *words, "--json")
    assert code == 0
    return json.loads(out), err


def test_the_nearest_are_found_and_the_index_is_kept(
    retriever: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write(tmp_path / "photos" / f"{number}.png", encoded(photo(number)))
    write(tmp_path / "photos" / "broken.png", b"no image")
    (tmp_path / "texts.txt").write_bytes(b"a red square\n\ntwo blue circles \xff\n")
    found, errors = search(capsys, retriever, "a red square", tmp_path / "photos", "--top", 3)
    assert "broken.png" in errors and found["searched"] == 5
    opened = load_run(retriever, "best", {})
    images = [np.asarray(photo(number)) for number in range(5)]
    scores = vectors(opened, [*images, "a red square"])
    likeness = scores[:5] @ scores[5]
    assert [Path(each["found"]).stem for each in found["results"]] == [
        str(n) for n in (-likeness).argsort()[:3]
    ]
    assert found["results"][0]["score"] == pytest.approx(float(likeness.max()), abs=1e-3)
    # Asked again, no image is read; a new one is seen.
    monkeypatch.setattr("magneto.commands.predict.decode_input", lambda path: pytest.fail("read"))
    assert search(capsys, retriever, "circles", tmp_path / "photos")[0]["searched"] == 5
    monkeypatch.chdir(tmp_path / "photos")
    names = {each["found"] for each in search(capsys, retriever, "circles", ".")[0]["results"]}
    assert names == {f"{number}.png" for number in range(5)}
    monkeypatch.undo()
    write(tmp_path / "photos" / "new.png", encoded(photo(9)))
    assert search(capsys, retriever, "circles", tmp_path / "photos")[0]["searched"] == 6
    photo_file, texts = tmp_path / "photos" / "0.png", tmp_path / "texts.txt"
    monkeypatch.setattr("magneto.commands.search.BATCH", 1)
    found, errors = search(capsys, retriever, photo_file, texts)
    lines = ["a red square", "two blue circles \ufffd"]
    known = vectors(opened, [*lines, np.asarray(photo(0))])
    assert {each["found"]: each["score"] for each in found["results"]} == pytest.approx(
        dict(zip(lines, (known[:2] @ known[2]).tolist(), strict=True)), abs=1e-3
    )
    assert f"{texts} (1 line" in errors and f"{texts}, line 3" in errors


def test_other_settings_and_weights_have_another_index(
    retriever: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(retriever, run)
    (tmp_path / "texts.txt").write_text("a red square\n")
    for count, more in ((1, []), (1, []), (2, ["--model.dropout", "0.5"]), (3, [])):
        if count == 3:  # trained on
            (run / "best" / "model.safetensors").touch()
        search(capsys, run, "circles", tmp_path / "texts.txt", *more)
        assert len(list(cache.glob("index-*/names.json"))) == count


def vectors(opened, inputs: list) -> np.ndarray:
    from magneto.vision.decoding import PixelPicture

    made = [each if isinstance(each, str) else PixelPicture(each) for each in inputs]
    return np.stack([each.numpy() for each in opened.task.predict(opened.model, made)])


def test_mistakes_are_one_line(retriever: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    for words, message in (
        (["a dog", tmp_path / "empty"], "no images in"),
        (["dog.png", tmp_path / "empty"], "no image dog.png"),
    ):
        assert message in refused(capsys, "search", retriever, *words)
