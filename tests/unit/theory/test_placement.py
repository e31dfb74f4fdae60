"""The table: rows and gains are the papers', and a wrong name is answered with the right one."""

import math
from pathlib import Path

import pytest

from magneto.theory.placement import (
    PLACEMENTS,
    VARIANTS,
    Depth,
    Placement,
    Stack,
    deepnorm_alpha,
    deepnorm_beta,
    find_placement,
    keel_alpha,
    sub_gain,
)

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
        ({"feed_forward": ("middle",)}, "feed_forward may only contain before, .* not 'middle'"),
        ({"query_key_norm": "norm"}, "query_key_norm must be one of none, head, width, not 'norm'"),
        ({"self_attention": ("before")}, r"self_attention .* tuple such as \('before',\), not 'be"),
        ({"alpha": 2.0}, r"alpha must be a function of the depth, not 2\.0"),
        (
            {"gated": ("feed_forward",)},
            "gated may only contain self_att.*, not 'feed_forward'",
        ),
    ],
)
def test_unknown_words(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Placement(name="odd", title="", source="", **wrong)


# The table of constants (paper, section 3.2; DeepNet, figure 2).
# Layers: gain alone, encoder's and decoder's gain at N = M; then DeepNorm's (alpha, beta) likewise.
CONSTANTS = {
    1: (0.8326, 0.5038, 1.0481, (1.1892, 0.5946), (0.8100, 0.8700), (1.3161, 0.5373)),
    18: (1.8930, 2.1829, 1.9972, (2.4495, 0.2887), (1.9987, 0.3526), (2.7108, 0.2608)),
    1000: (2.7570, 4.5039, 2.8296, (6.6874, 0.1057), (7.0143, 0.1005), (7.4008, 0.0955)),
}


@pytest.mark.parametrize("layers", CONSTANTS)
def test_gains_of_the_papers(layers: int) -> None:
    one, *gains, alone, encoder, decoder = CONSTANTS[layers]
    kinds: tuple[Stack, ...] = ("encoder", "decoder")
    stacks = [Depth(stack, layers, other) for other in (0, layers) for stack in kinds]
    for depth, gain, (alpha, beta) in zip(
        stacks, (one, one, *gains), (alone, alone, encoder, decoder), strict=True
    ):
        assert sub_gain(depth) == pytest.approx(gain, abs=5e-5)
        assert deepnorm_alpha(depth) == pytest.approx(alpha, abs=5e-5)
        assert deepnorm_beta(depth) == pytest.approx(beta, abs=5e-5)


def test_encoders_gains_use_both_depths() -> None:
    """(log 3M log 2N / 3)^(1/2); 0.81 and 0.87 times (6^4 12)^(1/16) and its inverse."""
    depth = Depth("encoder", 6, 12)
    assert sub_gain(depth) == pytest.approx((math.log(36) * math.log(12) / 3) ** 0.5)
    assert sub_gain(Depth("decoder", 6, 12)) == sub_gain(Depth("decoder", 6, 6))
    assert deepnorm_alpha(depth) == pytest.approx(1.4807, abs=5e-5)
    assert deepnorm_beta(depth) == pytest.approx(0.4759, abs=5e-5)


def test_keel_alpha_is_the_number_of_sublayers() -> None:
    assert keel_alpha(Depth("decoder", 512)) == 1024
    assert keel_alpha(Depth("encoder", 6, 4)) == 12
    assert keel_alpha(Depth("decoder", 6, 4)) == 18


def test_depth_refuses() -> None:
    for arguments in (("encoder", 0), ("decoder", 3, -1), ("middle", 3)):
        with pytest.raises(ValueError):
            Depth(*arguments)
