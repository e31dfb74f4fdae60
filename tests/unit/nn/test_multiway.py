"""The multiway encoder against the one-way encoder, and its promises."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

from magneto import Encoder, TransformerConfig
from magneto.nn.config import MultiwayConfig
from magneto.nn.init import sublayer_projections, xavier_std
from magneto.nn.multiway import MultiwayEncoder, PackedDropPath, Packing, check_order, pack
from magneto.theory.placement import Depth
from magneto.training.model import FillRecorder
from tests.unit.nn.grids import EVERY_PART, drawn_by_module, shaken

SHAPE = {"width": 32, "heads": 4, "layers": 3, "ffn_width": 48}
DESIGNS = {
    "decoupled": {"experts": "decoupled"},
    "shared": {"experts": "shared_attention"},
    "fusion": {"experts": "shared_attention", "vision_language_layers": 2},
}
# Vision and language tokens of each sample.
MIXED = [(5, 0), (5, 0), (5, 3), (5, 6), (0, 4), (0, 8)]
PAIRS = [(5, 3), (5, 3)]
ONE_MODALITY = {"vision": [(5, 0), (4, 0)], "language": [(0, 3), (0, 6)]}


def multiway(design: str = "decoupled", **changes) -> MultiwayEncoder:
    torch.manual_seed(0)
    return shaken(MultiwayEncoder(MultiwayConfig(**{**SHAPE, **DESIGNS[design], **changes})))


def one_way(model: MultiwayEncoder, modality: str = "vision") -> Encoder:
    """The plain encoder that has one modality's weights."""
    names = {field: value for field, value in vars(model.config).items()
             if field in TransformerConfig.__dataclass_fields__}  # fmt: skip
    encoder = Encoder(TransformerConfig(**names))
    state = {}
    for expert in ("shared", modality):
        for name, tensor in model.state_dict().items():
            if f".{expert}." in name:
                name = name.replace(f"experts.{expert}.", "").replace(f"_norm.{expert}.", "_norm.")
                state[name] = tensor
    encoder.load_state_dict(state)
    return encoder.eval()


def made_equal(model: MultiwayEncoder) -> MultiwayEncoder:
    """Every expert gets the weights of vision's."""
    state = model.state_dict()
    for name in state:
        for expert in (".language.", ".vision_language."):
            state[name] = state[name.replace(expert, ".vision.")]
    model.load_state_dict(state)
    return model


def tokens(sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, Packing]:
    """Random embeddings of these samples, packed."""
    vision, language = (list(of) for of in zip(*sizes, strict=True))
    generator = torch.Generator().manual_seed(1)
    given = (torch.randn(sum(of), 32, generator=generator) for of in (vision, language))
    return *given, pack(vision, language)


def samples(streams: tuple[Tensor, Tensor], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Each sample's tokens of both modalities, (length, width)."""
    parts = [x.split(list(of)) for x, of in zip(streams, zip(*sizes, strict=True), strict=True)]
    return [torch.cat(both) for both in zip(*parts, strict=True)]


def check(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize(
    ("placement", "design"),
    [(EVERY_PART, "decoupled"), (EVERY_PART, "shared"), (EVERY_PART, "fusion"), ("keel", "fusion")],
)
def test_equal_experts_are_the_one_way_encoder(placement: Any, design: str) -> None:
    """Features, and gradients: each weight's is the sum over the experts that hold it."""
    model = made_equal(multiway(design, placement=placement, key_value_heads=2))
    plain = one_way(model)
    vision, language, packing = tokens(MIXED)
    given = samples((vision, language), MIXED)
    mask = torch.tensor([[place < len(x) for place in range(11)] for x in given])
    padded = torch.stack([nn.functional.pad(x, (0, 0, 0, 11 - len(x))) for x in given])
    expected = plain(padded, mask)
    found = model(vision, language, packing)
    check(samples(found, MIXED), [y[: len(x)] for x, y in zip(given, expected, strict=True)])
    pull(found)
    (expected * mask[..., None]).square().sum().backward()
    held: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parts = [part for part in name.split(".") if part not in
                 ("experts", "shared", "vision", "language", "vision_language")]  # fmt: skip
        assert parameter.grad is not None
        held[".".join(parts)] = held.get(".".join(parts), 0) + parameter.grad
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert held.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(held[name], gradient, rtol=1e-4, atol=2e-4, msg=name)


@pytest.mark.parametrize("design", ["decoupled", "fusion"])
@pytest.mark.parametrize("modality", ONE_MODALITY)
def test_one_modality_is_its_branch(design: str, modality: str) -> None:
    """With every norm that a placement may have."""
    model, sizes = multiway(design, placement=EVERY_PART), ONE_MODALITY[modality]
    vision, language, packing = tokens(sizes)
    plain = one_way(model, modality)
    expected = [plain(x[None])[0] for x in samples((vision, language), sizes)]
    found = model(vision, language, packing)
    check(samples(found, sizes), expected)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_sample_does_not_depend_on_its_batch(design: str) -> None:
    """On no other sample, on no order among its kind, and not on the length of the rows."""
    model = multiway(design)
    vision, language, packing = tokens(MIXED)
    found = samples(model(vision, language, packing), MIXED)
    for number, x in enumerate(samples((vision, language), MIXED)):
        image, text = MIXED[number]
        alone = model(x[:image], x[image:], pack([image], [text]))
        check([torch.cat(alone)], [found[number]])
    order = [1, 0, 3, 2, 5, 4]
    sizes = [MIXED[number] for number in order]
    moved = [
        torch.cat([x.split(list(of))[number] for number in order])
        for x, of in zip((vision, language), zip(*MIXED, strict=True), strict=True)
    ]
    counts = [list(of) for of in zip(*sizes, strict=True)]
    again = samples(model(moved[0], moved[1], pack(counts[0], counts[1])), sizes)
    check(again, [found[number] for number in order])


def pull(streams: Sequence[Tensor]) -> None:
    """Send gradients back from every number of both streams."""
    sum(x.square().sum() for x in streams).backward()  # type: ignore[union-attr]


def used(model: nn.Module) -> set[str]:
    """The experts that got a gradient; every parameter has one, zero or not."""
    found = set()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if parameter.grad.any():
            found |= {part for part in name.split(".") if part in
                      ("shared", "vision", "language", "vision_language")}  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("design", "sizes", "expected"),
    [
        ("decoupled", ONE_MODALITY["vision"], {"vision"}),
        ("decoupled", ONE_MODALITY["language"], {"language"}),
        ("decoupled", PAIRS, {"vision", "language"}),
        ("shared", ONE_MODALITY["vision"], {"shared", "vision"}),
        ("fusion", [(5, 0), (0, 3)], {"shared", "vision", "language"}),
        ("fusion", PAIRS, {"shared", "vision", "language", "vision_language"}),
    ],
)
def test_gradients_reach_the_experts_that_are_used(
    design: str, sizes: list[tuple[int, int]], expected: set[str]
) -> None:
    """The others' are zeros: data parallel training waits for each parameter's."""
    model = multiway(design)
    pull(model(*tokens(sizes)))
    assert used(model) == expected
    if "vision_language" in expected:  # pairs have their own network in the upper two layers
        for number, layer in enumerate(model.layers):
            for name, expert in layer.feed_forward.experts.items():
                reached = any(p.grad.any() for p in expert.parameters())
                assert reached == ((name == "vision_language") == (number > 0))


def test_the_papers_sizes() -> None:
    """24 layers of width 544 (appendix, table of vision-language pre-training); 85.5 one-way."""
    size = {"width": 544, "layers": 24, "heads": 16, "ffn_width": 2176}
    for design, millions in (("decoupled", 171.1), ("shared", 142.5), ("fusion", 147.3)):
        with torch.device("meta"), FillRecorder():
            model = MultiwayEncoder(MultiwayConfig(**size, **DESIGNS[design]))
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
    with torch.device("meta"):
        plain = Encoder(TransformerConfig(**size))
    assert sum(p.numel() for p in plain.parameters()) / 1e6 == pytest.approx(85.5, abs=0.05)


@pytest.mark.parametrize(
    ("placement", "design"), [("sub", "decoupled"), ("deepnorm", "fusion"), ("gated", "shared")]
)
def test_it_is_drawn_module_by_module_and_every_expert_gets_the_gain(
    placement: str, design: str
) -> None:
    """torchscale gains both; unilm's BEiT-3 then draws every linear layer anew, without it."""
    size = {"width": 64, "heads": 4, "layers": 4, "ffn_width": 96, "input_norm": "rmsnorm"}
    config = MultiwayConfig(**size, **DESIGNS[design], placement=placement)
    model = drawn_by_module(lambda: MultiwayEncoder(config))
    for sublayer, projection in sublayer_projections(model):
        gain = config.row.sublayer_gain(sublayer, Depth("encoder", 4))
        for role, weight in projection.roles():
            scale = gain if role in ("v", "out", "fc1", "fc2") else 1
            expected = xavier_std(*weight.shape, scale)
            assert weight.std().item() == pytest.approx(expected, rel=0.05), role


def test_one_graph_serves_batches_of_every_size() -> None:
    """tests/gpu trains the models of all tasks compiled."""
    torch.compiler.reset()
    model = multiway("fusion", layers=1, vision_language_layers=1)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for sizes in (MIXED, [(4, 0), (3, 0), (4, 2), (3, 9), (0, 3), (0, 5), (0, 6)], MIXED[1:5]):
        given = tokens(sizes)
        check(compiled(*given), model(*given))
    assert counter.frame_count == 1


def test_samples_skip_a_branch_in_both_modalities() -> None:
    drop_path = PackedDropPath(0.4)
    sizes = [(3, 2)] * 2000
    vision, language, packing = tokens(sizes)
    ones = (torch.ones_like(vision), torch.ones_like(language))
    kept = torch.stack([x.unique() for x in samples(drop_path.packed(ones, packing), sizes)])
    assert kept.shape == (2000, 1) and kept.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert kept.mean().item() == pytest.approx(1, abs=0.06)
    assert drop_path.eval().packed(ones, packing) is ones
    layers = multiway(drop_path=0.4).layers
    assert layers[0].feed_forward.drop_path is None
    rates = [getattr(part.drop_path, "rate", 0.0) for layer in layers
             for part in (layer.self_attention, layer.feed_forward)]  # fmt: skip
    assert rates == pytest.approx([0, 0, 0.2, 0.2, 0.4, 0.4])
    vision, language, packing = tokens(MIXED)
    layer, given = multiway(drop_path=1 - 1e-7).layers[2].train(), (vision, language)
    skipped = (
        layer.self_attention(given, packing, packing.mask()),
        layer.feed_forward(given, packing),
    )
    assert all(torch.equal(x, y) for each in skipped for x, y in zip(each, given, strict=True))
    places = multiway(dropout=0.1, embedding_dropout=0.3).dropout, multiway(dropout=0.1).dropout
    assert [place.p for place in places] == [0.3, 0.1]


def test_the_streams_keep_their_dtype_under_autocast() -> None:
    model, (vision, language, packing) = multiway("fusion", drop_path=0.1).train(), tokens(MIXED)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            found = model(vision.to(dtype), language.to(dtype), packing)
        assert {x.dtype for x in found} == {dtype}


def test_features_of_chosen_layers() -> None:
    """The norm on top is not in them: a head may stand on the stream itself."""
    model = multiway("fusion")
    given = tokens(MIXED)
    last, first = model.features(*given, layers=[2, 0])
    norm = model.final_norm["shared"]
    assert all(torch.equal(norm(x), y) for x, y in zip(last, model(*given), strict=True))
    assert not torch.allclose(first[0], last[0], atol=1e-2)
    with pytest.raises(ValueError, match="no layer 3: layers are 0 to 2"):
        model.features(*given, layers=[3])


def test_embeddings_of_both_modalities_are_dropped_in_training() -> None:
    model, given = multiway(embedding_dropout=0.5), tokens([(6, 5), (4, 7)])
    for stream in model.train().enter(*given)[0]:
        assert 0 < (stream == 0).float().mean() < 1
    assert all((stream != 0).all() for stream in model.eval().enter(*given)[0])


def test_input_norms_are_each_modalitys_own() -> None:
    model = multiway(input_norm="layernorm")
    vision, language, packing = tokens(PAIRS)
    wanted = [model.input_norm[name](x) for name, x in (("vision", vision), ("language", language))]
    entered, _ = model.enter(vision, language, packing)
    assert all(torch.equal(a, b) for a, b in zip(entered, wanted, strict=True))
    assert not torch.equal(model.input_norm["vision"](language), entered[1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experts": "both"}, "experts must be one of decoupled, shared_attention, not 'both'"),
        (
            {"experts": "shared_attention", "vision_language_layers": 4},
            r"number of layers \(3\), not 4",
        ),
        ({"vision_language_layers": 1}, "experts must be 'shared_attention'"),
        ({"positions": "learned"}, "embeddings already add positions"),
        ({"windows": (4,)}, "windows must be empty"),
        ({"encoder_layers": 2, "decoder_layers": 2}, "in a multiway encoder: set layers"),
        ({"heads": 5}, "must divide width"),
    ],
)
def test_impossible_configurations(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MultiwayConfig(**{**SHAPE, **changes})
    MultiwayConfig(**SHAPE, experts="shared_attention", vision_language_layers=3)


def test_a_packing_of_other_tokens_is_refused() -> None:
    vision, language, packing = tokens(MIXED)
    with pytest.raises(ValueError, match="21 language tokens, not 20 and 20"):
        multiway()(vision, language[1:], packing)
    for mask in (torch.ones(2, packing.length).bool(), torch.ones(1, 3).bool()):
        with pytest.raises(ValueError, match="attention_mask must have the shape"):
            multiway()(vision, language, replace(packing, attention_mask=mask))


def test_full_rows_have_no_mask() -> None:
    """So that attention can take its fastest kernel."""
    assert pack([2, 2], [3, 3]).mask().allowed is None
    assert pack([2, 2], [3, 4]).attention_mask is not None
    assert pack([], []).rows == 0


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (([2, 2], [1, 0]), "sample 1 is out of order: images alone come first"),
        (([0, 2], [1, 1]), "sample 1 is out of order"),
        (([2, 0], [0, 0]), "sample 1 has 0 vision and 0 language tokens"),
        (([-1], [3]), "sample 0 has -1 vision"),
    ],
)
def test_impossible_batches(sizes: tuple[list[int], list[int]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pack(*sizes)
    with pytest.raises(ValueError, match="is longer than argument"):
        pack([1], [1, 2])
    check_order([(1, 0), (1, 1), (0, 1)])


def test_what_is_looked_at_of_a_batch() -> None:
    packing = pack([3, 2, 2, 0], [0, 3, 1, 4])
    assert packing.first_of_each_kind(1).tolist() == [0, 1, 3]
    assert packing.first_of_each_kind(2).tolist() == [0, 1, 1, 2, 3, 3]
    assert pack([0, 0], [2, 5]).first_of_each_kind(1).tolist() == [0]
    assert packing.real().sum(1).tolist() == [3, 5, 3, 4]
    vision, language = torch.arange(7.0)[:, None], torch.arange(8.0)[:, None]
    means = packing.means(vision, packing.vision_place)
    assert means.flatten().tolist() == [1, 1, 1, 3.5, 3.5, 5.5, 5.5]
    means = packing.means(language, packing.language_place)
    assert means.flatten().tolist() == [1, 1, 1, 3, 5.5, 5.5, 5.5, 5.5]
    found = multiway().position_means(
        torch.cat((vision, language)), ((vision, language), packing, None)
    )
    assert found.flatten().tolist() == [1, 1, 1, 3.5, 3.5, 5.5, 5.5, *means.flatten().tolist()]
