"""Training a visual tokenizer: it learns, however a batch is cut; ranks agree to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from magneto.recipe import load_recipe
from magneto.runs import load_run
from magneto.training.task import figures_of, place_companion
from magneto.vision.codebook import k_means
from magneto.vision.tokenizer import ImageTokenization
from magneto.weights import open_tensors
from tests.evaluating import reads_while_scoring
from tests.ranks import run_ranks
from tests.said import Said
from tests.vision.tokenizer.trained import SMALL, train_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def digits() -> None:
    pytest.importorskip("sklearn")


def build(**changes: Any) -> ImageTokenization:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    task = load_recipe("image-tokenizer/tiny", {**SMALL, **given}).build_task()
    task.prepare()
    place_companion(task, CPU)
    assert isinstance(task, ImageTokenization)
    return task


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(directory).items()}


def test_it_learns_and_uses_its_codes(tmp_path: Path) -> None:
    result = train_tokenizer(tmp_path, training__steps=80, model__width=32)
    baseline = build().baseline()
    assert result.metrics["cosine"] > baseline["cosine"] + 0.1
    assert result.metrics["loss"] < baseline["loss"]
    assert result.metrics["codebook_use"] > 0.6
    assert 4 < result.metrics["codebook_perplexity"] <= 16


def test_micro_batches_change_nothing(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "whole", training__steps=8)
    train_tokenizer(tmp_path / "cut", training__steps=8, training__gradient_accumulation_steps=4)
    whole, cut = (tensors(tmp_path / name / "final") for name in ("whole", "cut"))
    for name, tensor in whole.items():
        assert torch.allclose(cut[name], tensor, atol=1e-5), name


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    same = {"training__schedule": "constant", "training__save_every": 5}
    train_tokenizer(tmp_path / "whole", **same)
    train_tokenizer(tmp_path / "resumed", **same, training__steps=7)
    train_tokenizer(tmp_path / "resumed", **same, resume=True)
    whole, resumed = (tensors(tmp_path / name / "final") for name in ("whole", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert whole["tokenizer.codebook.revived"] > 0


@pytest.mark.distributed
def test_ranks_have_the_same_codebook(tmp_path: Path) -> None:
    """Each rank writes what it ends with; both agree to the bit, and with one process."""
    train_tokenizer(tmp_path / "one")
    script = "tests/vision/tokenizer/trained.py"
    run_ranks(2, script, str(tmp_path / "two"), "training__distributed=ddp")
    one, two = (tensors(tmp_path / name / "final") for name in ("one", "two"))
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, atol=1e-5), name
    codebooks = [torch.load(tmp_path / "two" / f"codebook-{rank}.pt") for rank in range(2)]
    assert codebooks[0].keys() == codebooks[1].keys() and codebooks[0]["vectors"].any()
    assert all(torch.equal(codebooks[0][key], codebooks[1][key]) for key in codebooks[0])
    assert torch.equal(codebooks[0]["vectors"], two["tokenizer.codebook.vectors"])


def test_the_codebook_begins_with_k_means_of_several_batches() -> None:
    task = build(model__k_means_patches=70)  # 16 codes: three batches of 32 images of 16 patches
    torch.manual_seed(0)
    model = task.build_model()
    stream = task.train_stream(32, 1).batches(2, [0, 1])
    pieces = [next(stream) for _ in range(3)]
    asked = iter([*pieces, None])
    gathered: list[int] = []

    def gather(rows: torch.Tensor) -> torch.Tensor:
        gathered.append(len(rows))
        return torch.cat((rows, rows)) if len(rows) == 16 else rows  # a second rank's codebook

    task.begin_training(model, asked, gather)  # type: ignore[arg-type]
    assert gathered == [512, 512, 512, 16] and next(asked) is None
    images = torch.cat([piece["images"] for batch in pieces for piece in batch])
    with torch.no_grad():
        rows = model.tokenizer.features(images).flatten(0, 1)
    expected = k_means(rows, 16, task.model_config.k_means_iterations, task.seed)
    assert torch.allclose(model.tokenizer.codebook.vectors, expected, atol=1e-5)


def test_the_loss_is_a_sum_over_patches() -> None:
    task = build(model__commitment=0.5)
    torch.manual_seed(0)
    model = task.build_model()
    batch = task.train_stream(8, 1).batch(0)[0]
    loss = task.loss(model, batch)
    assert loss.count == 8 * 16
    found, wanted = model(batch["images"]), task.teacher(batch["images"])
    cosine = F.cosine_similarity(found.predictions, wanted, dim=-1)
    expected = (1 - cosine).sum() + 0.5 * found.distances.sum()
    assert torch.allclose(loss.total, expected, rtol=1e-5)
    assert torch.allclose(loss.logs["cosine"], cosine.sum(), rtol=1e-5)


def test_use_and_perplexity_are_of_the_codes_that_occur() -> None:
    task = build()
    sums = {"apart": 4.0, "distance": 1.0, "count": 16.0, "used": [4.0] * 4 + [0.0] * 12}
    found = task.summarise(sums, ())
    assert found["codebook_use"] == 0.25
    assert found["codebook_perplexity"] == pytest.approx(4.0)
    assert found["loss"] == pytest.approx(5 / 16) and found["cosine"] == 0.75


def test_scores_count_every_patch_once_and_wait_for_nothing(monkeypatch) -> None:
    task = build()
    torch.manual_seed(0)
    model = task.build_model().eval()
    batch = dict(task.validation_batches()[0])
    with torch.no_grad():
        whole = task.score(model, batch).sums
        codes = model.tokenizer.encode(batch["images"])
        batch["broken"] = torch.arange(len(batch["images"])) > 1
        two = task.score(model, batch).sums
    assert torch.equal(whole["used"], codes.flatten().bincount(minlength=16).float())
    assert torch.equal(two["used"], codes[:2].flatten().bincount(minlength=16).float())
    assert whole["count"] == codes.numel() and two["count"] == 32
    assert reads_while_scoring(task, monkeypatch) == []


def test_validation_images_of_which_none_can_be_read_are_one_line() -> None:
    sums = {"apart": 0.0, "distance": 0.0, "count": 0.0, "used": [0.0] * 16}
    with pytest.raises(ValueError, match="no validation image can be read"):
        build().summarise(sums, ())


def test_the_baseline_is_the_mean_direction() -> None:
    task = build()
    train = torch.cat([b["images"] for b in list(task.fixed_batches(task.splits.train))[:8]])
    held = torch.cat([b["images"] for b in task.validation_batches()])
    mean = F.normalize(task.teacher(train), dim=-1).flatten(0, 1).mean(0)
    cosine = F.cosine_similarity(task.teacher(held), mean.expand(1, 1, -1), dim=-1).mean()
    assert task.baseline()["cosine"] == pytest.approx(cosine.item(), abs=1e-5)
    assert task.baseline()["loss"] == pytest.approx(1 - cosine.item(), abs=1e-5)
    assert task.baseline(limit=1) != task.baseline()


def test_too_many_codes_for_the_images_are_warned_of() -> None:
    """1438 images of 16 patches are enough for 1917 codes."""
    few, enough = Said(), Said()
    load_recipe("image-tokenizer/tiny", {**SMALL, "model.codes": 8192}).build_task().prepare(few)  # type: ignore[arg-type]
    load_recipe("image-tokenizer/tiny", {**SMALL, "model.codes": 1024}).build_task().prepare(enough)  # type: ignore[arg-type]
    assert few.lines[1:] == ["23,008 patches are few for 8192 codes, and some will stay unused: "
                             "try model.codes 1024"]  # fmt: skip
    assert enough.lines[1:] == []


def test_what_does_not_fit_is_said() -> None:
    for change, said in (
        ({"data.normalisation": "imagenet"}, "data.normalisation must be half"),
        ({"model.target_width": 7}, "features have a width of 5, model.target_width is 7"),
        ({"model.channels": 3}, "images of 1 channel, the model takes 3"),
    ):
        task = load_recipe("image-tokenizer/tiny", {**SMALL, **change}).build_task()
        with pytest.raises(ValueError, match=said):
            task.prepare()


def test_a_run_is_opened_without_its_teacher(tmp_path: Path) -> None:
    train_tokenizer(tmp_path, training__steps=2)
    found = load_run(tmp_path, "auto", {"model.teacher": "clip:nowhere"})
    assert found.recipe.model.target_width == 5
    other = build(model__teacher="hog")
    with pytest.raises(ValueError, match="data"):
        train_tokenizer(tmp_path, resume=True, training__steps=4, data__validation_fraction=0.3)
    assert other.teacher.digest() != build().teacher.digest()


def test_figures_of_a_model() -> None:
    task = build()
    torch.manual_seed(0)
    figures = figures_of(task, task.build_model().eval())
    assert [figure.name for figure in figures] == ["codes", "reconstructions"]
    assert replace(figures[0], image=b"").caption.count(",") >= 2
