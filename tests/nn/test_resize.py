"""Positions at another resolution: against transformers' own interpolation, and its properties."""

import pytest
import torch

from magneto import Encoder
from magneto.nn.config import Grid
from magneto.nn.grid_position import bias_rows
from magneto.nn.resize import resize_bias, resize_positions, resize_table
from tests.nn.grids import small_grid, timm_module


@pytest.mark.parametrize("size", [(32, 32), (7, 5), (8, 14)])
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
    table = torch.randn(2 + 12, 8)
    assert torch.equal(resize_table(table, Grid(3, 4, 2), Grid(3, 4, 2)), table)
    wider = resize_table(table, Grid(3, 4, 2), Grid(6, 6, 2))
    assert wider.shape == (38, 8) and torch.equal(wider[:2], table[:2])
    assert resize_table(table.bfloat16(), Grid(3, 4, 2), Grid(6, 6, 2)).dtype == torch.bfloat16


def test_a_slope_keeps_its_direction_on_a_grid_that_is_no_square() -> None:
    """Rows and columns are not mixed up: what grows by column alone does so afterwards."""
    table = torch.arange(4.0).repeat(3)[:, None]
    resized = resize_table(table, Grid(3, 4), Grid(5, 8)).view(5, 8)
    torch.testing.assert_close(resized, resized[:1].expand(5, 8))
    assert (resized[0].diff() > 0).all()


@pytest.mark.parametrize("max_length", [37, 50])
def test_a_model_is_filled_for_a_larger_image(max_length: int) -> None:
    old = small_grid(positions="learned", max_length=20)
    new = small_grid(positions="learned", max_length=max_length, rows=6, columns=6)
    torch.manual_seed(0)
    small, large = Encoder(old), Encoder(new)
    resized = resize_positions(small.state_dict(), old, new)
    large.load_state_dict(resized)
    table = small.position_embedding.table.weight[: old.grid.length]
    expected = resize_table(table, old.grid, new.grid)
    assert torch.equal(large.position_embedding.table.weight[:37], expected)
    assert torch.equal(large.layers[1].feed_forward.mlp.fc1.weight,
                       small.layers[1].feed_forward.mlp.fc1.weight)  # fmt: skip
    assert large(torch.randn(2, 37, 32)).isfinite().all()


def test_what_cannot_be_resized_is_said() -> None:
    table = torch.randn(17, 8)
    with pytest.raises(ValueError, match="1 vectors before the grid there, 0 here"):
        resize_table(table, Grid(4, 4, 1), Grid(6, 6, 0))
    with pytest.raises(ValueError, match="17 positions are no 1 \\+ 5 x 5 of a grid"):
        resize_table(table, Grid(5, 5, 1), Grid(6, 6, 1))
    sequence = small_grid().__class__.__base__(width=32, heads=4)
    with pytest.raises(ValueError, match="positions on a grid"):
        resize_positions({}, small_grid(), sequence)


@pytest.mark.parametrize("size", [(24, 24), (7, 9)])
def test_relative_biases_are_interpolated_as_timm_does(size: tuple[int, int]) -> None:
    module = timm_module("timm.layers.pos_embed_rel")
    old, new = Grid(14, 14, 1), Grid(*size, 1)
    table = torch.randn(bias_rows(old), 6)
    expected = module.resize_rel_pos_bias_table_simple(table, size, (bias_rows(new), 6))
    torch.testing.assert_close(resize_bias(table, old, new), expected)
    assert torch.equal(resize_bias(table, old, old), table)


@pytest.mark.parametrize("kind", ["relative_bias", "shared_relative_bias"])
def test_biases_of_a_model_are_resized(kind: str) -> None:
    old, new = small_grid(grid_positions=kind), small_grid(grid_positions=kind, rows=6, columns=5)
    small, large = Encoder(old), Encoder(new)
    for name, parameter in small.named_parameters():
        if "positions" in name:
            torch.nn.init.normal_(parameter)
    large.load_state_dict(resize_positions(small.state_dict(), old, new))
    for name, parameter in small.named_parameters():
        mine = large.get_parameter(name)
        resized = "positions" in name
        expected = resize_bias(parameter, old.grid, new.grid) if resized else parameter
        assert torch.equal(mine, expected)
    assert large(torch.randn(2, 31, 32)).isfinite().all()


def test_a_bias_per_layer_begins_as_the_shared_one() -> None:
    """The same outputs: pre-trained with one bias, fine-tuned with one in each layer (BEiT)."""
    old, new = (small_grid(grid_positions=f"{kind}relative_bias") for kind in ("shared_", ""))
    shared, own = Encoder(old), Encoder(new)
    torch.nn.init.normal_(shared.grid_positions.bias.weight)
    own.load_state_dict(resize_positions(shared.state_dict(), old, new))
    x = torch.randn(2, 17, 32)
    torch.testing.assert_close(own(x), shared(x))


def test_biases_that_cannot_be_resized_are_named() -> None:
    table = torch.randn(bias_rows(Grid(4, 4, 1)), 2)
    with pytest.raises(ValueError, match="1 vectors before the grid there, 0 here"):
        resize_bias(table, Grid(4, 4, 1), Grid(6, 6, 0))
    with pytest.raises(ValueError, match="52 biases are none of 5 x 5 places: they have 84"):
        resize_bias(table, Grid(5, 5, 1), Grid(6, 6, 1))
