"""Places on a grid against timm; at another resolution, against its and BEiT's interpolation.

Whole models of BEiT and EVA-02 are in the oracles.
"""

from typing import Any

import pytest
import torch

from magneto import Decoder, Encoder, TransformerConfig
from magneto.nn.config import Grid
from magneto.nn.position import (
    GridRotaryTable,
    bias_rows,
    relative_index,
    resize_bias,
    resize_positions,
    resize_table,
)
from tests.unit.nn.grids import shaken, small_grid, timm_module

CPU = torch.device("cpu")


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("size", [(4, 4), (3, 5), (1, 2)])
def test_relative_index_is_timms(size: tuple[int, int], prefix: int) -> None:
    module = timm_module("timm.layers.pos_embed_rel")
    expected = module.gen_relative_position_index(size, class_token=bool(prefix))
    grid = Grid(*size, prefix)
    assert torch.equal(relative_index(grid, CPU), expected.view(grid.length, grid.length))
    assert expected.max() < bias_rows(grid)


def test_all_vectors_before_the_grid_share_their_three_biases() -> None:
    index = relative_index(Grid(2, 2, prefix=2), CPU)
    one = relative_index(Grid(2, 2, prefix=1), CPU)
    assert torch.equal(index[1:, 1:], one) and torch.equal(index[0, 2:], one[0, 1:])
    assert index[:2, :2].unique().tolist() == [bias_rows(Grid(2, 2, 1)) - 1]


@pytest.mark.parametrize("reference", [None, 6])
def test_rotary_positions_are_eva02s_and_leave_the_class_token_alone(reference: int | None) -> None:
    """timm turns neighbours, (2i, 2i + 1), by the angles by which pairs (i, i + half) turn here."""
    module = timm_module("timm.layers.pos_embed_sincos")
    theirs = module.RotaryEmbeddingCat(
        8, in_pixels=False, feat_shape=(3, 5), ref_feat_shape=reference and (reference,) * 2
    )
    sine, cosine = theirs.get_embed()[:, ::2].chunk(2, dim=-1)
    config = small_grid(grid_positions="rotary", rows=3, columns=5, reference_grid=reference)
    found = GridRotaryTable(config)(torch.zeros(1, 16, 32))[:, 0, 0]
    torch.testing.assert_close(found[:, 1:], torch.stack((cosine, sine)).repeat(1, 1, 2))
    assert (found[0, 0] == 1).all() and not found[1, 0].any()


def test_what_is_no_grid_is_said() -> None:
    for kind in ("relative_bias", "shared_relative_bias", "rotary"):
        model = Encoder(small_grid(grid_positions=kind))
        with pytest.raises(ValueError, match="length 16 differs from the grid's 17"):
            model(torch.zeros(1, 16, 32))
    with pytest.raises(ValueError, match="must be 'none' in a decoder"):
        Decoder(small_grid(grid_positions="rotary"))
    with pytest.raises(ValueError, match="positions must be one of none, learned, sinusoidal"):
        small_grid(grid_positions="rotary", positions="t5")
    with pytest.raises(ValueError, match="divisible by 4, not 2"):
        small_grid(grid_positions="rotary", head_dim=2)
    with pytest.raises(ValueError, match="positions on a grid"):
        resize_positions({}, small_grid(), TransformerConfig(width=32, heads=4))


@pytest.mark.parametrize("size", [(32, 32), (7, 5)])
def test_learned_positions_are_interpolated_as_transformers_does(size: tuple[int, int]) -> None:
    """14 x 14 patches, as of 224 pixels, to 32 x 32, as of 512, and to grids that are no square."""
    modeling = pytest.importorskip("transformers.models.beit.modeling_beit")
    config = modeling.BeitConfig(
        hidden_size=16, num_attention_heads=2, image_size=56, patch_size=4,
        use_absolute_position_embeddings=True,
    )  # fmt: skip
    theirs = modeling.BeitEmbeddings(config)
    torch.nn.init.normal_(theirs.position_embeddings)
    rows, columns = size
    expected = theirs.interpolate_pos_encoding(
        torch.zeros(1, 1 + rows * columns, 16), 4 * rows, 4 * columns
    )
    ours = resize_table(theirs.position_embeddings[0], Grid(14, 14, 1), Grid(rows, columns, 1))
    torch.testing.assert_close(ours, expected[0])


def test_a_table_for_its_own_grid_and_what_stands_before_the_grid_stay() -> None:
    """Rows and columns are not mixed up: what grows by column alone does so afterwards."""
    table = torch.cat((torch.randn(2), torch.arange(4.0).repeat(3)))[:, None]
    assert torch.equal(resize_table(table, Grid(3, 4, 2), Grid(3, 4, 2)), table)
    wider = resize_table(table.bfloat16(), Grid(3, 4, 2), Grid(5, 8, 2))
    assert wider.dtype == torch.bfloat16 and torch.equal(wider[:2], table[:2].bfloat16())
    grid = wider[2:].view(5, 8)
    torch.testing.assert_close(grid, grid[:1].expand(5, 8))
    assert (grid[0].diff() > 0).all()


@pytest.mark.parametrize("size", [(24, 24), (7, 9)])
def test_relative_biases_are_interpolated_as_timm_does(size: tuple[int, int]) -> None:
    module = timm_module("timm.layers.pos_embed_rel")
    old, new = Grid(14, 14, 1), Grid(*size, 1)
    table = torch.randn(bias_rows(old), 6)
    expected = module.resize_rel_pos_bias_table_simple(table, size, (bias_rows(new), 6))
    torch.testing.assert_close(resize_bias(table, old, new), expected)
    assert torch.equal(resize_bias(table, old, old), table)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_length": 31},
        {"positions": "learned", "max_length": 50},
        {"grid_positions": "relative_bias"},
        {"grid_positions": "shared_relative_bias"},
    ],
    ids=str,
)
def test_a_model_is_filled_for_a_larger_image(changes: dict[str, Any]) -> None:
    """Tables and biases are resized, and all else is as it was."""
    old = small_grid(**{**changes, "max_length": 20})
    new = small_grid(**changes, rows=6, columns=5)
    small, large = shaken(Encoder(old)), Encoder(new)
    large.load_state_dict(resize_positions(small.state_dict(), old, new))
    for name, parameter in small.named_parameters():
        found, expected = large.get_parameter(name), parameter
        if "position_embedding" in name:
            expected = resize_table(parameter[: old.grid.length], old.grid, new.grid)
            found = found[: new.grid.length]
        elif "positions" in name:
            expected = resize_bias(parameter, old.grid, new.grid)
        assert torch.equal(found, expected), name
    assert large(torch.randn(2, 31, 32)).isfinite().all()


def test_a_bias_per_layer_begins_as_the_shared_one() -> None:
    """The same outputs: pre-trained with one bias, fine-tuned with one in each layer (BEiT)."""
    old, new = (small_grid(grid_positions=f"{kind}relative_bias") for kind in ("shared_", ""))
    shared, own = Encoder(old), Encoder(new)
    torch.nn.init.normal_(shared.grid_positions.bias.weight)
    own.load_state_dict(resize_positions(shared.state_dict(), old, new))
    x = torch.randn(2, 17, 32)
    torch.testing.assert_close(own(x), shared(x))
