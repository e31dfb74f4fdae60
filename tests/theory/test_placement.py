"""The table: the rows say what the papers say, and a wrong name is answered with the right one."""

import pytest

from magneto.theory.placement import PLACEMENTS, VARIANTS, Placement, find_placement

# Norms of width d per encoder layer, and in a decoder layer that attends to an encoder.
NORMS_PER_LAYER = {
    "post": (2, 3),
    "pre": (2, 3),
    "normformer": (4, 5),
    "deepnorm": (2, 3),
    "sub": (4, 5),
    "peri": (4, 6),
    "pre-qk": (2, 3),
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


@pytest.mark.parametrize(
    ("wrong", "right"), [("subln", "sub"), ("pre-ln", "pre"), ("depnorm", "deepnorm")]
)
def test_nearest_name(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{right}'"):
        find_placement(wrong)


def test_a_row_of_ones_own() -> None:
    row = Placement(name="bare", title="No norm", source="this test")
    assert find_placement(row) is row


def test_unknown_slot() -> None:
    with pytest.raises(ValueError, match="unknown slot 'middle'"):
        Placement(name="odd", title="", source="", feed_forward=("middle",))  # type: ignore[arg-type]
