"""Maximal update parametrisation in training: what it leaves as it is, what it refuses."""

import pytest
import torch
from torch import nn

from magneto.cli import main
from magneto.nn.config import TransformerConfig
from magneto.nn.embedding import VectorTable
from magneto.nn.parametrization import Scale, scale_initial_values, width_scales
from magneto.nn.transformer import Encoder
from magneto.progress import SILENT
from magneto.recipe import Recipe, load_recipe
from magneto.training.distributed import single_process
from magneto.training.model import initial_model
from magneto.training.optimizer import build_optimizer
from tests.unit.vision.small import small_model as small_segmenter

SMALL = {"model.layers": 2, "model.width": 32, "model.heads": 4, "model.ffn_width": 64,
         "training.learning_rate": 0.01, "training.device": "cpu"}  # fmt: skip
MUP = {"model.parametrization": "mup"}


def digits(**changes: object) -> Recipe:
    pytest.importorskip("sklearn")
    return load_recipe("image-classification/tiny", SMALL | changes)


def first_model(recipe: Recipe) -> nn.Module:
    task = recipe.build_task()
    task.prepare(SILENT)
    return initial_model(task, 1, single_process(torch.device("cpu")))


def test_at_its_base_width_it_is_the_standard_one() -> None:
    """Bit for bit, and at the same rates."""
    plain, scaled = digits(), digits(**MUP, **{"model.base_width": 32})
    one, other = first_model(plain), first_model(scaled)
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    rates = [[group["lr"] for group in build_optimizer(model, plain.training).param_groups]
             for model in (one, other)]  # fmt: skip
    assert rates[0] == rates[1]
    assert set(width_scales(other).values()) == {Scale()}


def test_a_wider_model_begins_with_smaller_steps_in_matrices_alone() -> None:
    recipe = digits(**MUP, **{"model.base_width": 8})
    model = first_model(recipe)
    scales = width_scales(model)
    assert {name for name, scale in scales.items() if scale.rate != 1} == {
        name for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and "embedding" not in name
    }  # fmt: skip
    assert {scale.rate for scale in scales.values()} == {1.0, 0.25}
    plain = first_model(digits())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter * scales[name].initial, model.get_parameter(name)), name


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("image-classification", SMALL, "base_width"),
        ("image-classification", SMALL | {"model.base_width": 12}, "base_width (12)"),
        ("image-classification", SMALL | {"model.base_width": 8, "model.heads": 2}, "heads 2"),
        ("causal-lm", {"model.base_width": 64}, "tie_embeddings"),
        ("translation", {"model.base_width": 64}, "share one matrix"),
    ],
)
def test_what_has_no_base_or_a_tied_output_matrix_is_refused(
    task: str, changes: dict, message: str, capsys: pytest.CaptureFixture
) -> None:
    words = [f"--{name}={value}" for name, value in (MUP | changes).items()]
    assert main(["train", f"{task}/tiny", *words, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


class Tied(nn.Module):
    """A model of one's own, whose output matrix is its table."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.table = VectorTable(10, config.width, 1.0)
        self.head = nn.Linear(config.width, 10, bias=False)
        self.head.weight = self.table.weight


def test_biases_of_transformer_xl_begin_alike_at_every_width() -> None:
    spreads = []
    for width in (64, 1024):
        config = TransformerConfig(layers=1, width=width, heads=width // 16, ffn_width=width,
                                   positions="transformer_xl", parametrization="mup",
                                   base_width=64)  # fmt: skip
        torch.manual_seed(0)
        model = Encoder(config)
        scale_initial_values(model, scales := width_scales(model))
        found = {name: p for name, p in model.named_parameters() if "content_bias" in name
                 or "position_bias" in name}  # fmt: skip
        assert len(found) == 2 and {scales[name].rate for name in found} == {1.0}
        spreads.append(torch.cat([p.flatten() for p in found.values()]).std().item())
    assert spreads[0] == pytest.approx(spreads[1], rel=0.15)


def test_matrices_are_drawn_smaller_in_a_wider_model_whatever_their_base() -> None:
    """Xavier's deviation depends on the width by itself."""
    shape = {"layers": 1, "width": 32, "heads": 4, "ffn_width": 64, "base_width": 8}
    for base, initial in (("xavier_uniform", 1.0), ("normal", 0.5), ("truncated_normal", 0.5)):
        model = Encoder(TransformerConfig(**shape, init=base, parametrization="mup"))
        scales = width_scales(model)
        for name in ("self_attention.attention.qkv_proj", "feed_forward.mlp.fc2"):
            assert scales[f"layers.0.{name}.weight"] == Scale(pytest.approx(initial), 0.25)


def test_a_weight_with_two_scales_is_refused() -> None:
    shape = {"width": 32, "heads": 4, "ffn_width": 64, "parametrization": "mup"}
    with pytest.raises(ValueError, match=r"table\.weight and head\.weight are tied"):
        width_scales(Tied(TransformerConfig(**shape, base_width=8)))
    assert set(width_scales(Tied(TransformerConfig(**shape, base_width=32))).values()) == {Scale()}


def test_convolutions_of_heads_begin_as_the_table_says() -> None:
    """Whether they are drawn over their inputs or their outputs, and transposed ones too."""
    small = dict(small_segmenter().named_parameters())
    wide = {"width": 128, "heads": 16, "ffn_width": 192}
    model = small_segmenter(**wide, parametrization="mup", base_width=16)
    scales = width_scales(model)
    scale_initial_values(model, scales)
    named = {"pyramid.levels.1.weight": 8**-0.5, "head.laterals.0.0.weight": 1 / 8,
             "auxiliary_head.convolution.0.weight": 1 / 8,
             "auxiliary_head.classifier.weight": 1.0}  # fmt: skip
    for name, times in named.items():
        grown = model.get_parameter(name).std() / small[name].std()
        assert grown.item() == pytest.approx(times, rel=0.3), name
        assert scales[name].rate == (1.0 if times == 1.0 else 1 / 8)


def test_the_base_has_the_same_head_width() -> None:
    shape = {"width": 32, "heads": 4, "key_value_heads": 2, "ffn_width": 64, "base_width": 16}
    base = TransformerConfig(**shape, parametrization="mup").at_base_width()
    assert base == TransformerConfig(width=16, heads=2, key_value_heads=1, ffn_width=32)
    with pytest.raises(ValueError, match=r"key_value_heads would be 0\.5"):
        base.at_width(8)


def test_sgd_is_refused() -> None:
    recipe = digits(**MUP, **{"model.base_width": 8, "training.optimizer": "sgd"})
    with pytest.raises(ValueError, match="adamw"):
        build_optimizer(first_model(recipe), recipe.training)
