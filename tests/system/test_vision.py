"""Commands on a small run of colours: other images, some of the classes, frozen features; ranks."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from magneto.runs import load_run
from magneto.vision.classification import ImageClassification
from tests.commands import answer, printed, refused
from tests.ranks import run_ranks
from tests.unit.vision.image_files import write_colours
from tests.unit.vision.small import COLOURS, SMALL, striped, tensors, train_classifier, train_small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    return train_classifier(tmp_path_factory.mktemp("colours"))


def test_some_of_the_classes(run: Path, tmp_path: Path, capsys) -> None:
    """Images of two classes that look like others: right only where these are no candidates."""
    wrong = {"n01000002": "red", "n01000003": "blue"}
    other = write_colours(tmp_path / "other", wrong, 3)
    found = answer(capsys, "evaluate", run, "--data", str(other))
    assert found["accuracy"] == 0.5
    own = ["--data.validation_source", str(run.parent / "images")]
    assert answer(capsys, "evaluate", run, "--data", str(other), *own)["accuracy"] == 1
    present = ["--data", str(other), "--data.candidates", "present"]
    task = load_run(run, "auto", {"data.source": str(other), "data.validation_source": str(other),
                                  "data.candidates": "present"}).task  # fmt: skip
    assert isinstance(task, ImageClassification)
    assert task.candidates.isfinite().nonzero()[:, 0].tolist() == [1, 2]
    restricted = answer(capsys, "evaluate", run, *present, "--limit", "9", "--keep", "colours-a")
    assert restricted["calibration_error"] != found["calibration_error"]
    kept = json.loads((run / "scores" / "colours-a.json").read_text())
    assert kept["metrics"]["accuracy"] == restricted["accuracy"]
    assert kept["overrides"]["data.source"] == str(other) and kept["limit"] == 9
    assert "letters, digits" in refused(capsys, "evaluate", run, "--keep", "a/b")


def test_folders_that_are_numbers(run: Path, tmp_path: Path, capsys) -> None:
    """Of ImageNet-V2, where 10 is the eleventh class, not the third."""
    numbers = {str(n): colour for n, colour in enumerate(COLOURS.values())}
    v2 = write_colours(tmp_path / "v2", numbers, 2)
    assert answer(capsys, "evaluate", run, "--data", str(v2))["accuracy"] == 1
    (v2 / "0").rename(v2 / "6")
    line = refused(capsys, "evaluate", run, "--data", v2)
    assert "unknown class '1'. The 6 known classes" in line


def test_a_run_keeps_the_names_that_a_file_gave(run: Path, tmp_path: Path) -> None:
    """The file may be another one by now, or gone."""
    copy, lines = tmp_path / "run", tmp_path / "wnids.txt"
    shutil.copytree(run, copy)
    text = (copy / "recipe.yaml").read_text()
    (copy / "recipe.yaml").write_text(text.replace("class_names: null", f"class_names: {lines}"))
    for words in (None, [*reversed(COLOURS)]):
        if words:
            lines.write_text("\n".join(words))
        opened = load_run(copy, "auto", {})
        assert isinstance(opened.task, ImageClassification)
        assert opened.task.names == list(COLOURS)
    others = load_run(copy, "auto", {"data.class_names": str(lines)}).task
    assert isinstance(others, ImageClassification) and others.names == [*reversed(COLOURS)]


def test_frozen_features_of_a_run(run: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("sklearn")
    found = answer(capsys, "evaluate", run, "--features")
    assert (found["training_images"], found["validation_images"]) == (36, 12)
    assert len(found["scores"]) == 6
    assert max(score["linear"] for score in found["scores"]) > 0.9
    other = write_colours(tmp_path / "other", {"red": "red", "blue": "blue"}, 12)
    out = printed(capsys, "evaluate", run, "--features", "--data", other)
    head, columns, *lines = out.splitlines()
    assert "training images" in head and columns.split()[:3] == ["layer", "[CLS]", "linear"]
    assert [line.split()[0] for line in lines] == ["embeddings", "1", "2"]
    for path in (other / "red").iterdir():
        path.rename(other / path.name)
    line = refused(capsys, "evaluate", run, "--features", "--data", other)
    assert "some images have no label" in line


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "strategy"), [*((name, "ddp") for name in SMALL), ("image-modelling", "fsdp")]
)
def test_ranks_agree(name: str, strategy: str, tmp_path: Path) -> None:
    """With one process; and codebooks, which no gradient moves, to the bit."""
    pytest.importorskip("sklearn")
    same = striped(name, tmp_path / "data")
    train_small(name, tmp_path / "one", **same)
    words = [f"{key}={value}" for key, value in same.items()]
    script, run = "tests/unit/vision/small.py", tmp_path / "two"
    run_ranks(2, script, name, str(run), f"training__distributed={strategy}", *words)
    one, two = (tensors(tmp_path / place / "final") for place in ("one", "two"))
    for key, tensor in one.items():
        assert torch.allclose(two[key], tensor, atol=1e-4), key
    if name == "image-tokenizer":
        books = [torch.load(run / f"codebook-{rank}.pt") for rank in range(2)]
        assert books[0]["vectors"].any()
        assert all(torch.equal(books[0][key], books[1][key]) for key in books[0])
