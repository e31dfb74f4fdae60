"""Masked data modelling: what is hidden, three streams, a loss whatever a batch is cut into."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import default_collate

from magneto.data.table import table_of_columns
from magneto.data.tokenizer import ByteTokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masked_lm import Masking
from magneto.recipe import load_recipe
from magneto.runs import load_run
from magneto.training.task import place_companion
from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import BrokenImage, Pixels
from magneto.vision.images import ImageSplit
from magneto.vision.targets import BlockMasking
from magneto.vision.transforms import CentreCrop, InputFormat
from magneto.vision_language import pretraining
from magneto.vision_language.config import MaskedDataConfig
from tests.evaluating import measured, taught
from tests.shards import write_lines
from tests.unit.vision.image_files import write, write_photos
from tests.unit.vision_language.small_tasks import model_recipe, train_model

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("few_pairs")
CPU = torch.device("cpu")
TOKENIZER = ByteTokenizer()
FORMAT = InputFormat(12)
TEXTS = pretraining.close_texts(["ab", "abcdefghij", "klmnopqrstuvwxyz"], TOKENIZER)
PATCHES = BlockMasking(3, 3, 0.4)
MASKING = Masking(MaskedTextDataConfig(tokenizer="bytes"), TOKENIZER)


def hide(ratio: float) -> pretraining.MaskWords:
    return lambda row, draw: pretraining.mask_words(MASKING, ratio, row, draw)


def of_images(blank: np.ndarray | None = None) -> Any:
    """What makes examples of three images, the second of which is broken."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12, 12, 3), np.uint8)
    crop = CentreCrop(FORMAT, 12)

    def transform(picture: Any, draw: np.random.Generator) -> np.ndarray:
        if np.array_equal(picture.pixels(), pixels[1]):
            raise BrokenImage("is cut off")
        return crop(picture, draw)

    images = ImageSplit(table_of_columns({"image": Pixels(pixels)}))
    return pretraining.image_examples(images, transform, PATCHES, blank)


def test_an_end_token_within_a_text_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may write the word "</s>" with its end token."""
    monkeypatch.setattr(pretraining, "BATCH", 2)

    class Odd(ByteTokenizer):
        end = ord("z")

    found = pretraining.close_texts(["azb", "", "c"], Odd())
    assert [bytes([*found.text(number)]) for number in range(3)] == [b"azbz", b"z", b"cz"]


def test_a_share_of_the_words_is_hidden() -> None:
    row = np.array([TOKENIZER.begin, *range(20), TOKENIZER.end])
    for ratio, count in ((0.5, 10), (0.15, 3), (0.01, 1)):
        seen, targets = hide(ratio)(row, np.random.default_rng(1))
        hidden = targets != IGNORED
        assert hidden.sum() == count and (targets[hidden] == row[hidden]).all()
        assert (seen[hidden] == TOKENIZER.mask).all() and (seen[~hidden] == row[~hidden]).all()
        assert not hidden[[0, -1]].any()
    _, targets = hide(0.5)(row[[0, -1]], np.random.default_rng(1))
    assert (targets == IGNORED).all()


def test_sequences_are_cut_from_all_texts_and_the_text_of_a_pair_to_its_length() -> None:
    make = pretraining.text_examples(TEXTS.tokens, TOKENIZER.begin, 8, hide(0.2))
    rows = [make(number, np.random.default_rng(0)) for number in range(4)]
    restored = [np.where(r["targets"] != IGNORED, r["targets"], r["seen"]) for r in rows]
    assert all(row[0] == TOKENIZER.begin and len(row) == 8 for row in restored)
    assert np.array_equal(np.concatenate([row[1:] for row in restored]), TEXTS.tokens[:28])
    pair = pretraining.pair_examples(of_images(FORMAT.blank), TEXTS, TOKENIZER.begin, 12, hide(0.5))
    for number, length in ((0, 4), (2, 12)):
        example = pair(number, np.random.default_rng(number))
        assert example["length"] == length and example["seen"].shape == (12,)
        asked = example["targets"] != IGNORED
        row = np.where(asked, example["targets"], example["seen"])[:length]
        assert row[0] == TOKENIZER.begin and row[-1] == TOKENIZER.end
        assert np.array_equal(row[1:-1], TEXTS.text(number)[:-1][: length - 2])
        assert asked.sum() == round(0.5 * (length - 2)) and len(example["patches"]) == 4


def test_nothing_is_asked_of_an_image_that_can_not_be_read() -> None:
    with pytest.raises(BrokenImage):
        of_images()(1, np.random.default_rng(0))
    images = of_images(FORMAT.blank)
    pair = pretraining.pair_examples(images, TEXTS, TOKENIZER.begin, 12, hide(0.5))
    text = pretraining.text_examples(TEXTS.tokens, TOKENIZER.begin, 8, hide(0.2))
    makers = zip(pretraining.PARTS, (images, text, pair), strict=True)
    rows = {name: pretraining.fixed_examples(make, np.arange(2), which)
            for which, (name, make) in enumerate(makers)}  # fmt: skip
    batch = pretraining.join_examples(10, rows)
    masked, given = batch["masked"], batch["masked"].samples
    assert batch["images"].shape == (4, 3, 12, 12)
    assert torch.equal(batch["images"][2:], rows["pairs"]["images"])
    assert batch["blank"].tolist() == [False, True, False, True]
    assert masked.alone_patches == 4 and masked.patches.shape == (8,)
    hidden = masked.hidden[~batch["blank"]].nonzero()[:, 1]
    assert torch.equal(hidden, masked.patches % 9)
    assert masked.paired_words == 1 and len(batch["words"]) == 1 + 2
    assert given.packing.rows == 6 and given.token_ids.shape == (4 + 12 + 8 + 8,)
    assert (given.token_ids[masked.words] == TOKENIZER.mask).all()
    none = {**rows, "texts": pretraining.fixed_examples(text, np.zeros(0, np.int64), 1),
            "pairs": default_collate([pair(1, np.random.default_rng(0))] * 2)}  # fmt: skip
    batch = pretraining.join_examples(10, none)
    assert len(batch["words"]) == 0 and batch["masked"].samples.packing.rows == 4


def build(**changes: Any) -> pretraining.MaskedDataModelling:
    task = model_recipe(**changes).build_task()
    task.prepare()
    place_companion(task, CPU)
    assert isinstance(task, pretraining.MaskedDataModelling)
    return task


@pytest.fixture(scope="module")
def shared(module_cache: Path, few_pairs: None) -> pretraining.MaskedDataModelling:
    return build()


def test_it_learns(shared: pretraining.MaskedDataModelling) -> None:
    found, least = measured(shared, taught(shared, 45, 24, 1.5e-2), 1), shared.baseline(1)
    assert found["paired_text_loss"] < least["paired_text_loss"] - 0.5
    assert found["loss"] < least["loss"] and found.keys() == least.keys()


def test_a_batch_has_a_share_of_each(shared: pretraining.MaskedDataModelling) -> None:
    batch = shared.train_stream(24, 3).batch(0)[0]
    packing = batch["masked"].samples.packing
    assert packing.rows == 24 and len(batch["images"]) == 16
    assert packing.vision_alone == 8 * 10 and (batch["masked"].hidden.sum(1) == 4).all()
    assert batch["masked"].alone_patches == 32 and len(batch["masked"].patches) == 64
    alone = len(batch["words"]) - batch["masked"].paired_words
    assert alone == 8 * round(0.15 * 15) or abs(alone - 16) <= 2
    other = build(data__batch_shares=[2, 1, 5]).train_stream(24, 3).batch(0)[0]
    assert len(other["images"]) == 21 and other["masked"].alone_patches == 24
    with pytest.raises(ValueError, match=r"must be a multiple of 3 .* such as 24"):
        shared.train_stream(25, 3)
    with pytest.raises(ValueError, match="such as 33"):  # before any work
        load_recipe("vision-language-modelling/tiny", {"training.batch_size": 32})
    largest = shared.dummy_batch(24)
    assert len(largest["images"]) == 16 and len(largest["masked"].patches) == 64
    tokens = 8 * (shared.text_length + shared.paired_text_length)
    assert len(largest["masked"].samples.token_ids) == tokens


def test_each_seed_has_its_own_images_texts_and_pairs(
    shared: pretraining.MaskedDataModelling,
) -> None:
    one, other, again = (shared.train_stream(24, seed) for seed in (3, 4, 3))
    for name in pretraining.PARTS:
        orders = [np.asarray(stream.plan(0)[name]) for stream in (one, other, again)]
        assert np.array_equal(orders[0], orders[2]) and not np.array_equal(*orders[:2]), name


def test_the_loss_is_of_the_codes_and_words_in_hidden_places(
    shared: pretraining.MaskedDataModelling,
) -> None:
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
    assert loss.units == 16 * 10 + len(masked.samples.token_ids)
    sums = shared.score(model, batch).sums
    total = sum(sums[f"{kind}_loss"] for kind in pretraining.KINDS)
    assert torch.allclose(total, expected, rtol=1e-5)
    assert [int(sums[f"{kind}_count"]) for kind in pretraining.KINDS[:2]] == [32, 32]
    assert sum(int(sums[f"{kind}_count"]) for kind in pretraining.KINDS[2:]) == len(batch["words"])


def test_the_baseline_has_the_frequencies_of_training(
    shared: pretraining.MaskedDataModelling,
) -> None:
    """And batches of evaluation have every example once, with a mask of its own."""

    def answers(batches: Any) -> dict[str, np.ndarray]:
        found = [
            pretraining.by_kind(shared.targets(b["images"])[b["masked"].hidden], b["words"],
                                b["masked"]) for b in batches
        ]  # fmt: skip
        return {kind: torch.cat([one[kind] for one in found]).numpy() for kind in pretraining.KINDS}

    batches, least = shared.fixed_batches(0), shared.baseline()
    known, asked = answers(batches), answers(shared.validation_batches())
    known |= {"text": shared.texts[0], "paired_text": shared.paired_texts[0].tokens}
    for kind, values in known.items():
        may = np.ones(16) if "image" in kind else shared.masking.maskable
        counts = (1 + np.bincount(values, minlength=len(may))) * may
        nats = -np.log(counts[asked[kind]] / counts.sum())
        assert least[f"{kind}_loss"] == pytest.approx(nats.mean()), kind
    images = torch.cat([batch["images"] for batch in batches])
    masks = torch.cat([batch["masked"].hidden for batch in batches])
    assert len(batches) == 2 and len(images.unique(dim=0)) > 150 and len(masks.unique(dim=0)) > 20


def test_images_alone_and_images_of_pairs_have_augmentations_of_their_own(
    shared: pretraining.MaskedDataModelling,
) -> None:
    task, flip = copy(shared), AugmentationConfig(flip=1.0)
    task.data_config = replace(shared.data_config, image_augmentation=flip)
    plain, found = (each.train_stream(24, 3).batch(0)[0]["images"] for each in (shared, task))
    assert torch.equal(found[:8], plain[:8].flip(-1)) and torch.equal(found[8:], plain[8:])
    plain, found = (each.fixed_batches(1)[0]["images"] for each in (shared, task))
    assert torch.equal(found, plain)


def write_pairs(folder: Path, captions: list[str], held: int) -> None:
    """Write an image with each caption; the last ones are to be validated on, too."""
    paths = write_photos(folder, len(captions), 24)
    lines = [
        {"image": path, "caption": caption} for path, caption in zip(paths, captions, strict=True)
    ]
    write_lines(folder / "train.jsonl", lines)
    write_lines(folder / "val.jsonl", lines[-held:])


def test_pairs_and_texts_of_ones_own_with_a_broken_image(tmp_path: Path) -> None:
    write_pairs(tmp_path, [f"number {n} " * (1 + 9 * (n == 3)) for n in range(13)], 4)
    write(tmp_path / "12.png", b"no image")
    words = "\n\n".join("Some words of a document. " * 30 for _ in range(200))
    write(tmp_path / "text.txt", words.encode())
    write(tmp_path / "held.txt", words[:900].encode())
    own = {"data__source": str(tmp_path), "data__image_source": None, "data__tokenizer": "bytes"}
    task = build(
        **own, data__text_source=str(tmp_path / "text.txt"), data__validation_fraction=0.5,
        data__text_validation_source=str(tmp_path / "held.txt"),
    )  # fmt: skip
    text = task._text_config("bytes")
    assert (text.validation_source, text.validation_fraction) == (str(tmp_path / "held.txt"), 0.5)
    assert task.corpus and task.corpus.digest in task.digests()
    assert sum("of a document" in text for text in task.training_texts()) > 30
    description = task.describe()
    assert "13 training pairs" in description and "1 pair with a truncated text" in description
    stream, model = task.train_stream(12, 1), task.build_model()
    for step in range(6):
        (batch,) = stream.batch(step)
        assert not batch["blank"].any() and len(batch["masked"].patches) == 32
    assert task.problems.describe() == "broken image: 1"
    batch = task.validation_batches()[0]
    assert batch["blank"].tolist().count(True) == 2
    assert len(batch["masked"].patches) == 4 * int((~batch["blank"]).sum())
    scores = measured(task, model.eval())
    assert scores["unreadable_images"] == 2 and np.isfinite(scores["loss"])
    for number in range(2):
        write(tmp_path / "held" / f"{number}.png", (tmp_path / f"{number}.png").read_bytes())
    images = build(**own | {"data__image_source": str(tmp_path)}, data__image_validation_source=str(
        tmp_path / "held")).images  # fmt: skip
    assert len(images[0]) > 2 == len(images[1])
    write(tmp_path / "one.txt", b"A single document. " * 9)
    with pytest.raises(ValueError, match=r"0 valid.*data\.text_validation_source.*\.text_length"):
        build(**own, data__text_source=str(tmp_path / "one.txt"))
    # Captions in the place of texts alone.
    alone = build(**own, data__text_source=None)
    assert alone.texts[0] is alone.paired_texts[0].tokens
    few = min(map(len, alone.texts))
    with pytest.raises(ValueError, match=rf"has {few} \w+ tokens.*data\.text_length"):
        build(**own, data__text_source=None, data__text_length=few)


def test_a_finished_run_is_opened_without_its_data(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    write_pairs(pairs, [f"number {n} of some" for n in range(12)], 3)
    run, changes = tmp_path / "run", {"data__source": str(pairs), "training__steps": 1}
    train_model(run, **changes)
    (pairs / "train.jsonl").write_text((pairs / "train.jsonl").read_text().splitlines()[0])
    with pytest.raises(ValueError, match="data"):
        train_model(run, resume=True, **{**changes, "training__steps": 2})
    for path in pairs.iterdir():
        path.unlink()
    model = load_run(run, "auto", {"training.device": "cpu"}).model
    assert model.config.codes == 16 and model.config.vocab_size < 512


def test_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match=r"data.text_length \(41\) is above model.max_length"):
        build(data__text_length=41)
    for name in ("augmentation", "image_augmentation"):
        for change in ({"repeats": 2}, {"erasing": 0.5}):
            with pytest.raises(ValueError, match=rf"\b{name}: in pre-training, erasing must be 0"):
                MaskedDataConfig(**{name: AugmentationConfig(**change)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='must not be "auto"'):
        MaskedDataConfig(tokenizer="auto")


def test_images_alone_have_a_source_and_a_share_of_their_own(tmp_path: Path) -> None:
    """Pixels for k-means are in -1 to 1, whatever the model reads."""
    write_photos(tmp_path / "alone", 20, 24)
    data = {"image_source": str(tmp_path / "alone"), "validation_fraction": 0.5,
            "normalisation": "imagenet"}  # fmt: skip
    task: Any = model_recipe(
        **{f"data__{name}": value for name, value in data.items()}
    ).build_task()
    counts = [len(part) for part in task.images]
    assert sum(counts) == 20 and min(counts) > 4
    assert 0.9 < task.plain_batches()[0]["images"].abs().max() <= 1


def test_words_are_masked_as_the_data_section_says() -> None:
    changes = {"data__masking": "span", "data__corruption": "bert", "data__tokenizer": "bytes"}
    config = model_recipe(**changes).build_task().masking.config  # type: ignore[attr-defined]
    assert (config.masking, config.corruption) == ("span", "bert")


def test_the_papers_recipe() -> None:
    training = load_recipe("vision-language-modelling/beit3-24l").training
    assert (training.learning_rate, training.steps, training.batch_size) == (2e-3, 300000, 12288)
