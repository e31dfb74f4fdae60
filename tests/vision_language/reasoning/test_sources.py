"""Which statements are trained on and which are held out."""

from pathlib import Path

import numpy as np
import pytest

from magneto.config import ConfigError
from magneto.vision_language.reasoning.config import StatementDataConfig, VisualReasonerConfig
from magneto.vision_language.reasoning.sources import load_statements
from magneto.vision_language.reasoning.statements import StatementSplits
from tests.vision_language.reasoning.folders import write_nlvr2


def loaded(source: Path | str, **options: object) -> StatementSplits:
    return load_statements(StatementDataConfig(source=str(source), **options))  # type: ignore[arg-type]


def names(found: StatementSplits) -> tuple[str, str]:
    parts = (found.train, found.validation)
    train, held = ({one.identifier.split("-")[0] for one in p.statements} for p in parts)
    return "+".join(train), "+".join(held)


def test_splits_of_nlvr2(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ("train", "dev", "test1", "test2"))
    assert names(loaded(tmp_path)) == ("train", "dev")
    assert names(loaded(tmp_path, validation_split="test")) == ("train", "test1")
    assert names(loaded(tmp_path, validation_split="hidden")) == ("train", "test2")
    data = tmp_path / "nlvr" / "nlvr2" / "data"
    other = {"image_folder": str(tmp_path), "validation_source": str(data / "dev.json")}
    assert names(loaded(data / "train.json", **other)) == ("train", "dev")
    assert names(loaded(tmp_path, validation_source=str(tmp_path))) == ("train", "dev")


def test_a_set_of_images_is_held_out_whole(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"], groups=40)
    found = loaded(tmp_path, validation_fraction=0.3)
    train, held = ({one.group for one in part.statements}
                   for part in (found.train, found.validation))  # fmt: skip
    assert len(train) + len(held) == 40 and not train & held and 4 < len(held) < 20
    assert loaded(tmp_path, validation_fraction=0.3).validation.digest == found.validation.digest
    with pytest.raises(ValueError, match=r"to validate on: set data\.validation_fraction"):
        loaded(tmp_path, validation_fraction=1e-9)


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ("train", "dev"))
    with pytest.raises(ValueError, match="has no test split, it has train, dev"):
        loaded(tmp_path, validation_split="test")
    # A file, or a folder with one split, is not validated on what it is trained on.
    for split, only in (
        ("train", "has no test split, it has train"),
        ("test1", "nothing to train"),
    ):
        write_nlvr2(tmp_path / split, [split])
        with pytest.raises(ValueError, match=only):
            loaded(tmp_path / split, validation_split="test")


def test_a_folder_to_validate_on_has_the_split_that_is_asked_for(tmp_path: Path) -> None:
    for name, splits in (
        ("whole", ("train", "dev", "test1")),
        ("dev", ["dev"]),
        ("train", ["train"]),
    ):
        write_nlvr2(tmp_path / name, splits)
    whole, test = tmp_path / "whole", {"validation_split": "test"}
    every = r"has no hidden split, it has train, dev, test: set data\.validation_split"
    with pytest.raises(ValueError, match=every):
        loaded(whole, validation_split="hidden")
    with pytest.raises(ValueError, match=every):
        loaded("builtin:shapes", validation_source=str(whole), validation_split="hidden")
    with pytest.raises(ValueError, match=r"it has dev: set data\.validation_split"):
        loaded(whole, validation_source=str(tmp_path / "dev"), **test)
    with pytest.raises(ValueError, match=r"it has train: set data\.validation_source"):
        loaded(whole, validation_source=str(tmp_path / "train"), **test)
    with pytest.raises(ValueError, match="builtin:shapes has no test split, it has train, dev"):
        loaded(whole, validation_source="builtin:shapes", **test)
    assert names(loaded(whole, validation_source=str(tmp_path / "dev"))) == ("train", "dev")
    # A file that is named is all of what is asked for.
    file = tmp_path / "dev" / "nlvr" / "nlvr2" / "data" / "dev.json"
    options = {"validation_source": str(file), "image_folder": str(tmp_path), **test}
    assert names(loaded(whole / "nlvr" / "nlvr2" / "data" / "train.json", **options)) == (
        "train", "dev",
    )  # fmt: skip


def test_missing_images_leave_training_and_stay_in_validation(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ("train", "dev"))
    (tmp_path / "images" / "train" / "0" / "train-0-0-img1.png").unlink()
    (tmp_path / "dev" / "dev-0-0-img1.png").unlink()
    found = loaded(tmp_path)
    assert (len(found.train), len(found.validation)) == (11, 12)
    assert found.train.missing == ("train-0-0-img1.png",)
    assert found.validation.missing == ("dev-0-0-img1.png",)


def test_built_in_statements_are_balanced() -> None:
    """Whoever reads the words alone, or the images alone, is right half the time."""
    found = loaded("builtin:shapes")
    for split in (found.train, found.validation):
        assert split.labels.mean() == 0.5
        for seen in ([s.sentence for s in split.statements], [s.images for s in split.statements]):
            groups: dict[object, list[int]] = {}
            for one, key in zip(split.statements, seen, strict=True):
                groups.setdefault(key, []).append(one.label)
            best = sum(max(np.bincount(labels, minlength=2)) for labels in groups.values())
            assert best == len(split) / 2


def test_the_digest_is_of_words_labels_and_images(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ("train", "dev"))
    before = loaded(tmp_path).validation.digest
    assert loaded(tmp_path).validation.digest == before
    path = tmp_path / "nlvr" / "nlvr2" / "data" / "dev.json"
    text = path.read_text()
    path.write_text(text.replace("True", "False", 1))
    assert loaded(tmp_path).validation.digest != before
    path.write_text(text)
    (tmp_path / "dev" / "dev-0-0-img1.png").write_bytes(b"other")
    assert loaded(tmp_path).validation.digest != before


def test_impossible_values_are_named() -> None:
    for values, words in (
        ({"source": "builtin:shape"}, "no built-in statements"),
        ({"source": "hf:nlvr2"}, "NLVR2's own files"),
        ({"validation_fraction": 0}, "validation_fraction"),
        ({"vocab_size": 0}, "vocab_size"),
    ):
        with pytest.raises(ValueError, match=words):
            StatementDataConfig(**values)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="head_scale must be above 0"):
        VisualReasonerConfig(width=16, layers=1, heads=2, ffn_width=16, head_scale=0)
