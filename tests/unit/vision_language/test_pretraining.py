"""Masked data modelling learns from three streams, whatever a batch is cut into."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.config import ConfigError
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.runs import load_run
from magneto.training.loop import train
from magneto.training.task import place_companion
from magneto.vision_language.pretraining import KINDS, MaskedDataModelling
from magneto.vision_language.pretraining_data import stream_sizes
from magneto.weights import open_tensors
from tests.evaluating import measured, reads_while_scoring
from tests.ranks import run_ranks
from tests.unit.vision.image_files import encoded, photo, write
from tests.unit.vision_language.trained import SMALL, train_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def one_cache(module_cache: Path) -> None:
    pytest.importorskip("tokenizers")


def build(**changes: Any) -> MaskedDataModelling:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    task = load_recipe("vision-language-modelling/tiny", {**SMALL, **given}).build_task()
    task.prepare()
    place_companion(task, CPU)
    assert isinstance(task, MaskedDataModelling)
    return task


@pytest.fixture(scope="module")
def shared() -> MaskedDataModelling:
    return build()


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(directory).items()}


def test_it_learns(tmp_path: Path) -> None:
    changes = {"training__steps": 60, "training__eps": 1e-8, "training__learning_rate": 1e-2,
               "model__width": 32, "training__batch_size": 48}  # fmt: skip
    result = train_model(tmp_path, **changes)
    baseline = build().baseline(1)
    assert result.metrics["paired_text_loss"] < baseline["paired_text_loss"] - 0.5
    assert result.metrics["loss"] < baseline["loss"]
    assert baseline.keys() == result.metrics.keys()


@pytest.mark.slow
def test_the_tiny_recipe_learns_words_and_the_patches_of_pairs(tmp_path: Path) -> None:
    """Measured: 0.51 and 0.69 nats per word, 1.00 per patch of a pair, 1.27 of an image alone."""
    recipe = load_recipe("vision-language-modelling/tiny", {
        "training.device": "cpu", "training.tensorboard": False, "training.evaluate_every": 0,
        "training.save_every": 0,
    })  # fmt: skip
    task = recipe.build_task()
    found = train(task, recipe.training, tmp_path, seed=1, report=ProgressBars(quiet=True)).metrics
    baseline = task.baseline()
    assert found["paired_text_loss"] < baseline["paired_text_loss"] - 1.5
    assert found["text_loss"] < baseline["text_loss"] - 1.5
    assert (
        found["paired_image_loss"] < min(baseline["paired_image_loss"], found["image_loss"]) - 0.1
    )


def test_micro_batches_and_resuming_change_nothing(tmp_path: Path) -> None:
    train_model(tmp_path / "whole")
    train_model(tmp_path / "cut", training__gradient_accumulation_steps=4)
    train_model(tmp_path / "resumed", training__steps=3, training__save_every=3)
    train_model(tmp_path / "resumed", training__save_every=3, training__num_workers=1, resume=True)
    runs = {name: tensors(tmp_path / name / "final") for name in ("whole", "cut", "resumed")}
    for name, tensor in runs["whole"].items():
        assert torch.allclose(runs["cut"][name], tensor, atol=1e-5), name
        assert torch.equal(runs["resumed"][name], tensor), name


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_agree(tmp_path: Path, strategy: str) -> None:
    train_model(tmp_path / "one")
    script = "tests/unit/vision_language/trained.py"
    run_ranks(2, script, str(tmp_path / "two"), f"training__distributed={strategy}")
    one, two = (tensors(tmp_path / name / "final") for name in ("one", "two"))
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, atol=1e-5), name


def test_a_batch_has_a_third_of_each(shared: MaskedDataModelling) -> None:
    batch = shared.train_stream(24, 3).batch(0)[0]
    packing = batch["masked"].samples.packing
    assert packing.rows == 24 and len(batch["images"]) == 16
    assert packing.vision_alone == 8 * 10 and (batch["masked"].hidden.sum(1) == 4).all()
    assert batch["masked"].alone_patches == 32 and len(batch["masked"].patches) == 64
    alone = len(batch["words"]) - batch["masked"].paired_words
    assert alone == 8 * round(0.15 * 15) or abs(alone - 16) <= 2
    other = build(data__batch_shares=[2, 1, 5]).train_stream(24, 3).batch(0)[0]
    assert len(other["images"]) == 21 and other["masked"].alone_patches == 24


def test_cutting_gives_the_same_examples(shared: MaskedDataModelling) -> None:
    def hashes(parts: int) -> list[tuple[float, ...]]:
        pieces = shared.train_stream(24, 3).batch(0, parts, list(range(parts)))
        found = []
        for piece in pieces:
            given = piece["masked"].samples
            ends = [*given.text_starts.tolist()[1:], len(given.token_ids)]
            found += [tuple(given.token_ids[a:b].tolist())
                      for a, b in zip(given.text_starts.tolist(), ends, strict=True)]  # fmt: skip
            found += [(float(image.sum()), *hidden.tolist())
                      for image, hidden in zip(piece["images"], piece["masked"].hidden,
                                               strict=True)]  # fmt: skip
        return sorted(found)

    assert hashes(1) == hashes(4) and len(hashes(1)) == 32


def test_streams_are_at_places_of_their_own(shared: MaskedDataModelling) -> None:
    stream = shared.train_stream(24, 3)
    expected = [stream.batch(step, 2, [1])[0] for step in range(4)][-1]
    again = shared.train_stream(24, 3)
    (found,) = again.batch(3, 2, [1])
    assert torch.equal(found["images"], expected["images"])
    assert torch.equal(found["words"], expected["words"])
    assert "images: examples" in again.names(0, 1, [0]) and "pairs: " in again.names(0, 1, [0])
    with pytest.raises(ValueError, match="8 images and is cut in 9 pieces"):
        again.batch(0, 9)
    with pytest.raises(ValueError, match=r"must be a multiple of 3, .*: 24 for example"):
        shared.train_stream(25, 3)


def test_hidden_words_are_masked_and_asked_for(shared: MaskedDataModelling) -> None:
    batch = shared.train_stream(48, 3).batch(0)[0]
    masked, tokenizer = batch["masked"], shared.data.tokenizer
    given = masked.samples
    assert (given.token_ids[masked.words] == tokenizer.mask).all()
    assert int((given.token_ids == tokenizer.mask).sum()) == len(masked.words)
    assert (given.token_ids[given.text_starts] == tokenizer.begin).all()
    restored = given.token_ids.clone()
    restored[masked.words] = batch["words"]
    first = restored[: given.text_starts[1]]
    assert first[-1] == tokenizer.end
    assert tokenizer.decode(first.tolist()) in set(shared.data.pairs[0].texts)
    # Half of the words of pairs.
    plain = shared.data.words.plain[restored[: given.packing.language_paired].numpy()].sum()
    assert abs(masked.paired_words / plain - 0.5) < 0.03


def test_the_loss_is_of_the_codes_and_words_in_hidden_places(shared: MaskedDataModelling) -> None:
    torch.manual_seed(0)
    model = shared.build_model()
    batch = shared.train_stream(24, 1).batch(0)[0]
    loss, masked = shared.loss(model, batch), batch["masked"]
    codes = shared.targets(batch["images"])[masked.hidden]
    patches, words = model(batch["images"], masked)
    # Hidden patches are in the order of their numbers, as a boolean mask takes them.
    expected = F.cross_entropy(patches, codes, reduction="sum")
    expected = expected + F.cross_entropy(words, batch["words"], reduction="sum")
    assert torch.allclose(loss.total, expected, rtol=1e-5)
    assert loss.count == 64 + len(batch["words"])
    sums = shared.score(model, batch).sums
    total = sum(sums[f"{kind}_nats"] for kind in KINDS)
    assert torch.allclose(total, expected, rtol=1e-5)
    assert [int(sums[f"{kind}_count"]) for kind in KINDS[:2]] == [32, 32]
    assert sum(int(sums[f"{kind}_count"]) for kind in KINDS[2:]) == len(batch["words"])
    loss.total.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_validation_always_asks_for_the_same_and_waits_for_nothing(
    shared: MaskedDataModelling, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = build(seed=2)
    one, two = shared.validation_batches()[1], again.validation_batches()[1]
    assert torch.equal(one["images"], two["images"]) and torch.equal(one["words"], two["words"])
    assert reads_while_scoring(shared, monkeypatch) == []
    model = shared.build_model().eval()
    scores = measured(shared, model, 1)
    assert scores["text_loss"] == pytest.approx(np.log(512), abs=0.5)


def test_pairs_and_texts_of_ones_own_with_a_broken_image(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / f"{number}.png", encoded(photo(number, 24, 24)))
    write(tmp_path / "bad.png", b"no image")
    names = [*(f"{number}.png" for number in range(12)), "bad.png"]
    lines = [json.dumps({"image": name, "caption": f"number {name} " * (1 + 9 * (name == "3.png"))})
             for name in names]  # fmt: skip
    write(tmp_path / "train.jsonl", "\n".join(lines).encode())
    write(tmp_path / "val.jsonl", "\n".join(lines[-4:]).encode())
    words = "\n\n".join("Some words of a document. " * 30 for _ in range(200))
    write(tmp_path / "text.txt", words.encode())
    write(tmp_path / "held.txt", words[:900].encode())
    task = build(
        data__source=str(tmp_path), data__image_source=None, data__tokenizer="bytes",
        data__text_source=str(tmp_path / "text.txt"),
        data__text_validation_source=str(tmp_path / "held.txt"), data__validation_fraction=0.5,
    )  # fmt: skip
    assert (
        "13 training pairs" in task.data.describe() and "texts of pairs cut" in task.data.describe()
    )
    stream = task.train_stream(12, 1)
    for step in range(6):
        (batch,) = stream.batch(step)
        assert not batch["blank"].any() and len(batch["masked"].patches) == 32
        assert torch.isfinite(task.loss(task.build_model(), batch).total)
    assert task.problems.describe() == "broken image: 1"
    batch = task.validation_batches()[0]
    assert batch["blank"].tolist().count(True) == 2
    assert len(batch["masked"].patches) == 4 * int((~batch["blank"]).sum())
    scores = measured(task, task.build_model().eval())
    assert scores["unreadable_images"] == 2 and np.isfinite(scores["loss"])
    assert task.baseline()["text_loss"] < 3.2
    # Captions in the place of texts alone.
    alone = build(data__source=str(tmp_path), data__text_source=None, data__tokenizer="bytes",
                  data__image_source=None)  # fmt: skip
    assert alone.data.texts[0] is alone.data.paired_texts[0]


def test_a_finished_run_is_opened_without_its_data(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    for number in range(12):
        write(pairs / f"{number}.png", encoded(photo(number, 24, 24)))
    lines = [json.dumps({"image": f"{n}.png", "caption": f"number {n} of some"}) for n in range(12)]
    write(pairs / "train.jsonl", "\n".join(lines).encode())
    write(pairs / "val.jsonl", "\n".join(lines[:3]).encode())
    run, changes = tmp_path / "run", {"data__source": str(pairs), "training__steps": 1}
    train_model(run, **changes)
    (pairs / "train.jsonl").write_text(lines[0])
    with pytest.raises(ValueError, match="data"):
        train_model(run, resume=True, **{**changes, "training__steps": 2})
    for path in pairs.iterdir():
        path.unlink()
    model = load_run(run, "auto", {"training.device": "cpu"}).model
    assert model.config.codes == 16 and model.config.vocab_size < 512


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("vision-language-modelling/tiny", {
            "data.batch_shares": "1,0,1", "data.image_mask_ratio": 1, "data.text_length": 2,
            "data.augmentation.erasing": 0.5, "model.final_norm": "none", "model.codes": 1,
        })  # fmt: skip
    assert len(caught.value.lines) == 6
    with pytest.raises(ValueError, match=r"data.text_length \(41\) is above model.max_length"):
        build(data__text_length=41)
    with pytest.raises(ValueError, match=r"set model\.codes"):
        build(model__codes=None)


def test_the_graph_is_whole(shared: MaskedDataModelling) -> None:
    torch.manual_seed(0)
    model = shared.build_model()
    batch = shared.train_stream(24, 1).batch(0)[0]
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.allclose(shared.loss(compiled, batch).total, shared.loss(model, batch).total)


@pytest.mark.parametrize(("name", "rate"), [("beit3-24l", 2e-3), ("beit3-24l-table", 2.8e-3)])
def test_the_papers_recipe(name: str, rate: float) -> None:
    recipe = load_recipe(f"vision-language-modelling/{name}")
    with torch.device("meta"):
        task: Any = recipe.build_task()
        task.vocabulary = lambda: 64010
        model = task.build_model()
        fewer = {"model.experts": "shared_attention"}
        task = load_recipe(f"vision-language-modelling/{name}", fewer).build_task()
        task.vocabulary = lambda: 64010
        smaller = task.build_model()
    count = sum(p.numel() for p in model.parameters()) / 1e6
    encoder = sum(p.numel() for p in model.encoder.parameters()) / 1e6
    assert (round(count, 1), round(encoder, 1)) == (246.3, 207.0)
    assert sum(p.numel() for p in smaller.parameters()) / 1e6 == pytest.approx(217.8, abs=0.05)
    training = recipe.training
    assert (training.learning_rate, training.steps, training.batch_size) == (rate, 300000, 12288)
    assert (training.betas, training.eps, training.weight_decay) == ((0.9, 0.98), 1e-6, 0.05)
    assert (training.warmup_steps, training.clip_norm) == (20000, 3.0)


def test_the_largest_batch_has_all_three_kinds_in_their_shares() -> None:
    changes = {"data.batch_shares": [1, 2, 1], "model.max_length": 20}
    task: Any = load_recipe("vision-language-modelling/tiny", changes).build_task()
    made = task.dummy_batch(8)
    samples, data = made["masked"].samples, task.data
    assert len(made["images"]) == 2 + 2
    assert len(samples.image_starts) == 4 and len(samples.text_starts) == 2 + 4
    assert len(samples.token_ids) == 2 * data.paired_text_length + 4 * data.text_length
    assert made["masked"].hidden.sum().item() == 4 * data.patches.count
    assert len(made["words"]) > 0


def test_how_a_batch_is_shared() -> None:
    assert stream_sizes(12, (1, 2, 3)) == {"images": 2, "texts": 4, "pairs": 6}
    with pytest.raises(ValueError, match=r"a multiple of 6, .*: 12 for"):
        stream_sizes(13, (1, 2, 3))
