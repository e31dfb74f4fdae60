"""The probe's quantities computed by hand, and models unchanged by the probe."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from magneto.lab.probe import (
    LIMITS,
    LayerReading,
    LayerRecorder,
    Probe,
    attention_logits,
    first_trouble,
)
from magneto.lab.update import effective_scales, theory_of
from magneto.nn.attention import build_mask
from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Decoder, Encoder
from tests.unit.nn.test_multiway import (
    DESIGNS,
    MIXED,
    made_equal,
    multiway,
    one_way,
    samples,
    tokens,
)

SHAPE = TransformerConfig(width=16, layers=3, heads=2, ffn_width=32)


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(SHAPE)


def test_readings_by_hand() -> None:
    model, x = decoder(), torch.randn(2, 5, 16)
    outputs = []
    handles = [
        layer.register_forward_hook(lambda m, i, y: outputs.append(y)) for layer in model.layers
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [[p.detach().clone() for p in layer.parameters()] for layer in model.layers]
    probe = Probe(model)
    with probe.watch():
        (model(x) * torch.randn(2, 5, 16)).sum().backward()
    gradients = [[p.grad.clone() for p in layer.parameters()] for layer in model.layers]  # type: ignore[union-attr]
    probe.mark()
    optimizer.step()
    readings = probe.read()
    for handle in handles:
        handle.remove()
    assert not any(module._forward_hooks for module in model.modules()), "the probe's are gone"
    assert [reading.name for reading in readings] == ["layers.0", "layers.1", "layers.2"]
    for reading, y, weights, gradient in zip(readings, outputs, before, gradients, strict=True):
        norm = math.sqrt(sum(part.square().sum().item() for part in gradient))
        size = math.sqrt(sum(part.square().sum().item() for part in weights))
        assert reading.activation_rms == pytest.approx(y.square().mean().sqrt().item())
        assert reading.gradient_norm == pytest.approx(norm, rel=1e-5)
        assert reading.update_ratio == pytest.approx(0.1 * norm / size, rel=1e-4)
        same = y.mean(1).square().mean() / y.square().mean()
        assert reading.token_similarity == pytest.approx(same.item(), abs=1e-5)
        assert reading.activation_max is not None
        assert reading.activation_max >= y.abs().max().item() - 1e-6  # or a linear layer's inside


def test_attention_by_hand() -> None:
    """The recomputed attention equals torch's; the first row has one key only.

    Two heads of queries share keys, and samples differ in their padding and biases.
    """
    query, key, value = (torch.randn(2, heads, 4, 8) for heads in (4, 2, 2))
    padded = torch.tensor([[True] * 4, [True] * 3 + [False]])
    mask = build_mask(padded, torch.zeros(2, 4, 16), 0, True)
    bias = torch.randn(2, 4, 4, 4)
    logits, allowed = attention_logits(query, key, mask, bias, rows=slice(1, 2))
    probabilities = logits.masked_fill(~allowed, -math.inf).softmax(-1)
    added = bias + torch.full((4, 4), -math.inf).triu(1)
    added = added.masked_fill(~padded[:, None, None], -math.inf)
    key, value = (part.repeat_interleave(2, 1) for part in (key, value))
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=added)
    torch.testing.assert_close(probabilities @ value[1:], attended[1:])

    model = decoder()
    seen = {}
    attention = model.layers[0].self_attention.attention.dot_product
    attention.register_forward_hook(lambda m, inputs, y: seen.update(inputs=inputs))
    probe = Probe(model)
    with probe.watch():
        model(torch.randn(2, 4, 16))
    reading = probe.read()[0]
    query, key, _, mask, *_ = seen["inputs"]
    logits, allowed = attention_logits(query, key, mask, None, rows=slice(1))
    closed = logits.masked_fill(~allowed, -math.inf)
    entropy = torch.special.entr(closed.softmax(-1)).sum(-1)[..., 1:]
    assert reading.attention_logit_max == pytest.approx(closed.max().item())
    assert reading.attention_entropy == pytest.approx(entropy.mean().item(), rel=1e-5)
    share = entropy / torch.tensor([2.0, 3.0, 4.0]).log()
    assert reading.entropy_share == pytest.approx(share.mean().item(), rel=1e-5)


def test_a_layer_has_the_largest_or_the_mean_of_its_modules_and_each_only_once() -> None:
    model = decoder()
    recorder, parts = LayerRecorder(model.layers[0], model), (torch.nn.Identity(), model)
    for name in ("activation_max", "attention_logit_max", "attention_entropy", "entropy_share"):
        for value, part in zip((1.0, 3.0), parts, strict=True):
            recorder.keep(name, part, torch.tensor(value))
    assert [value.item() for value in recorder.take().values()] == [3, 3, 2, 2]
    assert recorder.take() == {}
    inputs = torch.nn.ModuleList([torch.nn.Conv2d(3, 4, 2), torch.nn.Embedding(3, 4), model])
    assert [part.numel() for part in Probe(inputs).embeddings] == [48, 4, 12]


def test_padding_and_rows_that_see_nothing_do_not_count() -> None:
    model = Encoder(SHAPE)
    probe, x, found = Probe(model), torch.randn(1, 4, 16), []
    two, none = torch.tensor([[True, True, False, False]]), torch.zeros(1, 4, 4, dtype=torch.bool)
    for mask in (two, none):
        with probe.watch():
            model(x, mask)
        found.append(probe.read()[0])
    assert found[0].attention_entropy is not None
    assert 0 < found[0].attention_entropy <= math.log(2) + 1e-6
    assert (found[1].attention_entropy, found[1].attention_logit_max) == (0, -math.inf)


def reading(name: str, **values: float) -> LayerReading:
    return LayerReading(name, **{"activation_rms": 1.0, "activation_max": 2.0, **values})


def test_the_first_trouble_is_named() -> None:
    half = LIMITS["fp16"] / 2
    fine = [reading("a", gradient_norm=1.0), reading("b", gradient_norm=1.0)]
    large = [fine[0], reading("b", activation_max=half + 1), reading("c", activation_max=math.inf)]
    # A gradient goes wrong from the top down.
    wrong = [reading("a", gradient_norm=math.nan), reading("b", gradient_norm=math.inf)]
    assert first_trouble(fine) is first_trouble(large[:2], "bf16") is None
    assert first_trouble([reading("a", activation_max=half)]) is None
    for readings, limit, layer, reason in (
        (large, "fp16", "b", "half of fp16"), (large, "bf16", "c", "not finite"),
        ([*wrong, reading("c", gradient_norm=1.0)], "fp16", "b", "gradient"),
        ([fine[0], reading("b", update_ratio=math.nan)], "fp16", "b", "weights"),
    ):  # fmt: skip
        found = first_trouble(readings, limit)
        assert found is not None and found.layer == layer and reason in found.reason


IMAGES, PADDED = [(5, 0), (5, 0)], [(5, 3), (5, 6), (0, 4)]


def step(model: torch.nn.Module, *inputs: object) -> list[LayerReading]:
    """Take a step of SGD on the output's sum of squares; return the readings."""
    probe = Probe(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch():
        output = model(*inputs)
        output = output if isinstance(output, Tensor) else torch.cat(output)
        output.square().sum().backward()
    probe.mark()
    optimizer.step()
    return probe.read()


@pytest.mark.parametrize(
    ("placement", "design"),
    [("post", "decoupled"), ("keel", "decoupled"), ("sub", "shared"), ("hybrid", "fusion")],
)
def test_images_alone_read_as_in_the_one_way_encoder(placement: str, design: str) -> None:
    """The experts have equal weights; updates are relative to all of a layer's weights."""
    model = made_equal(multiway(design, placement=placement))
    plain = one_way(model)
    vision, language, packing = tokens(IMAGES)
    weights = [
        [math.sqrt(sum(p.square().sum().item() for p in layer.parameters())) for layer in layers]
        for layers in (model.layers, plain.layers)
    ]
    found = step(model, vision, language, packing)
    expected = step(plain, vision.unflatten(0, (2, 5)))
    assert [reading.name for reading in found] == ["layers.0", "layers.1", "layers.2"]
    for one, two, larger, smaller in zip(found, expected, *weights, strict=True):
        values, wanted = asdict(one), asdict(two)
        assert values.pop("name") == wanted.pop("name")
        values["update_ratio"] *= larger / smaller
        assert values == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("design", DESIGNS)
def test_pairs_by_hand(design: str) -> None:
    """Tokens of both modalities count; variation is measured within each modality."""
    model = multiway(design)
    vision, language, packing = tokens(MIXED)
    found = step(model, vision, language, packing)
    fresh = multiway(design)
    with torch.no_grad():
        outputs = fresh.features(vision, language, packing, [0, 1, 2])
    for reading, streams in zip(found, outputs, strict=True):
        every = torch.cat(streams)
        distinct = [
            part - part.mean(0)
            for number, both in enumerate(samples(streams, MIXED))
            for part in both.split(list(MIXED[number]))
            if len(part)
        ]
        assert reading.activation_rms == pytest.approx(every.square().mean().sqrt().item())
        assert reading.distinct_rms == pytest.approx(
            torch.cat(distinct).square().mean().sqrt().item(), rel=1e-4
        )
        assert reading.activation_max is not None
        assert reading.activation_max >= every.abs().max().item() - 1e-6


@pytest.mark.parametrize(
    ("design", "sizes"),
    [("decoupled", MIXED), ("decoupled", PADDED), ("decoupled", [(5, 3), (5, 3)]),
     ("fusion", [(0, 3), (0, 6)])],
)  # fmt: skip
def test_attention_of_one_sample_of_each_kind(design: str, sizes: list[tuple[int, int]]) -> None:
    """Padding is not a query, and single images are measured apart from pairs."""
    model = multiway(design)
    vision, language, packing = tokens(sizes)
    kinds = [(bool(image), bool(text)) for image, text in sizes]
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    found = []
    with torch.no_grad():
        for layer in range(3):
            weights = model.attention_weights(vision, language, packing, layer)
            rows = [(weights[row, :, : sum(sizes[row]), : sum(sizes[row])], sum(sizes[row]))
                    for row in first]  # fmt: skip
            found.append(
                [(torch.special.entr(part).sum(-1).flatten(), size) for part, size in rows]
            )
    for reading, parts in zip(step(model, vision, language, packing), found, strict=True):
        entropy = torch.cat([part for part, _ in parts]).mean().item()
        share = torch.cat([part / math.log(size) for part, size in parts]).mean().item()
        assert reading.attention_entropy == pytest.approx(entropy, 1e-4)
        assert reading.entropy_share == pytest.approx(share, 1e-4)
        values = [value for value in asdict(reading).values() if value != reading.name]
        assert all(math.isfinite(value) for value in values), "also where a modality is not there"


def test_the_scale_of_experts_is_their_mean_square() -> None:
    """A token passes through one expert. Equal experts have the one-way encoder's bound."""
    model = made_equal(multiway("decoupled"))
    found, expected = theory_of(model), theory_of(one_way(model))
    assert found.derived == expected.derived and found.derived
    assert found.measured == pytest.approx(expected.measured)
    before = effective_scales(model).v[1]
    with torch.no_grad():
        model.layers[0].feed_forward.experts["language"].mlp.fc2.weight.mul_(3)  # type: ignore[union-attr,index]
    assert effective_scales(model).v[1] == pytest.approx(before * math.sqrt((1 + 9) / 2))
