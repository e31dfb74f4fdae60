"""Commands on runs of vision and language: answers, judgements, captions; exports to begin with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.cli import main
from magneto.recipe import load_recipe
from magneto.vision_language.caption_decoding import CaptionSearch
from magneto.vision_language.config import MaskedDataModelConfig
from magneto.vision_language.finetuning import held_config, is_exported
from magneto.vision_language.model import MaskedDataModel
from tests.commands import answer, outcome, refused
from tests.unit.vision_language.folders import COLOURS, image_file, png
from tests.unit.vision_language.small_tasks import caption_task, question_task, run, statement_task

Capture = pytest.CaptureFixture[str]


def place(factory: pytest.TempPathFactory, name: str, task: Any, **changes: Any) -> Path:
    """Return a folder with "data" and a "run" of two steps on it."""
    folder = factory.mktemp(name)
    (folder / "data").mkdir()
    run(task(folder / "data", **changes), folder / "run", steps=2)
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    return place(tmp_path_factory, "questions", question_task, tokenizer="auto", vocab_size=300,
                 validation_seed=3)  # fmt: skip


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place(tmp_path_factory, "statements", statement_task)


def test_predict_answers_a_question(questions: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "red.png").write_bytes(png(COLOURS["red"]))
    words = ["predict", questions / "run", tmp_path / "red.png"]
    (found,) = answer(capsys, *words, "What colour is it?")["images"]
    assert {row["label"] for row in found["labels"]} == {"blue", "no", "red", "yes"}
    shares = [row["share"] for row in found["labels"]]
    assert shares == sorted(shares, reverse=True) and all(0 < share < 1 for share in shares)
    assert "add the question in quotes after the images" in refused(capsys, *words)


def test_the_leaderboards_file(questions: Path, tmp_path: Path, capsys: Capture) -> None:
    """The run's own answers and tokenizer are enough; no training data is read."""
    shutil.copytree(questions / "data", tmp_path / "test")
    for path in (tmp_path / "test").rglob("*2014*.*"):
        path.unlink()
    file = tmp_path / "answers.json"
    file.write_text("answers of an earlier model")
    asked = ["evaluate", questions / "run", "--data", tmp_path / "test",
             "--data.validation_split", "test-dev2015", "--answers", file]  # fmt: skip
    metrics = answer(capsys, *asked)
    assert metrics["questions"] == 12 and "accuracy" not in metrics
    rows = json.loads(file.read_text())
    assert [row["question_id"] for row in rows] == sorted(
        10 * number + i for number in range(2001, 2007) for i in (0, 1)
    )
    assert {row["answer"] for row in rows} <= {"blue", "no", "red", "yes"}
    assert "all questions" in refused(capsys, *asked, "--limit", 1)
    # What is wrong with the place is said before the data is read.
    for wrong, message in (
        (tmp_path, f"--answers {tmp_path} is a folder"),
        (file / "new" / "a.json", f"--answers: {file} is a file; name a folder"),
    ):
        assert message in refused(capsys, "evaluate", questions / "run", "--answers", wrong)


def test_a_run_is_not_measured_on_its_training(questions: Path, capsys: Capture) -> None:
    """Its own data is refused, with the settings that measure what was held out."""
    wrong: list[dict[str, object]] = [
        {"validation_split": "val2014"}, {"validation_seed": 0}, {"validation_images": 3},
        {"validation_split": "val2014", "source": questions / "data" / ".." / "data"},
    ]  # fmt: skip
    for data in wrong:
        settings = [f"--data.{name}={value}" for name, value in data.items()]
        line = refused(capsys, "evaluate", questions / "run", *settings)
        assert "--data.validation_split held_out --data.validation_images 2" in line
        assert "--data.validation_seed 3" in line
    for setting in ("validation_images=1", "validation_split=test2015",
                    f"image_folder={questions / 'data'}"):  # fmt: skip
        code, _, err = outcome(capsys, "evaluate", questions / "run", f"--data.{setting}")
        assert code == 0 and "trained on" not in err


def test_other_data_is_measured(questions: Path, tmp_path: Path, capsys: Capture) -> None:
    """Images with the same names may have other questions: that is said, and measured."""
    shutil.copytree(questions / "data", tmp_path / "copy")
    words = ["evaluate", questions / "run", "--data", tmp_path / "copy", "--json"]
    code, out, err = outcome(capsys, *words, "--data.validation_split=val2014")
    assert code == 0 and "accuracy" in json.loads(out)
    (line,) = [each for each in err.splitlines() if "training images" in each]
    assert "4 of the 6 images" in line and "COCO_val2014_" in line


def test_the_images_of_other_data_are_not_in_the_folder_of_the_training_images(
    questions: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(questions / "run", tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(
        recipe.read_text().replace("image_folder: null", f"image_folder: {questions / 'data'}")
    )
    other = tmp_path / "other.jsonl"
    image = image_file(Path(), "train2014", 1)
    assert (questions / "data" / image).is_file()
    other.write_text(json.dumps({"image": str(image), "question": "what?", "answer": "red"}))
    line = refused(capsys, "evaluate", tmp_path / "run", "--data", other)
    assert f"such as {tmp_path / image}: set data.image_folder" in line
    folder = f"--data.image_folder={questions / 'data'}"
    found = answer(capsys, "evaluate", tmp_path / "run", "--data", other, folder)
    assert "accuracy" in found


def test_predict_judges_a_statement_about_two_images(statements: Path, capsys: Capture) -> None:
    images = [str(statements / "data" / "dev" / f"dev-0-0-img{side}.png") for side in (0, 1)]
    text, words = "the left one is darker", ["predict", statements / "run"]
    found = answer(capsys, *words, *images, text)["images"]
    assert found[0]["labels"] == found[1]["labels"]
    assert {one["label"] for one in found[0]["labels"]} == {"True", "False"}
    assert sum(one["share"] for one in found[0]["labels"]) == pytest.approx(1.0)
    for given, message in (
        ([images[0], text], "statement needs 2 images, so give a multiple of 2 images, not 1"),
        ([*images, ""], 'img0.png "..."'),
        ([*images, "other.png"], "add the statement in quotes after the images"),
        ([text, *images], 'img0.png "..."'),
        (
            [*images, "word " * 30],
            "the statement has 149 tokens, more than the model's maximum of 22",
        ),
    ):
        assert message in refused(capsys, *words, *given)


def test_predict_pairs_no_image_with_that_of_another_statement(
    statements: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Where one of two images is broken, the other waits for none of the next two."""
    images = []
    for name in ("0-0-img0", "0-0-img1", "0-1-img0", "0-1-img1", "1-0-img0", "1-0-img1"):
        images.append(tmp_path / f"{name}.png")
        shutil.copy(statements / "data" / "dev" / f"dev-{name}.png", images[-1])
    words = ["predict", statements / "run", *images, "the left one is darker"]
    whole = answer(capsys, *words)["images"]
    for number in (1, 2):
        images[number].write_bytes(b"no image")
    found = answer(capsys, *words)
    # A batch of another size is multiplied in another order on some processors.
    for image, other in zip(found["images"], whole[4:], strict=True):
        assert image["path"] == other["path"]
        shares, expected = ({label["label"]: label["share"] for label in one["labels"]}
                            for one in (image, other))  # fmt: skip
        assert shares == pytest.approx(expected, rel=1e-5)
    why = {row["path"]: row["reason"] for row in found["broken"]}
    assert why[str(images[0])] == f"left out, because {images[1]} is unreadable" and len(why) == 4
    images[4].write_bytes(b"no image")
    assert "each group of 2 images has an unreadable image" in refused(capsys, *words)


def test_generate_describes_images(
    tmp_path_factory: pytest.TempPathFactory, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place(tmp_path_factory, "captions", caption_task, model={"max_length": 8})
    images = folder / "data" / "val2014"
    for words, lines in (([images / "COCO_3.jpg", "--beams", "2"], 1), ([images], 2)):
        capsys.readouterr()
        assert main(["generate", str(folder / "run"), *map(str, words)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == lines
    assert "give an image" in refused(capsys, "generate", folder / "run")
    line = refused(capsys, "generate", folder / "run", images, "--count", "2")
    assert "--count has no effect with image-captioning runs" in line
    asked: list[CaptionSearch] = []
    search = "magneto.vision_language.caption_decoding.CaptionWriter.search"
    monkeypatch.setattr(search, lambda _, images, how: asked.append(how) or [[]] * len(images))
    words = ["generate", folder / "run", images / "COCO_3.jpg"]
    for options in ("", "--beams 2", "--length-penalty 1.5"):
        answer(capsys, *words, *options.split())
    assert asked == [CaptionSearch(), CaptionSearch(beams=2), CaptionSearch(length_penalty=1.5)]


SIZES: dict[str, Any] = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "patch_size": 16}
PIECES = 60


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small weights of pre-training, by their authors' names, and beit3.spm."""
    pytest.importorskip("transformers")
    pytest.importorskip("sentencepiece")
    from magneto.hf.conversion import write_weights
    from tests.oracles.test_hf_beit3_tokenizer import train as train_spm

    folder = tmp_path_factory.mktemp("released")
    torch.manual_seed(0)
    config = MaskedDataModelConfig(
        **SIZES, placement="sub", image_size=32, vocab_size=PIECES, codes=6, max_length=70,
        embedding_scale="none",
    )  # fmt: skip
    state, _ = write_weights(MaskedDataModel(config), "beit3")
    torch.save({"model": state}, folder / "beit3_small_patch16_32.pth")
    (folder / "heads.json").write_text(json.dumps({"encoder_attention_heads": 4}))
    train_spm(folder)
    return folder


def test_fine_tuning_begins_with_converted_weights(released: Path) -> None:
    """At another image size, with its tokenizer, by the ordinary option."""
    weights, converted = released / "beit3_small_patch16_32.pth", released / "converted"
    more = ["--config", released / "heads.json", "--tokenizer", released / "beit3.spm"]
    assert main(["convert", *map(str, (weights, converted, *more))]) == 0
    assert is_exported(converted) and held_config(converted).image_size == 32
    changes = {f"model.{name}": value for name, value in SIZES.items()}
    changes |= {"model.embedding_scale": "none", "model.pretrained": str(converted),
                "model.image_size": 48}  # fmt: skip
    recipe = load_recipe("visual-question-answering/tiny", changes)
    task: Any = recipe.build_task()
    task.prepare()
    model = task.build_model()
    assert task.tokenizer.vocab_size == model.config.vocab_size == PIECES
    assert task.framed("training", ["a blue cross"])[0][0] == 0
    state = torch.load(weights)["model"]
    found = task.initial_weights()
    assert found.keys() == {n for n in model.state_dict() if n.startswith("encoder.")}
    words = found["encoder.text_embedding.words.table.weight"]
    assert torch.equal(words.read(), state["beit3.text_embed.weight"])
    positions = found["encoder.text_embedding.positions.weight"]
    assert torch.equal(positions, state["beit3.encoder.embed_positions.B.weight"][2:34])
    vision = found["encoder.vision_embedding.positions.weight"]
    assert vision.shape == (10, 32)
    wider = {**changes, "model.ffn_width": 96, "data.source": "missing"}
    with pytest.raises(ValueError, match="set --model"):
        load_recipe("visual-question-answering/tiny", wider).build_task().prepare()
    assert torch.equal(vision[0], state["beit3.encoder.embed_positions.A.weight"][2])
