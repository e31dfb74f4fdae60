"""Names of sources are taken apart in one place; the hub that can't be reached is one line."""

import logging
import os
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.data import sources
from magneto.data.documents import read_documents
from magneto.data.problems import Counts
from magneto.data.sources import (
    HubDataset,
    Source,
    find_source,
    hub_is_reachable,
    parse_source,
    split_of,
)
from magneto.language.config import ClassificationDataConfig
from magneto.language.labelled_texts import read_texts
from magneto.language.suites import SUITES, load_questions
from magneto.translation.text import open_parallel


@pytest.mark.parametrize("kind", ["documents", "labelled", "one split", "questions", "pairs"])
def test_a_set_that_cannot_be_reached_is_one_line(kind: str, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    hub, records = logging.getLogger("huggingface_hub"), []
    handler, before = logging.Handler(), hub.level
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr(hub, "handlers", [handler])

    def fail(*given: object, **named: object) -> None:
        logging.getLogger("huggingface_hub.utils").warning("retrying")
        raise ConnectionError("not there\nand more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(datasets, "get_dataset_split_names", fail)
    monkeypatch.setattr(datasets, "get_dataset_config_names", fail)
    with pytest.raises(ConfigError) as caught:
        if kind == "documents":
            list(read_documents("hf:some/set", "text", Counts()))
        elif kind == "pairs":
            open_parallel("hf:some/set", None)
        elif kind == "questions":
            load_questions(SUITES["copa"], "hf:some/set")
        else:
            source = "hf:some/set" + ("::test" if kind == "one split" else "")
            read_texts(ClassificationDataConfig(source=source))
    [line] = caught.value.lines
    assert hub.level == before
    assert line.startswith("cannot load hf:some/set") and "(not there)" in line and "--data" in line
    assert not records


def test_a_hub_that_has_no_address_is_not_asked(monkeypatch) -> None:
    pytest.importorskip("datasets")

    def unknown(host: str, port: None) -> None:
        raise OSError(asked.append(host))

    asked: list[str] = []
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    HubDataset(Source("hf", "some/set"))
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.org/hub")
    assert not hub_is_reachable() and asked == ["huggingface.co", "mirror.org"]
    monkeypatch.setattr(sources, "getproxies", lambda: {"https": "there"})
    assert hub_is_reachable()


def test_names_of_sources() -> None:
    for name, *parts in (
        ("a/b.txt", "path", "a/b.txt"), ("builtin:docstrings", "builtin", "docstrings"),
        ("hf:user/set:en:test", "hf", "user/set", "en", "test"),
        ("hf:user/set::test", "hf", "user/set", "", "test"),
    ):  # fmt: skip
        assert parse_source(name) == Source(*parts)
        assert str(parse_source(name)) == name


def test_splits_are_found_by_their_names(tmp_path: Path, monkeypatch) -> None:
    """The last word of a path counts, and the first split where none has a usual name."""
    names = (
        "training/dev-clean",
        "val2017",
        "trains/x",
        "a_test.tar",
        "validation/train",
        "newstest2014.de-en",
        "dev/newstest2013",
        "newsdev2016",
        "devtest/eng",
        "tst2013",
    )
    assert [split_of(name) for name in names] == [
        "validation", "validation", None, "test", "train",
        "test", "validation", "validation", "test", "test",
    ]  # fmt: skip
    dataset = object.__new__(HubDataset)
    dataset.source = Source("hf", "some/set")
    for given, found in (
        (["b", "a"], {"train": "b"}), (["extra", "Dev"], {"validation": "Dev"}),
        (["dev", "validation", "train"], {"train": "train", "validation": "validation"}),
    ):  # fmt: skip
        dataset.splits = lambda config, given=given: given  # type: ignore[method-assign]
        assert dataset.chosen_splits("") == found
    dataset.source = Source("hf", "some/set", split="extra")
    assert dataset.chosen_splits("") == {"train": "extra"}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.parquet").touch()
    assert find_source(str(tmp_path)) == Source("hf", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("~/data", "~/data/train.parquet"):
        assert find_source(name) == Source("hf", name.replace("~", str(tmp_path)))


def test_a_hub_source_without_a_name_is_refused() -> None:
    for name in ("hf:", "hf::config", "hf:/"):
        with pytest.raises(ValueError, match="lacks a name"):
            parse_source(name)
