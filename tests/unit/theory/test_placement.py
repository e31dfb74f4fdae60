"""The table: the rows say what the papers say, and a wrong name is answered with the right one."""

from pathlib import Path

import pytest

from magneto.theory.placement import PLACEMENTS, VARIANTS, Depth, Placement, find_placement

# Norms of width d per encoder layer, and in a decoder layer that attends to an encoder.
NORMS_PER_LAYER = {
    **dict.fromkeys(("post", "pre", "deepnorm", "pre-qk", "olmo2", "gated"), (2, 3)),
    **dict.fromkeys(("normformer", "sub"), (4, 5)),
    **dict.fromkeys(("peri", "keel"), (4, 6)),
    "hybrid": (1, 2),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_norms_per_layer_and_a_final_one_where_the_last_sublayer_has_none(name: str) -> None:
    row = PLACEMENTS[name]
    plain = len(row.self_attention) + len(row.feed_forward)
    assert (plain, plain + len(row.cross_attention)) == NORMS_PER_LAYER[name]
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


def test_a_wrong_name_is_answered_with_the_nearest_and_a_row_is_itself() -> None:
    for wrong, right in (("subln", "sub"), ("pre-ln", "pre"), ("depnorm", "deepnorm")):
        with pytest.raises(ValueError, match=f"did you mean '{right}'"):
            find_placement(wrong)
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
    for path, wrong in (("os:path", "module"), ("os:nothing", "nothing"),
                        ("nowhere:ROW", "PYTHONPATH"), (":", ":")):  # fmt: skip
        with pytest.raises(ValueError, match=f"'{path}'.*{wrong}"):
            find_placement(path)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"feed_forward": ("middle",)}, "feed_forward must be from before, .* not 'middle'"),
        ({"query_key_norm": "norm"}, "query_key_norm must be one of none, head, width, not 'norm'"),
        ({"gated": ("feed_forward",)}, "gated must be from self_attention, .* not 'feed_forward'"),
    ],
)
def test_unknown_words(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Placement(name="odd", title="", source="", **wrong)
