"""Time of Magneto's training step by kind of operation, from torch's profiler.

Each operation counts without the operations that it calls, to one kind and one pass. The rest is
the time of Python and of the profiler, which is largest for steps of many small operations. Shares
are therefore of the profiled step, which is slower than a plain one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.bench_cases import Case
from benchmarks.bench_product import product_step
from magneto.training import optimizer

STEPS, WARMUP = 3, 2
CLIPPING, DATA, STEP = "clipping", "data", "benchmarks: step"
# Of an operation's name, without "aten::"; the first kind with a part of it counts.
KINDS = {
    "attention": ("scaled_dot_product", "_softmax"),
    "products": ("mm", "convolution", "conv2d", "linear", "rnn_layer"),
    "norms": ("layer_norm", "rms_norm"),
    "activations": ("gelu", "relu", "silu", "tanh", "sigmoid", "threshold"),
    "embedding": ("embedding", "index_select", "index_add", "gather"),
    "sums of gradients of biases": ("sum",),
    "additions": ("add",),
    "copies and new memory": ("copy", "clone", "empty", "cat", "zero", "fill", "contiguous"),
}
# An operation below one of these counts to it, unless it is a product.
PARTS = {"Optimizer.step": "optimizer", "Optimizer.zero_grad": "optimizer", CLIPPING: CLIPPING,
         "_LinearCrossEntropy": "loss", "cross_entropy": "loss", "Transducer": "loss",
         DATA: DATA}  # fmt: skip
BACKWARD = "autograd::engine::evaluate_function"
OUTSIDE = "in no operation (Python)"


def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a name in the profile."""

    def run(*given: Any, **named: Any) -> Any:
        with record_function(name):
            return function(*given, **named)

    return run


def kind_of(event: Any) -> str:
    """Return the kind of an operation, and its pass if it has one."""
    above, parent = [event.name], event.cpu_parent
    while parent is not None:
        above.append(parent.name)
        parent = parent.cpu_parent
    name = event.name.removeprefix("aten::")
    own = next((kind for kind, parts in KINDS.items() if any(p in name for p in parts)), "other")
    part = next((PARTS[p] for p in PARTS if any(p in each for each in above)), None)
    if part in ("optimizer", CLIPPING, DATA):
        return part
    kind = part if part and own != "products" else own
    backward = any(each.startswith(BACKWARD) for each in above)
    return f"{kind}, {'backward' if backward else 'forward'}"


def profile_of(case: Case, threads: int, placement: str = "sub") -> dict[str, Any]:
    """Profile some steps of the product; return milliseconds of one, and shares by kind."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        clip = marked(CLIPPING, optimizer.gradient_scale)
        stack.enter_context(patch.object(optimizer, "gradient_scale", clip))
        step, _ = product_step(case, placement)
        for _ in range(WARMUP):
            step()
        taken = stack.enter_context(profile(activities=[ProfilerActivity.CPU]))
        for _ in range(STEPS):
            with record_function(STEP):
                step()
    times: Counter[str] = Counter()
    events: Any = taken.events()
    whole = sum(event.cpu_time_total for event in events if event.name == STEP)
    for event in events:
        if event.name == STEP:
            times[OUTSIDE] += event.self_cpu_time_total
        else:
            times[kind_of(event)] += event.self_cpu_time_total
    return {
        "ms": whole / STEPS / 1e3,
        "placement": placement,
        "shares": {kind: time / whole for kind, time in times.most_common()},
    }
