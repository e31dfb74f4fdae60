"""The transducer loss equals what enumeration, autograd and another implementation give."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from magneto.functional.transducer import joiner_transducer_loss, transducer_loss

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
    return transducer_loss(joined(*given), targets(), FRAMES, LABELS, tile=11)


def tiled(*given: Tensor, tile: int = 10) -> Tensor:
    return joiner_transducer_loss(*given, targets(), FRAMES, LABELS, tile=tile)


FORMS = pytest.mark.parametrize("form", [plain, tiled])
Form = Callable[..., Tensor]


def enumerated(logits: Tensor, labels: Tensor, blank: int = 0) -> Tensor:
    """Return minus the log of the sum over all paths of (time, labels + 1, vocabulary) logits."""
    log_probabilities, (time, width) = logits.log_softmax(-1), logits.shape[:2]
    paths = []
    # Where the labels stand among all symbols but the last, which is a blank.
    for at in itertools.combinations(range(time - 1 + width - 1), width - 1):
        t = u = 0
        total = logits.new_zeros(())
        for step in range(time + width - 1):
            emitted = labels[u] if step in at else blank
            total = total + log_probabilities[t, u, emitted]
            t, u = (t, u + 1) if step in at else (t + 1, u)
        assert (t, u) == (time, width - 1)
        paths.append(total)
    return -torch.stack(paths).logsumexp(0)


def all_enumerated(*given: Tensor) -> Tensor:
    logits = joined(*given)
    parts = zip(logits, targets(), FRAMES, LABELS, strict=True)
    return torch.stack([enumerated(z[:t, : u + 1], y) for z, y, t, u in parts])


def scaled_gradients(form: Form, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return gradients of a sum in which each utterance has another factor, one of them 0."""
    factors = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    loss = form(*given)
    return torch.autograd.grad((loss * factors.to(loss)).sum(), given)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@FORMS
def test_losses_and_gradients_are_those_of_all_paths_enumerated(form: Form) -> None:
    given = features()
    torch.testing.assert_close(form(*given), all_enumerated(*given), rtol=1e-12, atol=1e-12)
    expected = scaled_gradients(all_enumerated, given)
    close(scaled_gradients(form, given), expected, 1e-12)


@pytest.mark.parametrize("blank", [0, 2, 6])
@pytest.mark.parametrize("time,count", [(1, 1), (1, 3), (3, 1), (3, 3), (5, 2)])
def test_any_blank_and_any_size(blank: int, time: int, count: int) -> None:
    logits = 3 * torch.randn(1, time, count + 1, VOCABULARY, dtype=torch.float64)
    labels = torch.tensor([[token for token in (5, 1, 3)[:count]]])
    lengths = torch.tensor([time]), torch.tensor([count])
    found = transducer_loss(logits, labels, *lengths, blank)
    torch.testing.assert_close(found[0], enumerated(logits[0], labels[0], blank))


@pytest.mark.parametrize("tile", [None, 5])
def test_gradients_are_those_of_finite_differences(tile: int | None) -> None:
    encoder, predictor, *layer = features()
    answers = (targets()[:2, :2], torch.tensor([2, 3]), torch.tensor([2, 1]))

    def loss(*given: Tensor) -> Tensor:
        if tile is None:
            return transducer_loss(joined(*given), *answers)
        return joiner_transducer_loss(*given, *answers, tile=tile)

    leaves = (encoder[:2, :3], predictor[:2, :3], *layer)
    leaves = tuple(tensor.detach().requires_grad_() for tensor in leaves)
    assert torch.autograd.gradcheck(loss, leaves)


@pytest.mark.parametrize("tile", [1, 5, 7, 25, 30, 60, 1000])
def test_the_tile_changes_nothing(tile: int) -> None:
    given = features(torch.float32)
    expected = scaled_gradients(plain, given)
    torch.testing.assert_close(tiled(*given, tile=tile), plain(*given), rtol=1e-6, atol=0)
    close(scaled_gradients(lambda *x: tiled(*x, tile=tile), given), expected, 2e-6)


def test_log_probabilities_may_be_given_for_logits() -> None:
    logits = joined(*features()).detach()
    once = transducer_loss(logits, targets(), FRAMES, LABELS)
    again = transducer_loss(logits.log_softmax(-1), targets(), FRAMES, LABELS)
    torch.testing.assert_close(once, again)


def test_padding_of_features_changes_nothing() -> None:
    given = features()
    padded = [tensor.detach().clone() for tensor in given]
    for utterance, (time, count) in enumerate(zip(FRAMES, LABELS, strict=True)):
        padded[0][utterance, time:] = float("nan")
        padded[1][utterance, count + 1 :] = float("inf")
    padded = tuple(tensor.requires_grad_() for tensor in padded)
    assert torch.equal(tiled(*padded), tiled(*given))
    found, expected = (scaled_gradients(tiled, some) for some in (padded, given))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_padding_of_logits_changes_nothing() -> None:
    logits = joined(*features()).detach()
    padded = logits.clone()
    for utterance, (time, count) in enumerate(zip(FRAMES, LABELS, strict=True)):
        padded[utterance, time:] = padded[utterance, :, count + 1 :] = float("nan")
    found = []
    for some in (logits, padded):
        loss = transducer_loss(some.requires_grad_(), targets(), FRAMES, LABELS)
        found.append((loss.detach(), *torch.autograd.grad(loss.sum(), some)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_padding_of_targets_may_be_anything() -> None:
    given, answers = features(), targets()
    answers[torch.arange(4) >= LABELS[:, None]] = -100
    found = joiner_transducer_loss(*given, answers, FRAMES, LABELS)
    assert torch.equal(found, tiled(*given, tile=1024))


OTHERS = [0, 2, 3, 4]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_spoil_no_other_utterance(bad: float) -> None:
    logits = joined(*features()).detach().requires_grad_()
    loss = transducer_loss(logits, targets(), FRAMES, LABELS)[OTHERS].sum()
    (expected,) = torch.autograd.grad(loss, logits)
    spoilt = logits.detach().clone()
    spoilt[1, 0, 1, 3] = bad
    loss = transducer_loss(spoilt.requires_grad_(), targets(), FRAMES, LABELS)
    assert loss.isfinite().tolist() == [True, False, True, True, True]
    assert torch.equal(torch.autograd.grad(loss.sum(), spoilt)[0], expected)


@pytest.mark.parametrize("which,at", [(0, (1, 0)), (1, (1, 1))])
def test_features_that_are_not_finite_spoil_no_other_utterance(
    which: int, at: tuple[int, int]
) -> None:
    given = features()
    expected = torch.autograd.grad(tiled(*given)[OTHERS].sum(), given)
    spoilt = [tensor.detach().clone() for tensor in given]
    spoilt[which][at] = float("nan")
    leaves = tuple(tensor.requires_grad_() for tensor in spoilt)
    loss = tiled(*leaves)
    assert loss.isfinite().tolist() == [True, False, True, True, True]
    # Whether a caller leaves it out, or not, and whatever it is multiplied by.
    kept = torch.where(loss.isfinite(), loss, 0).sum()
    for total in (loss.sum(), kept, (loss * torch.where(loss.isfinite(), 1, torch.nan)).sum()):
        close(torch.autograd.grad(total, leaves, retain_graph=True), expected, 1e-12)


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


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)])
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


def test_without_bias() -> None:
    given = features()
    rest = (targets(), FRAMES, LABELS)
    found = joiner_transducer_loss(*given[:3], None, *rest, tile=9)
    expected = joiner_transducer_loss(*given[:3], torch.zeros_like(given[3]), *rest)
    torch.testing.assert_close(found, expected)
    close(*(torch.autograd.grad(x.sum(), given[:3]) for x in (found, expected)), 1e-12)


@FORMS
def test_the_graph_may_be_kept(form: Form) -> None:
    given = features()
    loss = form(*given).sum()
    once = torch.autograd.grad(loss, given, retain_graph=True)
    close(torch.autograd.grad(loss, given), once, 0)


def test_micro_batches_add_up() -> None:
    given, rest = features(), (targets(), FRAMES, LABELS)
    whole = torch.autograd.grad(tiled(*given).sum(), given)
    losses = [
        joiner_transducer_loss(given[0][i], given[1][i], *given[2:], *(x[i] for x in rest))
        for i in (slice(0, 2), slice(2, 5))
    ]
    close(torch.autograd.grad(torch.cat(losses).sum(), given), whole, 1e-12)


def test_activation_checkpointing_changes_nothing() -> None:
    given = features()
    again = checkpoint(tiled, *given, use_reentrant=False)
    assert isinstance(again, Tensor)
    found, expected = (torch.autograd.grad(x.sum(), given) for x in (again, tiled(*given)))
    close(found, expected, 0)


class Recorder(TorchDispatchMode):
    """Notes the elements of the largest tensor of any operator."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return found


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_only_a_tile_exists(precision: torch.dtype) -> None:
    batch, time, count, vocabulary, width, tile = 3, 20, 4, 50, 40, 12
    encoder = torch.randn(batch, time, width, requires_grad=True)
    predictor = torch.randn(batch, count + 1, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    rest = (torch.randint(1, vocabulary, (batch, count)), *torch.tensor([[time], [count]]).expand(
        2, batch))  # fmt: skip
    with Recorder() as recorder:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = joiner_transducer_loss(encoder, predictor, weight, None, *rest, tile=tile)
        loss.sum().backward()
    # These are larger than a tile of 10 cells; a hidden layer of all cells would be 12,000.
    assert recorder.largest == max(encoder.numel(), weight.numel())
    with Recorder() as whole:
        hidden = torch.tanh(encoder[:, :, None] + predictor[:, None])
        transducer_loss(hidden @ weight.T, *rest).sum().backward()
    assert whole.largest == batch * time * (count + 1) * vocabulary  # the check can fail


def test_counted_operations_do_not_depend_on_the_tile() -> None:
    found = set()
    for tile in (5, 30, 1000):
        given = features(torch.float32)
        with FlopCounterMode(display=False) as counter:
            tiled(*given, tile=tile).sum().backward()
        found.add(counter.get_total_flops())
    cells = 5 * 6 * 5
    # Logits twice, gradients of hidden layer and weight, and the bias's, a product of one row.
    assert found == {2 * cells * VOCABULARY * (4 * WIDTH + 1)}


def long_batch(dtype: torch.dtype) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return features and answers of utterances as long as real ones; the same in any type."""
    generator = torch.Generator().manual_seed(2)
    sizes = ((2, 400, 16), (2, 61, 16), (40, 16), (40,))
    drawn = [torch.randn(size, generator=generator) for size in sizes]
    answers = torch.randint(1, 40, (2, 60), generator=generator)
    given = tuple(tensor.to(dtype).requires_grad_() for tensor in drawn)
    return given, (answers, torch.tensor([400, 350]), torch.tensor([60, 45]))


def test_float32_is_exact_to_rounding_on_long_utterances() -> None:
    given, rest = long_batch(torch.float32)
    loss = joiner_transducer_loss(*given, *rest)
    exact_given, _ = long_batch(torch.float64)
    exact = joiner_transducer_loss(*exact_given, *rest)
    assert loss.dtype == torch.float32 and exact.dtype == torch.float64 and loss.min() > 500
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    found = torch.autograd.grad(loss.sum(), given)
    for one, other in zip(found, torch.autograd.grad(exact.sum(), exact_given), strict=True):
        assert (one - other).abs().max() < 1e-5 * other.abs().max()


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_is_close_and_gradients_keep_their_types(autocast: bool) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    given, rest = long_batch(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = joiner_transducer_loss(*given, *rest)
        of_logits = transducer_loss(joined(*given), *rest)
    exact_given, _ = long_batch(torch.float64)
    exact = joiner_transducer_loss(*exact_given, *rest)
    assert loss.dtype == of_logits.dtype == torch.float32
    for some in (loss, of_logits):
        torch.testing.assert_close(some.double(), exact, rtol=0.01, atol=0)
    found = torch.autograd.grad(loss.sum(), given)
    for one, other in zip(found, torch.autograd.grad(exact.sum(), exact_given), strict=True):
        assert one.dtype == dtype
        assert (one - other).norm() < 0.03 * other.norm()


def test_another_implementation_agrees() -> None:
    warprnnt = pytest.importorskip("warprnnt_numba", reason="needs numba and warprnnt-numba")
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 9, 6, 11, generator=generator, requires_grad=True)
    answers = torch.randint(1, 11, (3, 5), generator=generator)
    frames, counts = torch.tensor([9, 4, 9]), torch.tensor([5, 5, 1])
    theirs = warprnnt.RNNTLossNumba(blank=0, reduction="sum")
    expected = theirs(logits, answers.int(), frames.int(), counts.int())
    found = transducer_loss(logits, answers, frames, counts).sum()
    torch.testing.assert_close(found, expected[0], rtol=1e-6, atol=0)
    # Theirs gives the gradient for logits, from log-probabilities that it makes itself.
    one, other = (torch.autograd.grad(x.sum(), logits)[0] for x in (found, expected))
    torch.testing.assert_close(one, other, rtol=0, atol=3e-6)


class Model(nn.Module):
    """Layers around the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.predictor = nn.Linear(4, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, frames: Tensor) -> Tensor:
        before = nn.functional.pad(targets(), (1, 0))
        given = (self.encoder(frames), self.predictor(before), self.output.weight, self.output.bias)
        return 2 * joiner_transducer_loss(*given, targets(), FRAMES, LABELS, tile=9).sum()


@pytest.mark.slow
def test_a_compiled_model_breaks_its_graph_and_gives_the_same() -> None:
    frames, (eager, compiled) = torch.randn(5, 6, 4), (Model(), Model())
    compiled.compile(backend="eager")
    first, second = eager(frames), compiled(frames)
    torch.testing.assert_close(first, second)
    first.backward()
    second.backward()
    close(*([p.grad for p in model.parameters()] for model in (eager, compiled)), 1e-6)  # type: ignore[misc]
    torch.compiler.reset()
