"""Places on a grid against BEiT of transformers and EVA-02 of timm, whole models, weights moved.

At another resolution: against their own interpolation.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto import Decoder, Encoder
from magneto.nn.config import Grid
from magneto.nn.position import (
    GridRotaryTable,
    bias_rows,
    relative_index,
    resize_bias,
    resize_positions,
    resize_table,
)
from magneto.theory.placement import Placement
from tests.unit.nn.grids import small_grid, timm_module

CPU = torch.device("cpu")


def shake(module: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(float("norm" in name and name.endswith("weight")), 0.3)


BEIT = {
    "self_attention.before": "layernorm_before",
    "self_attention.attention.out_proj": "attention.o_proj",
    "feed_forward.before": "layernorm_after",
    "feed_forward.mlp.fc1": "mlp.fc1",
    "feed_forward.mlp.fc2": "mlp.fc2",
}


def from_beit(given: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    made = {f"final_norm.{kind}": given[f"layernorm.{kind}"] for kind in ("weight", "bias")}
    if "shared_position_bias.relative_position_bias_table" in given:
        made["grid_positions.bias.weight"] = given[
            "shared_position_bias.relative_position_bias_table"
        ]
    if "embeddings.position_embeddings" in given:
        made["position_embedding.table.weight"] = given["embeddings.position_embeddings"][0]
    for n in range(layers):
        ours, theirs = f"layers.{n}", f"layers.{n}"
        attention = f"{ours}.self_attention.attention"
        made[f"{attention}.qkv_proj.weight"] = torch.cat(
            [given[f"{theirs}.attention.{part}_proj.weight"] for part in "qkv"]
        )
        made[f"{attention}.qkv_proj.bias"] = torch.cat(
            [given[f"{theirs}.attention.{part}_proj.bias"] for part in "qv"]
        )
        for mine, other in BEIT.items():
            for kind in ("weight", "bias"):
                made[f"{ours}.{mine}.{kind}"] = given[f"{theirs}.{other}.{kind}"]
        if f"{theirs}.lambda_1" in given:
            made[f"{ours}.self_attention.layer_scale.weight"] = given[f"{theirs}.lambda_1"]
            made[f"{ours}.feed_forward.layer_scale.weight"] = given[f"{theirs}.lambda_2"]
        table = f"{theirs}.relative_position_bias.relative_position_bias_table"
        if table in given:
            made[f"{attention}.positions.bias.weight"] = given[table]
    return made


@pytest.mark.parametrize("layer_scale", [None, 0.1])
@pytest.mark.parametrize("kind", ["none", "relative_bias", "shared_relative_bias"])
def test_the_encoder_is_beits(kind: str, layer_scale: float | None) -> None:
    """Outputs, each layer's features and attention, and the gradients of every weight."""
    transformers = pytest.importorskip("transformers")
    learned = kind == "none"
    theirs = transformers.BeitModel(
        transformers.BeitConfig(
            hidden_size=32, num_attention_heads=4, num_hidden_layers=3, intermediate_size=48,
            image_size=12, patch_size=3, layer_scale_init_value=layer_scale or 0.0,
            use_relative_position_bias=kind == "relative_bias", layer_norm_eps=1e-6,
            use_shared_relative_position_bias=kind == "shared_relative_bias",
            use_absolute_position_embeddings=learned, use_mean_pooling=False,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).eval()  # fmt: skip
    shake(theirs)
    given = dict(theirs.named_parameters())
    ours = Encoder(
        small_grid(
            layers=3, placement="pre", norm_eps=1e-6, unbiased=("k",), grid_positions=kind,
            layer_scale=layer_scale, positions="learned" if learned else "none", max_length=17,
        )
    ).eval()  # fmt: skip
    ours.load_state_dict(from_beit(given, 3))
    images = torch.randn(2, 3, 12, 12)
    x = theirs.embeddings(images).detach()
    if learned:
        x = x - given["embeddings.position_embeddings"].detach()
    found = theirs(images, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(ours(x), found.last_hidden_state, rtol=1e-5, atol=2e-5)
    for n, features in enumerate(ours.features(x, range(3))):
        # Theirs begins with the embeddings; its last is after the norm or before, by version.
        if n < 2:
            torch.testing.assert_close(features, found.hidden_states[n + 1], rtol=1e-5, atol=2e-5)
        weights = ours.attention_weights(x, n)
        torch.testing.assert_close(weights, found.attentions[n], rtol=1e-5, atol=2e-5)
    weigh = torch.randn(2, 17, 32)
    (found.last_hidden_state * weigh).sum().backward()
    (ours(x) * weigh).sum().backward()
    moved = {name: p.grad for name, p in given.items() if p.grad is not None}
    for name, gradient in from_beit(moved, 3).items():
        mine = ours.get_parameter(name).grad
        torch.testing.assert_close(mine, gradient, rtol=1e-4, atol=1e-4, msg=name)


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


EVA = {
    "self_attention.before": "norm1",
    "self_attention.attention.inside": "attn.norm",
    "self_attention.attention.out_proj": "attn.proj",
    "feed_forward.before": "norm2",
    "feed_forward.mlp.inside": "mlp.norm",
    "feed_forward.mlp.fc2": "mlp.fc2",
}


def halves(rows: Tensor, head_width: int) -> Tensor:
    """EVA turns neighbours, (2i, 2i + 1); here pairs are (i, i + half): the same, rows moved."""
    heads = rows.unflatten(0, (-1, head_width // 2, 2))
    return heads.transpose(1, 2).flatten(0, 2)


def from_eva(given: dict[str, Tensor], layers: int, head_width: int) -> dict[str, Tensor]:
    made = {f"final_norm.{kind}": given[f"norm.{kind}"] for kind in ("weight", "bias")}
    for n in range(layers):
        ours, theirs = f"layers.{n}", f"blocks.{n}"
        attention = f"{ours}.self_attention.attention"
        query, key, value = (given[f"{theirs}.attn.{part}_proj.weight"] for part in "qkv")
        made[f"{attention}.qkv_proj.weight"] = torch.cat(
            (halves(query, head_width), halves(key, head_width), value)
        )
        query, value = (given[f"{theirs}.attn.{part}_proj.bias"] for part in "qv")
        made[f"{attention}.qkv_proj.bias"] = torch.cat((halves(query, head_width), value))
        for kind in ("weight", "bias"):
            made[f"{ours}.feed_forward.mlp.fc1.{kind}"] = torch.cat(
                [given[f"{theirs}.mlp.fc1_{part}.{kind}"] for part in "gx"]
            )
            for mine, other in EVA.items():
                if f"{theirs}.{other}.{kind}" in given:
                    made[f"{ours}.{mine}.{kind}"] = given[f"{theirs}.{other}.{kind}"]
    return made


@pytest.mark.parametrize("reference", [None, 6])
@pytest.mark.parametrize("inner", [False, True])
def test_the_encoder_is_eva02s(inner: bool, reference: int | None) -> None:
    """SwiGLU with a norm inside, no bias of keys, rotary positions of 3 x 5 patches."""
    eva = timm_module("timm.models.eva")
    stretched: dict[str, Any] = {} if reference is None else {"ref_feat_shape": (reference,) * 2}
    theirs = eva.Eva(
        img_size=(12, 20), patch_size=4, embed_dim=32, depth=2, num_heads=4, mlp_ratio=1.5,
        qkv_fused=False, swiglu_mlp=True, scale_mlp=True, scale_attn_inner=inner,
        use_rot_pos_emb=True, global_pool="token", num_classes=0, **stretched,
    ).eval()  # fmt: skip
    shake(theirs)
    row = Placement(
        name="eva02", title="EVA-02", source="arXiv 2303.11331", final="norm",
        self_attention=("before", "inside") if inner else ("before",),
        feed_forward=("before", "inside"),
    )  # fmt: skip
    ours = Encoder(
        small_grid(
            placement=row, activation="swiglu", unbiased=("k",), norm_eps=1e-6, rows=3, columns=5,
            grid_positions="rotary", reference_grid=reference,
        )
    ).eval()  # fmt: skip
    ours.load_state_dict(from_eva(dict(theirs.named_parameters()), 2, 8))
    images, entered = torch.randn(2, 3, 12, 20), []
    theirs.blocks[0].register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    expected = theirs.forward_features(images)
    torch.testing.assert_close(ours(entered[0]), expected, rtol=1e-5, atol=2e-5)


def test_rotary_positions_leave_the_class_token_alone() -> None:
    config = small_grid(grid_positions="rotary", rows=2, columns=3)
    cosine, sine = GridRotaryTable(config, config.grid)(torch.zeros(1, 7, 32))
    assert (cosine[0, 0, 0] == 1).all() and not sine[0, 0, 0].any()
    # Place (1, 2): pairs 0 and 1 turn by the row, 2 and 3 by the column.
    angles = torch.tensor([1, 0.01, 2, 0.02]).repeat(2)
    torch.testing.assert_close(sine[0, 0, 6], angles.sin())


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
    with pytest.raises(ValueError, match="prefix vectors differ: 1 and 0"):
        resize_table(table, Grid(4, 4, 1), Grid(6, 6, 0))
    with pytest.raises(ValueError, match="17 positions do not fit a grid"):
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
    with pytest.raises(ValueError, match="prefix vectors differ: 1 and 0"):
        resize_bias(table, Grid(4, 4, 1), Grid(6, 6, 0))
    with pytest.raises(ValueError, match="52 biases do not fit 5 x 5 places, which need 84"):
        resize_bias(table, Grid(5, 5, 1), Grid(6, 6, 1))
