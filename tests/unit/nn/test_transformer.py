"""The stacks keep their promises: masks, padding, caches, dropout, features."""

from itertools import cycle, product
from typing import get_args

import pytest
import torch
from torch import nn

from magneto import (
    PLACEMENTS,
    Decoder,
    Encoder,
    EncoderDecoder,
    EncoderDecoderCache,
    KeyValueCache,
    TransformerConfig,
)
from magneto.nn.config import Positions
from magneto.theory.placement import VARIANTS
from tests.unit.nn.grids import EVERY_PART, small

POSITIONS = get_args(Positions)
EVERY_ROW = [*PLACEMENTS, *VARIANTS]


def pair(**changes) -> TransformerConfig:
    return small(encoder_layers=2, decoder_layers=3, **changes)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= tolerance)


@pytest.mark.parametrize(("placement", "positions"), [*zip(EVERY_ROW, cycle(POSITIONS))])
def test_padding_changes_no_real_token(placement: str, positions: str) -> None:
    x = torch.randn(1, 6, 32)
    noise = torch.full((1, 3, 32), 50.0)
    for stack in (Encoder, Decoder):
        model = stack(small(placement=placement, positions=positions)).eval()
        alone = model(x)
        left = torch.tensor([[False] * 3 + [True] * 6])
        assert close(model(torch.cat((noise, x), 1), left)[:, 3:], alone, 3e-5)
        right = torch.tensor([[True] * 6 + [False] * 3])
        assert close(model(torch.cat((x, noise), 1), right)[:, :6], alone, 3e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_row_that_sees_nothing_is_finite(positions: str) -> None:
    """The attention's output is zero there, gradients included; the authors' code gives NaN."""
    model = Encoder(small(positions=positions))
    x = torch.randn(2, 4, 32, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4])
    output = model(x, mask)
    output.sum().backward()
    assert output.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
    seen = []
    hook = model.layers[0].self_attention.attention.dot_product.register_forward_hook(
        lambda module, inputs, result: seen.append(result)
    )
    model(x, mask)
    hook.remove()
    assert not seen[0][1].any() and seen[0][0].any()


@pytest.mark.parametrize(
    ("placement", "case"), [*zip(EVERY_ROW, cycle(product(POSITIONS, [(), (3, None)])))]
)
def test_a_cache_equals_reading_at_once(placement: str, case: tuple[str, tuple]) -> None:
    """Token by token and in pieces, with padding on the left and windows in turn."""
    positions, windows = case
    changes = {"placement": placement, "positions": positions, "windows": windows}
    model = Decoder(small(**changes, key_value_heads=2)).eval()
    x, mask = torch.randn(2, 9, 32), torch.arange(9) >= torch.tensor([[0], [2]])
    whole = model(x, mask)
    for cuts in ([1] * 9, [4, 1, 4]):
        cache, past, found = KeyValueCache(), 0, []
        for part in x.split(cuts, dim=1):
            past += part.shape[1]
            found.append(model(part, mask[:, :past], cache=cache))
        assert close(torch.cat(found, 1)[mask], whole[mask])


def test_cross_attention_reads_its_memory_once() -> None:
    """The authors' code projects the memory again at every decoding step."""
    model = EncoderDecoder(pair(placement=EVERY_PART, positions="sinusoidal")).eval()
    source, target = torch.randn(2, 5, 32), torch.randn(2, 4, 32)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    memory = model.encoder(source, mask)
    calls = []
    projection = model.decoder.layers[0].cross_attention.attention.k_proj
    projection.register_forward_hook(lambda *_: calls.append(1))
    cache = EncoderDecoderCache()
    parts = [
        model.decoder(target[:, i : i + 1], memory=memory, memory_mask=mask, cache=cache)
        for i in range(4)
    ]
    assert len(calls) == 1
    assert close(torch.cat(parts, 1), model(source, target, mask))
    assert cache.get_seq_length() == 4


def test_each_place_has_its_own_dropout_and_evaluation_none() -> None:
    places = {"attention_dropout": 0.2, "activation_dropout": 0.3, "embedding_dropout": 0.4}
    model = Encoder(small(dropout=0.1, **places, drop_path=0.5))
    attention, feed_forward = model.layers[1].self_attention, model.layers[1].feed_forward
    assert attention.dropout.p == feed_forward.dropout.p == 0.1
    assert attention.attention.dot_product.dropout == 0.2
    assert (feed_forward.mlp.activation_dropout.p, model.dropout.p) == (0.3, 0.4)
    assert Encoder(small(dropout=0.1)).dropout.p == 0.1
    x = torch.randn(4, 5, 32)
    for place in ("dropout", "drop_path", *places):
        model = Encoder(small(**{"embedding_dropout": 0.0, place: 0.5}))
        assert not torch.equal(model(x), model(x)), place
        model.eval()
        assert torch.equal(model(x), model(x)), place


def test_the_residual_stream_keeps_its_dtype_under_autocast() -> None:
    model = Encoder(small(placement=EVERY_PART, layer_scale=0.1, input_norm="rmsnorm"))
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            assert model(torch.randn(2, 5, 32, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 5}, "must divide width"),
        ({"key_value_heads": 3}, "must divide heads"),
        ({"encoder_layers": 2}, "set both or neither"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"layers": 0}, "layers must be 1 to 100,000"),
        ({"placement": "sup"}, "did you mean 'sub'"),
        ({"positions": "rotary", "width": 36}, "even head width"),
        ({"unbiased": ("K",)}, "unbiased must be one of q, k, v"),
        ({"head_dim": 6, "heads": 3, "placement": "normformer-fairseq"}, "must divide width"),
        ({"head_dim": 0}, "head_dim must be 1 to"),
        ({"windows": (None, -3)}, "windows must be 1 or more"),
        ({"grid_positions": "rotary"}, "only images have a grid"),
        ({"width": -1, "dropout": 2.0}, "width must be 1.*\ndropout must be"),
    ],
)
def test_impossible_configurations(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small(**changes)


def test_wrong_calls_say_what_is_right() -> None:
    x = torch.randn(1, 4, 32)
    with pytest.raises(ValueError, match=r"mask\.bool"):
        Encoder(small())(x, torch.ones(1, 4))
    for shape in ((4,), (2, 4), (1, 3), (1, 3, 4)):  # a batch of 2 would be broadcast
        with pytest.raises(ValueError, match=r"shape \(1, 4\) \(batch, key length\)"):
            Encoder(small())(x, torch.ones(shape).bool())
    with pytest.raises(ValueError, match=r"shape \(1, 3\) \(batch, key length\)"):
        Decoder(pair())(x, memory=x[:, :3], memory_mask=torch.ones(1, 4).bool())
    with pytest.raises(ValueError, match="needs memory"):
        Decoder(pair())(x)
    with pytest.raises(ValueError, match="no cross-attention"):
        Decoder(small())(x, memory=x)
    with pytest.raises(ValueError, match=r"max_length \(3\)"):
        Encoder(small(positions="learned", max_length=3))(x)
    learned, cache = Decoder(small(positions="learned", max_length=5)), KeyValueCache()
    learned(x, cache=cache)
    with pytest.raises(ValueError, match=r"length 8 exceeds max_length \(5\)"):
        learned(x, cache=cache)
    with pytest.raises(ValueError, match="unknown key normalize_before"):
        TransformerConfig(normalize_before=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="encoder_layers"):
        EncoderDecoder(small())


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["sub", "deepnorm"])
def test_a_thousand_layers_train(placement: str) -> None:
    model = Decoder(small(width=64, layers=1000, ffn_width=256, placement=placement))
    head = nn.Linear(64, 16)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4)
    x, target = torch.randn(1, 8, 64), torch.randint(16, (8,))
    for _ in range(20):
        loss = nn.functional.cross_entropy(head(model(x))[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()


def test_features_run_no_layer_above_and_keep_gradients() -> None:
    model = Encoder(small(layers=3, checkpoint_activations=True))
    x, outputs = torch.randn(2, 5, 32), []
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    second, first = model.features(x, [1, 0])
    assert len(outputs) == 2 and torch.equal(torch.stack(outputs), torch.stack((first, second)))
    assert torch.equal(model.final_norm(*model.features(x, [2])), model(x))
    (first.sum() + second.sum()).backward()
    assert model.layers[1].feed_forward.mlp.fc1.weight.grad is not None
    assert model.layers[2].feed_forward.mlp.fc1.weight.grad is None
    assert model.features(x, []) == []
    pair = torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])
    assert model.position_means(pair, ()).tolist() == [[[2, 4]]]
    with pytest.raises(ValueError, match="no layer 3: layers are 0 to 2"):
        model.features(x, [0, 3])
