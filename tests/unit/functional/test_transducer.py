"""The transducer loss and alignment equal what enumeration and autograd give."""

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from magneto.functional.transducer import (
    joiner_transducer_loss,
    transducer_alignment,
    transducer_loss,
)
from tests.unit.functional.recorder import Recorder

VOCABULARY, WIDTH = 7, 3
# More labels than frames, as many, no labels, one frame.
FRAMES, LABELS = torch.tensor([6, 2, 1, 6, 4]), torch.tensor([4, 4, 0, 0, 3])


def features(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Return encoder (5, 6, width), predictor (5, 5, width), weight and bias."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((5, 6, WIDTH), (5, 5, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    drawn = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    return tuple(tensor.to(dtype).requires_grad_() for tensor in drawn)


def targets() -> Tensor:
    return torch.randint(1, VOCABULARY, (5, 4), generator=torch.Generator().manual_seed(1))


def joined(encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    hidden = torch.tanh(encoder[:, :, None] + predictor[:, None])
    return nn.functional.linear(hidden, weight, bias)


def plain(*given: Tensor) -> Tensor:
    return transducer_loss(joined(*given), targets(), FRAMES, LABELS)


def permuted(*given: Tensor) -> Tensor:
    """As `plain`, of logits whose memory is not in the order of their dimensions."""
    logits = joined(*given).transpose(0, 2).contiguous().transpose(0, 2)
    return transducer_loss(logits, targets(), FRAMES, LABELS)


def tiled(*given: Tensor, tile: int = 10, kept: int = 0) -> Tensor:
    return joiner_transducer_loss(*given, targets(), FRAMES, LABELS, tile=tile, kept=kept)


# Every cell's probabilities are kept for the backward pass.
remembered = partial(tiled, kept=10**6)


def with_blank_2(*given: Tensor) -> tuple[Tensor, ...]:
    """Move the tokens of the vocabulary by 2; return features, output layer and targets."""
    moved = (tensor.roll(2, 0) for tensor in given[2:])
    return (*given[:2], *moved, (targets() + 2) % VOCABULARY)


def rolled(*given: Tensor) -> Tensor:
    return joiner_transducer_loss(*with_blank_2(*given), FRAMES, LABELS, 2)


Form = Callable[..., Tensor]


def paths(logits: Tensor, labels: Tensor, blank: int = 0) -> dict[tuple[int, ...], Tensor]:
    """Return each path's log-probability by its labels' frames; of one utterance's logits."""
    scores, (time, width) = logits.log_softmax(-1), logits.shape[:2]
    found = {}
    for frames in itertools.combinations_with_replacement(range(time), width - 1):
        out = [sum(frame <= t for frame in frames) for t in range(time)]
        emitted = [scores[t, u, labels[u]] for u, t in enumerate(frames)]
        blanks = [scores[t, u, blank] for t, u in enumerate(out)]
        found[frames] = torch.stack(emitted + blanks).sum()
    return found


def enumerated(logits: Tensor, labels: Tensor, blank: int = 0) -> Tensor:
    """Return minus the log of the sum over all paths of (time, labels + 1, vocabulary) logits."""
    return -torch.stack([*paths(logits, labels, blank).values()]).logsumexp(0)


def utterances(*given: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the logits and the labels of each utterance, without padding."""
    parts = zip(joined(*given), targets(), FRAMES, LABELS, strict=True)
    return [(logits[:t, : u + 1], labels[:u]) for logits, labels, t, u in parts]


def all_enumerated(*given: Tensor) -> Tensor:
    return torch.stack([enumerated(*each) for each in utterances(*given)])


@cache
def expected() -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the losses and the gradients of all paths enumerated."""
    given = features()
    return all_enumerated(*given).detach(), scaled_gradients(all_enumerated, given)


def scaled_gradients(form: Form, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return gradients of a sum in which each utterance has another factor, one of them 0."""
    factors = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    loss = form(*given)
    return torch.autograd.grad((loss * factors.to(loss)).sum(), given)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# Cells: one frame, two frames of one utterance, one utterance, two, all.
TILES = [1, 11, 30, 61, 1000]
FORMS = [
    plain,
    permuted,
    rolled,
    *(partial(form, tile=n) for form in (tiled, remembered) for n in TILES),
]


@pytest.mark.parametrize("form", FORMS)
def test_losses_and_gradients_are_those_of_all_paths_enumerated(form: Form) -> None:
    given, (losses, gradients) = features(), expected()
    torch.testing.assert_close(form(*given), losses, rtol=1e-12, atol=1e-12)
    close(scaled_gradients(form, given), gradients, 1e-12)


def test_any_blank_and_any_size() -> None:
    for blank, time, count in ((0, 1, 1), (2, 1, 3), (6, 3, 1), (2, 3, 3), (6, 5, 2)):
        logits = 3 * torch.randn(1, time, count + 1, VOCABULARY, dtype=torch.float64)
        labels, logits = torch.tensor([[5, 1, 3][:count]]), logits.requires_grad_()
        lengths = torch.tensor([time]), torch.tensor([count])
        found = transducer_loss(logits, labels, *lengths, blank)
        expected = enumerated(logits[0], labels[0], blank)
        torch.testing.assert_close(found[0], expected)
        close(*(torch.autograd.grad(x.sum(), logits) for x in (found, expected)), 1e-12)


def test_padding_of_features_logits_and_targets_changes_nothing() -> None:
    given, padded = features(), features()
    logits, answers = joined(*given).detach(), targets()
    empty = logits.clone()
    answers[torch.arange(4) >= LABELS[:, None]] = -100
    with torch.no_grad():
        for utterance, (time, count) in enumerate(zip(FRAMES, LABELS, strict=True)):
            padded[0][utterance, time:] = float("nan")
            padded[1][utterance, count + 1 :] = float("inf")
            empty[utterance, time:] = empty[utterance, :, count + 1 :] = float("nan")
    for form in (tiled, remembered):
        assert torch.equal(form(*padded), form(*given))
        found, expected = (scaled_gradients(form, some) for some in (padded, given))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    of_logits = []
    for some, labels in ((logits, targets()), (empty, answers)):
        loss = transducer_loss(some.requires_grad_(), labels, FRAMES, LABELS)
        of_logits.append((loss.detach(), *torch.autograd.grad(loss.sum(), some)))
    assert all(torch.equal(one, other) for one, other in zip(*of_logits, strict=True))


OTHERS = [0, 2, 3, 4]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_spoil_no_other_utterance(bad: float) -> None:
    logits = joined(*features()).detach().requires_grad_()
    loss = transducer_loss(logits, targets(), FRAMES, LABELS)[OTHERS].sum()
    (expected,) = torch.autograd.grad(loss, logits)
    with torch.no_grad():
        logits[1, 0, 1, 3] = bad
    loss = transducer_loss(logits, targets(), FRAMES, LABELS)
    assert loss.isfinite().tolist() == [True, False, True, True, True]
    total = (loss * torch.where(loss.isfinite(), 1, torch.nan)).sum()
    assert torch.equal(torch.autograd.grad(total, logits)[0], expected)


@pytest.mark.parametrize("form", [tiled, remembered])
@pytest.mark.parametrize("which,at", [(0, (1, 0)), (1, (1, 1))])
def test_features_that_are_not_finite_spoil_no_other_utterance(
    which: int, at: tuple[int, int], form: Form
) -> None:
    given = features()
    expected = torch.autograd.grad(form(*given)[OTHERS].sum(), given)
    with torch.no_grad():
        given[which][at] = float("nan")
    loss = form(*given)
    assert loss.isfinite().tolist() == [True, False, True, True, True]
    # Whether a caller leaves it out, or not, and whatever it is multiplied by.
    kept = torch.where(loss.isfinite(), loss, 0).sum()
    for total in (loss.sum(), kept, (loss * torch.where(loss.isfinite(), 1, torch.nan)).sum()):
        close(torch.autograd.grad(total, given, retain_graph=True), expected, 1e-12)


def test_no_path_and_no_frames_are_infinite_and_have_no_gradient() -> None:
    logits, answers = joined(*features()).detach(), targets()
    logits[0, ..., answers[0, 2]] = -torch.inf
    frames = FRAMES.clone()
    frames[3] = 0
    loss = transducer_loss(logits.requires_grad_(), answers, frames, LABELS)
    assert loss.isposinf().tolist() == [True, False, False, True, False]
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all() and not gradient[0].any() and not gradient[3].any()
    assert gradient[1].any()


@pytest.mark.parametrize("frozen", [(0, 1), (2,), (3,), (0, 1, 2, 3)])
def test_what_is_frozen_gets_no_gradient(frozen: tuple[int, ...]) -> None:
    given = features()
    for index in frozen:
        given[index].requires_grad_(False)
    loss = tiled(*given).sum()
    assert loss.requires_grad == (len(frozen) < 4)
    leaves = [tensor for tensor in given if tensor.requires_grad]
    if leaves:
        expected = torch.autograd.grad(plain(*given).sum(), leaves)
        close(torch.autograd.grad(loss, leaves), expected, 1e-12)


def test_micro_batches_add_up_and_the_graph_may_be_kept() -> None:
    """And without a bias, or with one of zeros, the loss is the same."""
    given, rest = features()[:3], (targets(), FRAMES, LABELS)
    whole = torch.autograd.grad(tiled(*given, torch.zeros(VOCABULARY)).sum(), given)
    losses = [
        joiner_transducer_loss(given[0][i], given[1][i], given[2], None, *(x[i] for x in rest))
        for i in (slice(0, 2), slice(2, 5))
    ]
    total = torch.cat(losses).sum()
    for _ in range(2):
        close(torch.autograd.grad(total, given, retain_graph=True), whole, 1e-12)


def test_only_a_tile_exists() -> None:
    batch, time, count, vocabulary, width, tile = 3, 20, 4, 50, 40, 12
    encoder = torch.randn(batch, time, width, requires_grad=True)
    predictor = torch.randn(batch, count + 1, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    rest = (torch.randint(1, vocabulary, (batch, count)), *torch.tensor([[time], [count]]).expand(
        2, batch))  # fmt: skip
    with Recorder() as recorder:
        with torch.autocast("cpu", torch.bfloat16):
            loss = joiner_transducer_loss(
                encoder, predictor, weight, None, *rest, tile=tile, kept=0
            )
        loss.sum().backward()
    # These are larger than a tile of 10 cells; a hidden layer of all cells would be 12,000.
    assert recorder.most == max(encoder.numel(), weight.numel())
    with Recorder() as whole:
        hidden = torch.tanh(encoder[:, :, None] + predictor[:, None])
        transducer_loss(hidden @ weight.T, *rest).sum().backward()
    assert whole.most == batch * time * (count + 1) * vocabulary  # the check can fail


@pytest.mark.parametrize("frozen", [False, True])
def test_without_gradients_no_probabilities_are_kept(frozen: bool) -> None:
    given = [tensor.detach().requires_grad_(not frozen) for tensor in features()]
    with Recorder() as recorder, torch.set_grad_enabled(frozen):
        remembered(*given, tile=10)
    assert recorder.most < 5 * 6 * 5 * VOCABULARY
    with Recorder() as whole:
        remembered(*features(), tile=10)
    assert whole.most == 5 * 6 * 5 * VOCABULARY


def test_counted_operations_do_not_depend_on_the_tile() -> None:
    cells = 5 * 6 * 5
    # Logits once or twice, gradients of hidden layer and weight, and the bias's, a product of one
    # row.
    for kept, products in ((0, 4), (cells * VOCABULARY - 1, 4), (cells * VOCABULARY, 3)):
        found = set()
        # Of fake tensors, the loss computes two tiles only.
        modes = (nullcontext, partial(FakeTensorMode, allow_non_fake_inputs=True))
        for tile, mode in product((5, 30, 1000), modes):
            rest = (targets(), FRAMES, LABELS)
            with mode() as fake, FlopCounterMode(display=False) as counter:
                given = features(torch.float32)
                if fake:
                    given = tuple(fake.from_tensor(tensor) for tensor in given)
                    rest = tuple(fake.from_tensor(tensor) for tensor in rest)
                loss = joiner_transducer_loss(*given, *rest, tile=tile, kept=kept)
                loss.sum().backward()
            found.add(counter.get_total_flops())
        assert found == {2 * cells * VOCABULARY * (products * WIDTH + 1)}


def long_batch(dtype: torch.dtype) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return features and answers of utterances as long as real ones; the same in any type."""
    generator = torch.Generator().manual_seed(2)
    sizes = ((2, 400, 16), (2, 61, 16), (40, 16), (40,))
    drawn = [torch.randn(size, generator=generator) for size in sizes]
    answers = torch.randint(1, 40, (2, 60), generator=generator)
    given = tuple(tensor.to(dtype).requires_grad_() for tensor in drawn)
    return given, (answers, torch.tensor([400, 350]), torch.tensor([60, 45]))


@cache
def exact() -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the losses of the long batch and their gradients, in float64."""
    given, rest = long_batch(torch.float64)
    losses = joiner_transducer_loss(*given, *rest)
    assert losses.dtype == torch.float64 and losses.min() > 500
    return losses.detach(), torch.autograd.grad(losses.sum(), given)


@pytest.mark.parametrize(
    ("dtype", "autocast", "error"),
    [(torch.float32, False, 1e-6), (torch.float32, True, 0.01), (torch.bfloat16, False, 0.01)],
)
def test_long_utterances_are_exact_to_rounding(
    dtype: torch.dtype, autocast: bool, error: float
) -> None:
    """In float32 a sum of 4000 nats has steps of 2e-4, and gradients have errors as large."""
    given, rest = long_batch(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = joiner_transducer_loss(*given, *rest)
        of_logits = transducer_loss(joined(*given), *rest)
    losses, gradients = exact()
    for some in (loss, of_logits):
        assert some.dtype == torch.float32
        torch.testing.assert_close(some.double(), losses, rtol=error, atol=0)
    for one, other in zip(torch.autograd.grad(loss.sum(), given), gradients, strict=True):
        assert one.dtype == dtype
        assert (one - other).norm() < 3 * error * other.norm()


@pytest.mark.parametrize("tile", [1, 1000])
def test_alignments_are_those_of_all_paths_enumerated(tile: int) -> None:
    given = features()
    found = transducer_alignment(*with_blank_2(*given), FRAMES, LABELS, 2, tile=tile)
    for number, each in enumerate(utterances(*given)):
        known = {frames: score.item() for frames, score in paths(*each).items()}
        best, total = max(known, key=known.__getitem__), -enumerated(*each).item()
        assert found.frames[number].tolist() == [*best, *[-1] * (4 - len(best))]
        assert found.score[number].item() == pytest.approx(known[best])
        assert found.log_likelihood[number].item() == pytest.approx(total)
        occupancy = torch.zeros(6, 5, dtype=torch.float64)
        for frames, score in known.items():
            chance = math.exp(score - total)
            for u, t in enumerate(frames):
                occupancy[t, u] += chance
            for t in range(int(FRAMES[number])):
                occupancy[t, sum(frame <= t for frame in frames)] += chance
        torch.testing.assert_close(found.occupancy[number], occupancy)
    assert not found.occupancy.requires_grad


def test_without_a_path_there_is_no_frame_and_no_probability() -> None:
    given = [tensor.detach() for tensor in features()]
    expected = transducer_alignment(*given, targets(), FRAMES, LABELS)
    given[1][0, 1] = torch.nan
    found = transducer_alignment(*given, targets(), FRAMES, LABELS)
    assert found.frames[0].tolist() == [-1] * 4 and not found.score[0].isfinite()
    assert not found.occupancy[0].any()
    for name, values in vars(found).items():
        assert torch.equal(values[1:], getattr(expected, name)[1:])


def test_what_does_not_fit_is_named() -> None:
    one = torch.ones(2, 3, dtype=torch.long)
    logits, lengths, labels = torch.zeros(2, 5, 4, 7), torch.tensor([5, 4]), torch.tensor([3, 0])
    assert transducer_loss(logits, one, lengths, labels).isfinite().all()
    for given, message in (
        ((logits[:, :0], one, lengths, labels), r"do not fit together: logits \(2, 0, 4, 7\) "),
        ((logits[:, 0], one, lengths, labels), r"do not fit together: logits \(2, 4, 7\) "),
        ((logits, one[:, :2], lengths, labels), r"do not fit together: .* targets \(2, 2\) "),
        ((logits, one, lengths[:1], labels), r"together: .* frames \(1,\) .* labels \(2,\) "),
        ((logits, one, lengths + 1, labels), r"frames must be in \[0, 5\], not \[6, 5\]"),
        ((logits, one, lengths, labels - 1), r"labels must be in \[0, 3\], not \[2, -1\]"),
        ((logits, 7 * one, lengths, labels), r"differ from the blank 0; wrong: \[7\]"),
        ((logits, 0 * one, lengths, labels), r"wrong: \[0\]"),
        ((logits, one, lengths, labels, 7), r"blank must be in \[0, 7\), not 7"),
    ):
        with pytest.raises(ValueError, match=message):
            transducer_loss(*given)
    tensors = [torch.zeros(2, 5, 6), torch.zeros(2, 4, 6), torch.zeros(7, 6)]
    for index, shape in ((0, (2, 5, 5)), (1, (3, 4, 6)), (2, (7,))):
        wrong = [*tensors[:index], torch.zeros(shape), *tensors[index + 1 :]]
        with pytest.raises(ValueError, match="do not fit"):
            joiner_transducer_loss(*wrong, None, one, lengths, labels)
