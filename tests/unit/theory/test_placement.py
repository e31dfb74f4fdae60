"""The table: the rows say what the papers say, and a wrong name is answered with the right one."""

from pathlib import Path

import pytest

from magneto.theory.placement import PLACEMENTS, VARIANTS, Depth, Placement, find_placement

# Norms of width d per encoder layer, and in a decoder layer that attends to an encoder.
NORMS_PER_LAYER = {
    "post": (2, 3),
    "pre": (2, 3),
    "normformer": (4, 5),
    "deepnorm": (2, 3),
    "sub": (4, 5),
    "peri": (4, 6),
    "pre-qk": (2, 3),
    "olmo2": (2, 3),
    "keel": (4, 6),
    "hybrid": (1, 2),
    "gated": (2, 3),
}


def test_every_row_is_counted() -> None:
    assert set(NORMS_PER_LAYER) == set(PLACEMENTS)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_norms_per_layer(name: str) -> None:
    row = PLACEMENTS[name]
    plain = len(row.self_attention) + len(row.feed_forward)
    assert (plain, plain + len(row.cross_attention)) == NORMS_PER_LAYER[name]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_final_norm_where_the_last_sublayer_has_none(name: str) -> None:
    row = PLACEMENTS[name]
    assert (row.final == "norm") == ("after" not in row.feed_forward)


def test_variants_differ_from_their_rows() -> None:
    assert VARIANTS["normformer-fairseq"].head_scale == "after_out"
    assert VARIANTS["sub-cross-inside"].cross_attention == ("inside",)
    assert VARIANTS["hybrid-star"].at(0).feed_forward == ("before",)
    assert VARIANTS["hybrid-star"].at(1).feed_forward == ()


def test_the_first_layer_of_keel() -> None:
    """Section 3.1: no norm after the first attention, no alpha in the first layer."""
    row, depth = PLACEMENTS["keel"], Depth("decoder", 12)
    assert (row.at(0).self_attention, row.at(0).alpha(depth)) == (("before",), 1)
    assert (row.at(0).feed_forward, row.at(1)) == (row.feed_forward, row)
    assert row.alpha(depth) == 24


@pytest.mark.parametrize("name", [*PLACEMENTS, *VARIANTS])
def test_a_first_layer_leaves_to_the_stack_what_is_the_stacks(name: str) -> None:
    """Where it has one of these, it is the stack's, since only the stack's is used."""
    row = find_placement(name)
    first = row.at(0)
    assert first.scaled == row.scaled
    assert first.final in ("none", row.final)


@pytest.mark.parametrize(
    ("wrong", "right"), [("subln", "sub"), ("pre-ln", "pre"), ("depnorm", "deepnorm")]
)
def test_nearest_name(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{right}'"):
        find_placement(wrong)


def test_a_row_of_ones_own() -> None:
    row = Placement(name="bare", title="No norm", source="this test")
    assert find_placement(row) is row


def test_a_row_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name becomes the path, by which other processes find it again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rows_of_a_test.py").write_text(
        "from magneto import Placement\nBARE = Placement('bare', 'No norm', 'this test')\n"
    )
    row = find_placement("rows_of_a_test:BARE")
    assert (row.title, row.name) == ("No norm", "rows_of_a_test:BARE")
    assert find_placement(row.name) == row


@pytest.mark.parametrize(
    ("path", "wrong"),
    [("os:path", "module"), ("os:nothing", "nothing"), ("nowhere:ROW", "PYTHONPATH"), (":", ":")],
)
def test_an_import_path_without_a_placement_is_refused(path: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"'{path}'.*{wrong}"):
        find_placement(path)


def test_unknown_slot() -> None:
    with pytest.raises(ValueError, match="unknown slot 'middle'"):
        Placement(name="odd", title="", source="", feed_forward=("middle",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"query_key_norm": "norm"}, "query_key_norm must be one of none, head, width, not 'norm'"),
        ({"value_norm": "width"}, "value_norm must be one of none, head"),
        ({"final": "yes"}, "final must be one of none, norm"),
        ({"gated": ("feed_forward",)}, "gated must list kinds of attention, not 'feed_forward'"),
    ],
)
def test_unknown_words(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Placement(name="odd", title="", source="", **wrong)
