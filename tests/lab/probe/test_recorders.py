"""What is recorded of images and texts: beside the one-way encoder's numbers, and by hand."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from magneto.lab.probe.diagnosis import theory_of
from magneto.lab.probe.probe import LayerReading, Probe
from magneto.lab.probe.scales import effective_scales
from magneto.nn.multiway import pack
from magneto.theory.placement import PLACEMENTS
from tests.nn.test_multiway import DESIGNS, MIXED, made_equal, multiway, one_way, samples, tokens

IMAGES, PADDED = [(5, 0), (5, 0)], [(5, 3), (5, 6), (0, 4)]


def step(model: torch.nn.Module, *inputs: object) -> list[LayerReading]:
    """Take a step of SGD on the mean square of what comes out, and read."""
    probe = Probe(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch():
        output = model(*inputs)
        output = output if isinstance(output, Tensor) else torch.cat(output)
        output.square().sum().backward()
    probe.mark()
    optimizer.step()
    return probe.read()


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_images_alone_read_as_in_the_one_way_encoder(placement: str, design: str) -> None:
    """Where experts have the same weights; an update is held against all of a layer's weights."""
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
    """Tokens of both modalities count; each is told apart from its own modality's."""
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


@pytest.mark.parametrize("sizes", [MIXED, PADDED, [(5, 3), (5, 3)], [(0, 3), (0, 6)]])
def test_attention_of_one_sample_of_each_kind(sizes: list[tuple[int, int]]) -> None:
    """Padding is no query, and an image alone does not speak for the pairs."""
    model = multiway("decoupled")
    vision, language, packing = tokens(sizes)
    probe = Probe(model)
    with probe.watch():
        model(vision, language, packing)
    kinds = [(bool(image), bool(text)) for image, text in sizes]
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    for layer, reading in enumerate(probe.read()):
        weights = model.attention_weights(vision, language, packing, layer)
        entropies, shares = [], []
        for row in first:
            length = sum(sizes[row])
            entropy = torch.special.entr(weights[row, :, :length, :length]).sum(-1).flatten()
            entropies.append(entropy)
            shares.append(entropy / math.log(length))
        assert reading.attention_entropy == pytest.approx(torch.cat(entropies).mean().item(), 1e-4)
        assert reading.entropy_share == pytest.approx(torch.cat(shares).mean().item(), 1e-4)


def test_a_modality_whose_tokens_are_the_same_has_collapsed() -> None:
    """Experts give each modality a vector of its own, which is nothing that tells tokens apart."""
    model = multiway("decoupled")
    packing = pack([5, 5], [3, 6])
    streams = (torch.ones(10, 32), -torch.ones(9, 32))
    every = model.tokens(streams)
    assert torch.equal(model.position_means(every, (streams, packing, packing.mask())), every)


def test_a_modality_that_is_not_there() -> None:
    vision, language, packing = tokens([(0, 3), (0, 6)])
    for reading in step(multiway("fusion"), vision, language, packing):
        values = asdict(reading)
        values.pop("name")
        assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize("design", DESIGNS)
def test_the_theory_of_equal_experts_is_the_one_way_encoders(design: str) -> None:
    model = made_equal(multiway(design))
    plain = one_way(model)
    assert effective_scales(model).v == pytest.approx(effective_scales(plain).v)
    assert effective_scales(model).w == pytest.approx(effective_scales(plain).w)
    found, expected = theory_of(model), theory_of(plain)
    assert found.derived == expected.derived and found.derived
    assert found.measured == pytest.approx(expected.measured)


def test_the_scale_of_experts_is_their_mean_square() -> None:
    """A token goes through one of them."""
    model = made_equal(multiway("decoupled"))
    before = effective_scales(model).v[1]
    with torch.no_grad():
        model.layers[0].feed_forward.experts["language"].mlp.fc2.weight.mul_(3)  # type: ignore[union-attr,index]
    assert effective_scales(model).v[1] == pytest.approx(before * math.sqrt((1 + 9) / 2))
