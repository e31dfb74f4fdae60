"""`magneto report` of a finished run and of an unfinished one without weights."""

import json
import shutil
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.vision.classification import ImageClassification
from tests.commands import answer, refused

pytestmark = pytest.mark.usefixtures("without_rendering")


def test_a_run(digits_run: Path, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data is read once."""
    read, original = [], ImageClassification.prepare
    monkeypatch.setattr(
        ImageClassification,
        "prepare",
        lambda task, *given: (read.append(task), original(task, *given)),
    )
    run = tmp_path / "run"
    shutil.copytree(digits_run, run)
    result = json.loads((run / "result.json").read_text())
    changed = {"best": {"value": 0.625, "step": 4}, "seconds": 150.0}
    (run / "result.json").write_text(json.dumps({**result, **changed}))
    output = answer(capsys, "report", run, "--out", tmp_path / "page")
    text = Path(output["page"]).read_text()
    accuracy = result["metrics"]["accuracy"]
    assert f"validation accuracy: {accuracy:.4g} (trivial baseline: " in text
    assert "Best accuracy: 0.625 at step 4." in text
    assert "Status: finished at step 6 after 2:30." in text
    assert str(tmp_path) not in text and "Data problems" not in text
    assert len(read) == 1
    line = refused(capsys, "report", run, "--out", output["page"])
    assert "is a file; name a folder" in line and len(read) == 1


def test_a_run_that_has_not_ended_and_what_was_wrong_with_its_data(
    digits_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(digits_run, copy)
    (copy / "data_problems.tsv").write_text("broken image\ta.jpg\tcut off\nbroken image\tb\tx\n")
    first, last = {"validation_loss": 2.5, "validation_iou_cat": 0.0}, {"validation_loss": 1.25}
    rows = [{"step": 1, "loss": 2.5}, {"step": 1, **first}, {"step": 2, **last}]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (copy / "result.json").unlink()
    recipe = (copy / "recipe.yaml").read_text()
    place = recipe.replace("image_column: null", f"image_column: {copy}")
    (copy / "recipe.yaml").write_text(place)
    for name in ("best", "final", "checkpoints"):
        shutil.rmtree(copy / name)
    assert main(["report", str(copy)]) == 0
    text = (copy / "report" / "report.html").read_text()
    assert "Data problems: broken image: 2. data_problems.tsv lists them." in text
    assert "it has not ended" in text
    assert "image_column: copy" in text and str(tmp_path) not in text
    assert '<th scope="row">loss</th><td>1.25</td>' in text
    assert '<th scope="row">iou_cat</th>' not in text
