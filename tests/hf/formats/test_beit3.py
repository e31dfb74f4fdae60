"""BEiT-3's state dicts: timm's names and shapes, the authors', and parity with torchscale's."""

import re

import pytest
import torch
from torch import Tensor, nn

from magneto.hf.formats.beit3 import is_beit3, load_beit3, timm_name, to_beit3
from magneto.vision.classification.config import ImageClassifierConfig
from magneto.vision.classification.model import ImageClassifier

WIDTH, INNER, PATCHES = 32, 48, 9
BLOCK = {
    "norm1": (WIDTH,), "attn.q_proj": (WIDTH, WIDTH), "attn.k_proj": (WIDTH, WIDTH),
    "attn.v_proj": (WIDTH, WIDTH), "attn.inner_attn_ln": (WIDTH,), "attn.out_proj": (WIDTH, WIDTH),
    "norm2": (WIDTH,), "mlp.fc1": (INNER, WIDTH), "mlp.norm": (INNER,), "mlp.fc2": (WIDTH, INNER),
}  # fmt: skip


def timm_state(norm: str = "fc_norm") -> dict[str, Tensor]:
    """A state dict as timm's BEiT3 names and shapes it, with numbers of its own."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"patch_embed.proj": (WIDTH, 3, 8, 8), "head": (5, WIDTH)}
    shapes[norm] = (WIDTH,)
    for layer in range(2):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in BLOCK.items()}
    state = {"cls_token": torch.randn(1, 1, WIDTH)}
    state["pos_embed.weight"] = torch.randn(PATCHES + 3, WIDTH)
    state["pos_embed.weight"][:2] = 0  # never read: positions begin at 2
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.randn(shape)
        state[f"{name}.bias"] = torch.randn(shape[0])
    return state


@pytest.mark.parametrize(("norm", "pooling"), [("fc_norm", "mean_then_norm"), ("norm", "first")])
def test_timm_there_and_back_is_bit_equal(norm: str, pooling: str) -> None:
    state = timm_state(norm)
    assert is_beit3(state)
    ours = load_beit3(state, heads=4)
    assert ours.config.pooling == pooling and ours.config.image_size == 24
    back = to_beit3(ours)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    again = load_beit3(back, heads=4)
    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(again(images), ours(images))


def authors_name(name: str) -> str:
    """timm's name as the authors' checkpoints have it."""
    if name.startswith(("head.", "fc_norm.")):
        return name
    if name == "cls_token":
        return "beit3.vision_embed.cls_token"
    name = re.sub(r"^patch_embed\.", "vision_embed.", name)
    name = re.sub(r"^pos_embed\.", "encoder.embed_positions.A.", name)
    name = re.sub(r"^blocks\.", "encoder.layers.", name)
    name = re.sub(r"\.mlp\.norm\.", ".ffn.A.ffn_layernorm.", name)
    name = re.sub(r"\.mlp\.", ".ffn.A.", name)
    name = re.sub(r"\.attn\.(\w+)\.", r".self_attn.\1.A.", name)
    name = re.sub(r"\.norm1\.", ".self_attn_layer_norm.A.", name)
    return "beit3." + re.sub(r"\.norm2\.", ".final_layer_norm.A.", name)


def test_the_authors_names() -> None:
    state = timm_state()
    theirs = {authors_name(name): tensor for name, tensor in state.items()}
    assert "beit3.encoder.layers.1.self_attn.inner_attn_ln.A.weight" in theirs
    assert [timm_name(name) for name in theirs] == list(state)
    theirs["beit3.text_embed.weight"] = torch.randn(7, WIDTH)
    theirs["beit3.vision_embed.mask_token"] = torch.randn(1, 1, WIDTH)
    theirs |= {n.replace(".A.", ".B."): t + 1 for n, t in theirs.items() if ".A." in n}
    assert is_beit3(theirs)
    expected = load_beit3(state, heads=4).state_dict()
    found = load_beit3(theirs, heads=4).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_does_not_fit_is_named() -> None:
    state = timm_state()
    headless = {name: t for name, t in state.items() if not name.startswith("head.")}
    with pytest.raises(ValueError, match="have no classifier"):
        load_beit3(headless)
    with pytest.raises(ValueError, match="no place here for the tensor 'extra'"):
        load_beit3(state | {"extra": torch.ones(1)}, heads=4)
    with pytest.raises(ValueError, match="no square image"):
        load_beit3(state | {"pos_embed.weight": torch.ones(11, WIDTH)}, heads=4)
    assert load_beit3(state).config.heads == 1  # one head of less than 64
    values = {"width": 32, "layers": 1, "heads": 4, "ffn_width": 48, "image_size": 8}
    plain = ImageClassifier(ImageClassifierConfig(patch_size=4, placement="pre", **values))
    with pytest.raises(ValueError, match="placement is 'pre' here, 'sub' there"):
        to_beit3(plain)
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
    ours = load_beit3(theirs.state_dict(), heads=4)
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        features = theirs["beit3"](None, images)["encoder_out"][:, 1:].mean(1)
        expected = theirs["head"](theirs["fc_norm"](features))
        difference = (expected - ours(images)).abs().max().item()
    print(f"BEiT-3's image classifier: largest difference {difference:.2e}")
    assert difference <= 1e-5
