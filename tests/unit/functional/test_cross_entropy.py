"""The loss whose gradient comes with the forward pass equals the one whose logits all exist."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from magneto.functional.cross_entropy import (
    IGNORED,
    linear_cross_entropy,
    target_log_probabilities,
    without_autocast,
)
from tests.unit.functional.recorder import Recorder

VOCABULARY, WIDTH, ROWS = 50, 16, 21


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features (3, 7, width), weight, bias and targets; four targets are ignored."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((3, 7, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    targets = torch.randint(VOCABULARY, (3, 7), generator=generator)
    targets[0, :3] = targets[2, 6] = IGNORED
    features, weight, bias = (tensor.requires_grad_() for tensor in tensors)
    return features, weight, bias, targets


def plain(
    features: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, smoothing: float = 0.0
) -> Tensor:
    logits = F.linear(features, weight, bias).flatten(0, -2).float()
    return F.cross_entropy(
        logits, targets.flatten(), reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )


def test_log_probabilities_of_bf16_logits_are_of_a_softmax_in_fp32() -> None:
    features, weight, _, targets = (x.detach() for x in inputs())
    rows, answers = features.flatten(0, 1), targets.flatten()
    logits = (rows @ weight.T).bfloat16()
    found = target_log_probabilities(lambda some: logits[: len(some)], rows, answers)
    exact = -F.cross_entropy(logits.double(), answers, ignore_index=IGNORED, reduction="none")
    assert found.dtype == torch.float64 and torch.allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize(
    ("chunk", "smoothing", "frozen"),
    [(1, 0.0, (2,)), (4, 0.1, ()), (7, 0.1, (0,)), (0, 0.0, (1, 2)), (1000, 0.1, (0, 1, 2))],
)
def test_value_and_gradients_are_those_of_plain_cross_entropy(
    chunk: int, smoothing: float, frozen: tuple[int, ...]
) -> None:
    """What is frozen gets no gradient."""
    *tensors, targets = inputs()
    for index in frozen:
        tensors[index].requires_grad_(False)
    features, weight, bias = tensors
    loss = linear_cross_entropy(features, weight, targets, bias, chunk=chunk, smoothing=smoothing)
    expected = plain(features, weight, targets, bias, smoothing)
    torch.testing.assert_close(loss.total, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(loss.nll, plain(features, weight, targets, bias), rtol=1e-6, atol=0)
    assert loss.count == ROWS - 4 and not loss.nll.requires_grad
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    assert loss.total.requires_grad == bool(leaves)
    if leaves:
        found, wanted = (torch.autograd.grad(each, leaves) for each in (loss.total, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("with_bias", "precision"), [(False, torch.float32), (True, torch.bfloat16)]
)
def test_only_one_chunk_of_logits_exists(with_bias: bool, precision: torch.dtype) -> None:
    rows, vocabulary, chunk = 64, 200, 8
    features = torch.randn(rows, 4, requires_grad=True)
    weight = torch.randn(vocabulary, 4, requires_grad=True)
    bias = torch.randn(vocabulary, requires_grad=True) if with_bias else None
    targets = torch.randint(vocabulary, (rows,))
    with Recorder() as recorder:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = linear_cross_entropy(features, weight, targets, bias, chunk=chunk).total
        loss.backward()
    assert recorder.most == chunk * vocabulary
    assert all(size == 1 for name, size in recorder.largest if "zero" in name)
    with Recorder() as whole:
        plain(features, weight, targets, bias).backward()
    assert whole.most == rows * vocabulary  # the check can fail


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_logits_are_computed_once_and_only_wanted_gradients(context: Callable[[], Any]) -> None:
    """All products are counted, whatever the chunk; evaluation computes no gradient."""
    for wanted, chunk in itertools.product(((1, 1), (1, 0), (0, 1), (0, 0)), (40, 20, 8)):
        features, weight = torch.randn(40, 8), torch.randn(16, 8)
        features.requires_grad_(bool(wanted[0]))
        weight.requires_grad_(bool(wanted[1]))
        with FlopCounterMode(display=False) as counter:
            with context():
                loss = linear_cross_entropy(features, weight, torch.arange(40) % 16, chunk=chunk)
            gradients = sum(wanted) if context is torch.enable_grad else 0
            assert loss.total.requires_grad == (gradients > 0)
            if gradients:
                loss.total.backward()
        assert counter.get_total_flops() == (1 + gradients) * 2 * 40 * 8 * 16


def test_the_graph_may_be_kept_and_the_incoming_gradient_be_any() -> None:
    features, weight, _, targets = inputs()
    loss = linear_cross_entropy(features, weight, targets, chunk=4).total
    (once,) = torch.autograd.grad(loss, weight, retain_graph=True)
    for factor in (3.0, 0.0, -0.5):
        (found,) = torch.autograd.grad(loss * factor, weight, retain_graph=True)
        torch.testing.assert_close(found, factor * once)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(weight.grad, 2 * once)


def test_nothing_to_predict_is_zero_not_nan() -> None:
    features, weight, bias, targets = inputs()
    targets.fill_(IGNORED)
    loss = linear_cross_entropy(features, weight, targets, bias, chunk=4, smoothing=0.1)
    loss.total.backward()
    assert loss.total == 0 and loss.nll == 0 and loss.count == 0
    for tensor in (features, weight, bias):
        assert tensor.grad is not None and not tensor.grad.any()
    weight.grad = None
    loss = linear_cross_entropy(torch.empty(0, WIDTH), weight, torch.empty(0, dtype=torch.long))
    loss.total.backward()
    assert loss.total == 0 and weight.grad is not None and not weight.grad.any()


def test_what_is_ignored_does_not_reach_the_gradients() -> None:
    features, weight, _, targets = inputs()
    with torch.no_grad():
        features[0, 0] = float("nan")
    loss = linear_cross_entropy(features, weight, targets, chunk=4)
    loss.total.backward()
    for tensor in (loss.total, features.grad, weight.grad):
        assert tensor is not None and tensor.isfinite().all()


def test_large_logits_stay_finite() -> None:
    features, weight, _, targets = inputs()
    loss = linear_cross_entropy(1e3 * features, weight, targets, chunk=4).total
    torch.testing.assert_close(loss, plain(1e3 * features, weight, targets, None))


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_is_close_and_gradients_keep_their_types(autocast: bool) -> None:
    *tensors, targets = inputs()
    dtype = torch.float32 if autocast else torch.bfloat16
    features, weight, bias = (tensor.detach().to(dtype).requires_grad_() for tensor in tensors)
    whole = plain(features, weight, targets, bias)
    expected = torch.autograd.grad(whole, (features, weight, bias))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = linear_cross_entropy(features, weight, targets, bias, chunk=4)
        # The cast of a weight must not be kept for a later use that wants its gradient.
        later = F.linear(features, weight).sum()
    assert loss.total.dtype == torch.float32
    torch.testing.assert_close(loss.nll, whole.detach(), rtol=0.02, atol=0)
    found = torch.autograd.grad(loss.total, (features, weight, bias))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one - other).norm() < 0.03 * other.norm()
    assert torch.autograd.grad(later, weight)[0].any()


def test_wrong_shapes_and_targets_are_refused() -> None:
    features, weight, _, targets = inputs()
    with pytest.raises(ValueError, match=r"shape \(3, 7\), not \(3, 6\)"):
        linear_cross_entropy(features, weight, targets[:, :6])
    for wrong in (VOCABULARY, -1):
        with pytest.raises((IndexError, RuntimeError)):
            linear_cross_entropy(features, weight, torch.full_like(targets, wrong))


def test_autocast_is_off_where_it_is_turned_off_also_on_devices_that_have_none() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), without_autocast(x):
        assert (x @ x).dtype == torch.float32
    x = x.to("meta")
    with without_autocast(x):
        assert (x @ x).dtype == torch.float32
