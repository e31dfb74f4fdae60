"""BEiT-3 by its authors' names: their shapes, timm's reading of them, and torchscale's class."""

import pytest
import torch
from torch import Tensor, nn

from magneto.hf.weights.beit3 import is_beit3, load_beit3, to_beit3
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

WIDTH, INNER, PATCHES = 32, 48, 9
ARGS = {"encoder_attention_heads": 4}
BLOCK = {
    "self_attn_layer_norm.A": (WIDTH,), "self_attn.q_proj.A": (WIDTH, WIDTH),
    "self_attn.k_proj.A": (WIDTH, WIDTH), "self_attn.v_proj.A": (WIDTH, WIDTH),
    "self_attn.inner_attn_ln.A": (WIDTH,), "self_attn.out_proj.A": (WIDTH, WIDTH),
    "final_layer_norm.A": (WIDTH,), "ffn.A.fc1": (INNER, WIDTH), "ffn.A.ffn_layernorm": (INNER,),
    "ffn.A.fc2": (WIDTH, INNER),
}  # fmt: skip


def authors_state() -> dict[str, Tensor]:
    """The image half of the authors' BEiT3ForImageClassification, with numbers of its own."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "beit3.vision_embed.proj": (WIDTH, 3, 8, 8), "head": (5, WIDTH), "fc_norm": (WIDTH,),
    }  # fmt: skip
    for layer in range(2):
        names = {f"beit3.encoder.layers.{layer}.{name}": shape for name, shape in BLOCK.items()}
        shapes |= names
    state = {"beit3.vision_embed.cls_token": torch.randn(1, 1, WIDTH)}
    positions = torch.randn(PATCHES + 3, WIDTH)
    positions[:2] = 0  # never read: positions begin at 2
    state["beit3.encoder.embed_positions.A.weight"] = positions
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.randn(shape)
        state[f"{name}.bias"] = torch.randn(shape[0])
    return state


def test_there_and_back_is_bit_equal() -> None:
    state = authors_state()
    assert is_beit3(state)
    ours = load_beit3(state, ARGS)
    assert ours.config.pooling == "mean_then_norm" and ours.config.image_size == 24
    back, args = to_beit3(ours)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    again = load_beit3(back, args)
    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(again(images), ours(images))


def test_the_text_half_is_left_behind() -> None:
    state = authors_state()
    whole = state | {n.replace(".A.", ".B."): t + 1 for n, t in state.items() if ".A." in n}
    whole["beit3.text_embed.weight"] = torch.randn(7, WIDTH)
    whole["beit3.vision_embed.mask_token"] = torch.randn(1, 1, WIDTH)
    expected = load_beit3(state, ARGS).state_dict()
    bare = {name.removeprefix("beit3."): tensor for name, tensor in whole.items()}
    for given in (whole, bare):
        assert is_beit3(given)
        found = load_beit3(given, ARGS).state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_timm_reads_the_same_model() -> None:
    """timm's own renaming of the authors' checkpoints, and its class."""
    pytest.importorskip("transformers")
    from tests.hf.weights.test_timm import IMAGES, timm_model
    from tests.nn.grids import timm_module

    state = authors_state()
    theirs = timm_model("beit3_base_patch16_224")
    renamed = timm_module("timm.models.vision_transformer").checkpoint_filter_fn(state, theirs)
    theirs.load_state_dict(renamed)
    with torch.no_grad():
        assert (theirs(IMAGES) - load_beit3(state, ARGS)(IMAGES)).abs().max() <= 1e-5


def test_epsilon_and_activation_are_arguments() -> None:
    config = load_beit3(authors_state(), ARGS | {"layernorm_eps": 1e-6, "activation_fn": "relu"})
    assert (config.config.norm_eps, config.config.activation) == (1e-6, "relu")
    state, args = to_beit3(config)
    assert load_beit3(state, args).config == config.config


def test_what_does_not_fit_is_named() -> None:
    state = authors_state()
    headless = {name: t for name, t in state.items() if not name.startswith("head.")}
    with pytest.raises(ValueError, match="have no classifier"):
        load_beit3(headless)
    with pytest.raises(ValueError, match="no place here for the tensor 'extra'"):
        load_beit3(state | {"extra": torch.ones(1)}, ARGS)
    positions = "beit3.encoder.embed_positions.A.weight"
    with pytest.raises(ValueError, match="no square image"):
        load_beit3(state | {positions: torch.ones(11, WIDTH)}, ARGS)
    with pytest.raises(ValueError, match="say how many heads a model of width 32 has"):
        load_beit3(state)
    values = {"width": 32, "layers": 1, "heads": 4, "ffn_width": 48, "image_size": 8}
    values |= {"patch_size": 4, "class_token": "learned", "max_length": 5, "positions": "learned"}
    for changes, words in [
        ({"placement": "pre"}, "placement is 'pre' here, 'sub' there"),
        ({"pooling": "first"}, "pooling is 'first' here, 'mean_then_norm' there"),
        (
            {"unbiased": ("k",), "pooling": "mean_then_norm"},
            r"unbiased is \('k',\) here, \(\) there",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            to_beit3(ImageClassifier(ImageClassifierConfig(**{**values, **changes})))
    with pytest.raises(ValueError, match="no counterpart of a Linear"):
        to_beit3(nn.Linear(1, 1))


def test_parity_with_torchscale() -> None:
    """Runs where torchscale can be imported; its BEiT3 is the one that the authors' weights fit."""
    package = pytest.importorskip("torchscale.model.BEiT3")
    from torchscale.architecture.config import EncoderConfig

    args = EncoderConfig(
        encoder_embed_dim=WIDTH, encoder_attention_heads=4, encoder_ffn_embed_dim=INNER,
        encoder_layers=3, img_size=24, patch_size=8, vocab_size=11, multiway=True,
        normalize_output=False, no_output_layer=True,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = nn.ModuleDict(
        {"beit3": package.BEiT3(args), "fc_norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, 5)}
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    ours = load_beit3(theirs.state_dict(), ARGS)
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        features = theirs["beit3"](None, images)["encoder_out"][:, 1:].mean(1)
        expected = theirs["head"](theirs["fc_norm"](features))
        difference = (expected - ours(images)).abs().max().item()
    print(f"BEiT-3's image classifier: largest difference {difference:.2e}")
    assert difference <= 1e-5
