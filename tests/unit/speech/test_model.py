"""The transducer: losses against plain ones, batches against single utterances, its size."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.functional.transducer import transducer_loss
from magneto.speech import model as model_module
from magneto.speech.config import TransducerConfig
from magneto.speech.model import (
    FrontEnd,
    Transducer,
    TransducerLoss,
    ctc_loss,
    symmetric_divergence,
)
from magneto.training.model import build_on_meta
from tests.unit.speech.small import small_model

LENGTHS, LABELS = [33, 18, 41], [3, 0, 5]
EVERYTHING = {"intermediate_weight": 0.4, "intermediate_layers": (0,), "kl_weight": 0.2}


def utterances(lengths: list[int] = LENGTHS, labels: list[int] = LABELS, seed: int = 0):
    """Return a model's input, with noise where there is padding of frames."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(len(lengths), max(lengths), 8, generator=random)
    targets = torch.randint(1, 5, (len(labels), max(labels)), generator=random)
    counts = torch.tensor(labels)
    targets *= torch.arange(max(labels)) < counts[:, None]
    sizes = list(zip(lengths, labels, strict=True))
    return features, torch.tensor(lengths), targets, counts, torch.ones(len(lengths)), sizes


def one_of(given, row: int):
    features, lengths, targets, counts, weights, sizes = given
    frames, labels = sizes[row]
    part = slice(row, row + 1)
    return (features[part, :frames], lengths[part], targets[part, :labels], counts[part],
            weights[part], sizes[part])  # fmt: skip


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_a_batch_is_the_sum_of_its_utterances(predictor: str) -> None:
    model = small_model(predictor=predictor, **EVERYTHING)
    given = utterances()
    together = model(*given)
    alone = [model(*one_of(given, row)) for row in range(3)]
    torch.testing.assert_close(together.total, torch.stack([a.total for a in alone]).sum())
    assert together.count == 3 and not together.excluded.any()
    assert set(together.parts) == {"transducer", "ctc", "lm", "intermediate", "divergence"}
    for name, value in together.parts.items():
        torch.testing.assert_close(value, torch.stack([a.parts[name] for a in alone]).sum())
    encoded, lengths = model.encode(*given[:2])
    for row, length in enumerate(lengths.tolist()):
        assert length == LENGTHS[row] // 4
        same, _ = model.encode(*one_of(given, row)[:2])
        torch.testing.assert_close(encoded[row, :length], same[0], atol=1e-5, rtol=1e-4)


def test_the_losses_are_what_they_are_called() -> None:
    model = small_model()
    given = utterances()
    features, lengths, targets, counts = given[:4]
    found = model(*given)
    encoded, frames = model.encode(features, lengths)
    predicted = model.predictor(targets)
    one, other = model.joiner(encoded, predicted)
    logits = model.joiner.logits(one[:, :, None], other[:, None])
    plain = transducer_loss(logits, targets, frames, counts).sum()
    torch.testing.assert_close(found.parts["transducer"], plain)
    chances = model.ctc_head(encoded).log_softmax(-1).transpose(0, 1)
    ctc = F.ctc_loss(chances, targets, frames, counts, reduction="sum")
    torch.testing.assert_close(found.parts["ctc"], ctc)
    inside = torch.arange(5) < counts[:, None]
    lm = F.cross_entropy(model.lm_head(predicted[:, :-1])[inside], targets[inside], reduction="sum")
    torch.testing.assert_close(found.parts["lm"], lm)
    torch.testing.assert_close(found.total, plain + 0.3 * ctc + 0.3 * lm)
    smoothed = model.train()(*given).parts["lm"]  # dropout is 0
    expected = F.cross_entropy(model.lm_head(predicted[:, :-1])[inside], targets[inside],
                               reduction="sum", label_smoothing=0.05)  # fmt: skip
    torch.testing.assert_close(smoothed, expected)


def test_intermediate_losses_are_means_over_layers() -> None:
    one = small_model(**EVERYTHING)
    two = small_model(**{**EVERYTHING, "intermediate_layers": (0, 0)})
    state = one.state_dict()
    again = {name.replace("intermediate.0", "intermediate.1"): x for name, x in state.items()}
    two.load_state_dict(state | again)
    found, same = one(*utterances()), two(*utterances())
    weights = {"transducer": 1, "ctc": 0.3, "lm": 0.3, "intermediate": 0.4, "divergence": 0.2}
    total = sum(weight * found.parts[name] for name, weight in weights.items())
    torch.testing.assert_close(found.total, total)
    torch.testing.assert_close(same.total, total)
    torch.testing.assert_close(same.parts, found.parts)
    (net,) = small_model(**EVERYTHING, dropout=0.5).train().intermediate
    assert not torch.equal(*(net(torch.ones(9, 16)) for _ in range(2)))


def gradients(model: Transducer, given) -> tuple[TransducerLoss, dict[str, Tensor]]:
    model.zero_grad()
    found = model(*given)
    found.total.backward()
    return found, {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def test_an_utterance_without_a_finite_loss_is_left_out() -> None:
    """Three frames make none of the encoder's; its neighbours learn as if it were not there."""
    model = small_model(**EVERYTHING)
    given = utterances([33, 3, 41])
    found, mine = gradients(model, given)
    assert found.excluded.tolist() == [False, True, False] and found.count == 2
    expected: dict[str, Tensor] = {}
    for row in (0, 2):
        _, part = gradients(model, one_of(given, row))
        for name, value in part.items():
            expected[name] = expected.get(name, torch.zeros_like(value)) + value
    for name, value in mine.items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3, msg=name)


def test_what_is_held_fixed_learns_nothing_from_the_intermediate_loss() -> None:
    model = small_model(ctc_weight=0.0, lm_weight=0.0, **EVERYTHING)
    plain = small_model(ctc_weight=0.0, lm_weight=0.0)
    model.load_state_dict(plain.state_dict(), strict=False)
    given = utterances()
    _, mine = gradients(model, given)
    _, theirs = gradients(plain, given)
    torch.testing.assert_close(mine["joiner.output.weight"], theirs["joiner.output.weight"])
    torch.testing.assert_close(mine["predictor.lstm.weight_ih_l0"],
                               theirs["predictor.lstm.weight_ih_l0"])  # fmt: skip
    lowest = "encoder.layers.0.feed_forward.mlp.fc1.weight"
    assert (mine[lowest] - theirs[lowest]).abs().max() > 1e-4


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_a_predictor_drops_embeddings_of_unit_variance(predictor: str) -> None:
    model = small_model(predictor=predictor, predictor_dropout=0.5, vocab_size=200).train()
    made = model.predictor
    assert made.embedding.weight.std().item() == pytest.approx(1, rel=0.1)
    read: list[Tensor] = []
    reader = made.lstm if predictor == "lstm" else made.conv
    reader.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    made(torch.arange(1, 200)[None])
    assert (read[0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    if predictor == "lstm":
        assert made.lstm.dropout == 0.5  # between its layers


def test_the_papers_models_are_as_large_as_it_says() -> None:
    """140M and, with half of the layers, 80M in the paper; 5000 subwords and blank."""
    config = TransducerConfig(
        width=512, layers=36, heads=8, ffn_width=2048, vocab_size=5001,
        positions="transformer_xl",
    )  # fmt: skip
    model, reason = build_on_meta(lambda: Transducer(config))
    assert model is not None, reason
    whole, half = (
        sum(parameter.numel() for parameter in part.parameters()) / 1e6
        for part in (model, model.encoder.layers[18:])
    )
    assert (whole, whole - half) == pytest.approx((140.5, 78.9), abs=0.1)


def test_what_the_encoder_reads_at_first_changes_over_time() -> None:
    """Of its square at least 30 % on these sounds; as torch draws convolutions 1.5 to 8 %."""
    config = TransducerConfig(mel_bins=40, front_channels=(8, 16), width=96, heads=4)
    # 240 frames whose spectrum stays for 12 frames, then is another one.
    coarse = torch.randn(1, 1, 20, 5, generator=torch.Generator().manual_seed(1))
    sounds = F.interpolate(coarse, (240, 40), mode="bilinear")[0] * 1.5
    shares = []
    for seed in range(5):
        torch.manual_seed(seed)
        read = FrontEnd(config)(sounds, torch.tensor([240]))[0][0]
        moving = read - read.mean(0)
        shares.append((moving.square().sum() / read.square().sum()).item())
    assert min(shares) > 0.2


def test_ctc_has_no_loss_where_there_is_no_path() -> None:
    logits = torch.randn(3, 4, 6, requires_grad=True)
    targets = torch.tensor([[1, 2, 3, 4, 5], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    found = ctc_loss(logits, targets, [4, 4, 4], [5, 2, 3])
    assert found[0] == 0 and found[1] > 0
    assert found[2] == 0  # three equal labels need a blank between each
    found.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert not logits.grad[0].any() and logits.grad[1].any()


def test_divergence_is_of_both_posteriors(monkeypatch) -> None:
    monkeypatch.setattr(model_module, "CELLS", 1)  # a frame at a time
    torch.manual_seed(0)
    first, second = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    predictor, weight, bias = torch.randn(2, 3, 3), torch.randn(5, 3), torch.randn(5)
    rest = [each.double() for each in (predictor, weight, bias)]
    frames, labels = torch.tensor([4, 2]), torch.tensor([2, 1])
    found = symmetric_divergence(first, second, *rest, frames, labels)
    for row, (frame, label) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True)):
        posteriors = [
            F.linear(torch.tanh(x[row, :frame, None] + rest[0][row, None, : label + 1]), *rest[1:])
            for x in (first, second)
        ]  # fmt: skip
        p, q = (each.log_softmax(-1) for each in posteriors)
        both = F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
        both = both + F.kl_div(p, q, log_target=True, reduction="none").sum(-1)
        torch.testing.assert_close(found[row], both.mean(), check_dtype=False, atol=1e-6, rtol=1e-5)
    same = symmetric_divergence(first, first, *rest, frames, labels)
    torch.testing.assert_close(same, torch.zeros_like(same))
