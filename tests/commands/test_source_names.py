"""Names of data sources in tables."""

from magneto.commands.source_names import name_of, source_names


def test_names_are_the_last_part() -> None:
    sources = {"data/imagenet/": "imagenet", "builtin:digits": "digits",
               "hf:ILSVRC/imagenet-1k": "imagenet-1k", "ade": "ade"}  # fmt: skip
    assert {source: name_of(source) for source in sources} == sources
    assert source_names({source: set() for source in sources}) == sources


def test_other_data_has_another_name() -> None:
    unknown: set[str] = set()
    assert source_names({"a/x/val": unknown, "b/x/val": unknown, "val": unknown}) == {
        "a/x/val": "a/x/val", "b/x/val": "b/x/val", "val": "val",
    }  # fmt: skip


def test_the_same_data_elsewhere_has_the_same_name() -> None:
    digests = {"/data/imagenet": {"p"}, "/scratch/imagenet/": {"p", "q"}, "old/imagenet": {"r"}}
    assert source_names(digests) == {
        "/data/imagenet": "data/imagenet", "/scratch/imagenet/": "data/imagenet",
        "old/imagenet": "old/imagenet",
    }  # fmt: skip
