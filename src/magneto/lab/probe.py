"""Probe: hooks that measure the layers and the attention of a running model.

The probe measures activations, gradients, updates and attention of each layer. `LayerReading`
describes the measured quantities. The hooks do not change the model's results. Values stay on the
device until `Probe.read` is called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from magneto.files import plain
from magneto.nn.attention import DotProductAttention, Mask
from magneto.nn.transformer import ProbedStack
from magneto.training.config import learning_rate
from magneto.training.distributed import is_sharded, unwrap
from magneto.training.logging import cut_after
from magneto.training.loop import Hook, TrainingState
from magneto.training.optimizer import GRAD_SCALE

PROBE_FILE = "probe.jsonl"
# Largest finite values of number formats. bf16 has the exponents of fp32.
LIMITS = {"fp16": torch.finfo(torch.float16).max, "bf16": torch.finfo(torch.bfloat16).max}
# Quantities whose maximum over a layer's modules is kept. Other quantities are averaged.
LARGEST = ("activation_max", "attention_logit_max")
Rows = slice | Tensor
# Samples of a batch whose attention is recomputed: as many images, texts and pairs each.
ATTENTION_SAMPLES = 1
# Modules that embed tokens and image patches.
EMBEDDINGS = (nn.Embedding, nn.Conv2d)


@dataclass
class LayerRecorder:
    """Records the latest measurements in each module of a layer."""

    module: nn.Module
    stack: ProbedStack
    values: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    before: list[Tensor] = field(default_factory=list)  # the layer's weights before a step
    # `rows`: samples of the current forward pass whose attention is measured. `real`: their
    # positions that are not padding, (samples, length); None for all.
    rows: Rows = field(default_factory=lambda: slice(1))
    real: Tensor | None = None

    def keep(self, quantity: str, module: nn.Module, value: Tensor) -> None:
        self.values[quantity, id(module)] = value.detach().float()

    def take(self) -> dict[str, Tensor]:
        """Return one value for each recorded quantity, and clear the record."""
        taken = {}
        for quantity in dict.fromkeys(name for name, _ in self.values):
            parts = [value for (name, _), value in self.values.items() if name == quantity]
            value = torch.stack(parts)
            taken[quantity] = value.max() if quantity in LARGEST else value.mean()
        self.values, self.before = {}, []
        return taken

    def hook(self) -> list[RemovableHandle]:
        handles = [
            self.module.register_forward_pre_hook(self.choose_rows),
            self.module.register_forward_hook(self.record_output),
        ]
        for module in self.module.modules():
            if isinstance(module, nn.Linear):
                handles.append(module.register_forward_hook(self.record_largest))
            elif isinstance(module, DotProductAttention):
                handles.append(module.register_forward_hook(self.record_attention))
        return handles

    @torch.no_grad()
    def choose_rows(self, module: nn.Module, inputs: tuple) -> None:
        self.rows, self.real = self.stack.attention_samples(ATTENTION_SAMPLES, inputs)

    @torch.no_grad()
    def record_output(self, module: nn.Module, inputs: tuple, output: Any) -> None:
        tokens = self.stack.tokens(output).detach().float()
        self.keep("activation_rms", module, tokens.square().mean().sqrt())
        self.keep("activation_max", module, tokens.abs().max())
        distinct = tokens - self.stack.position_means(tokens, inputs)
        self.keep("distinct_rms", module, distinct.square().mean().sqrt())

    @torch.no_grad()
    def record_largest(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        if output.numel():  # the output of an expert whose modality is absent is empty
            self.keep("activation_max", module, output.detach().abs().max())

    @torch.no_grad()
    def record_attention(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Recompute the attention logits, and record their maximum and the attention's entropy."""
        query, key, _, mask, *rest = inputs
        bias = rest[0] if rest else None
        logits, allowed = attention_logits(query, key, mask, bias, self.rows)
        if self.real is not None:
            allowed = allowed & self.real[:, None, :, None]
        self.keep("attention_logit_max", module, logits.masked_fill(~allowed, -math.inf).max())
        seen = allowed.sum(-1)
        some = seen > 1  # entropy needs at least two keys
        # A query without keys gets all keys, so that its softmax exists; the means leave it out.
        open_rows = allowed | (seen == 0)[..., None]
        probabilities = logits.masked_fill(~open_rows, -math.inf).softmax(-1)
        entropy = torch.special.entr(probabilities).sum(-1)
        count = some.sum().clamp(min=1)
        self.keep("attention_entropy", module, torch.where(some, entropy, 0).sum() / count)
        share = entropy / seen.clamp(min=2).log()
        self.keep("entropy_share", module, torch.where(some, share, 0).sum() / count)


def attention_logits(
    query: Tensor, key: Tensor, mask: Mask, bias: Tensor | None, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Recompute in fp32 the attention logits of the samples with the indices `rows`.

    Returns:
        The logits, and whether the mask allows each pair of query and key. Logits and mask have the
        shape (samples, heads, query length, key length).
    """
    query, key = query[rows].detach().float(), key[rows].detach().float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + _of_rows(bias, rows).detach().float()
    closed = mask.with_bias(torch.zeros_like(logits[:1, :1]), query, key)
    allowed = torch.ones_like(logits[:1, :1]) if closed is None else _of_rows(closed, rows) == 0
    if mask.seeing is not None:
        allowed = allowed & _of_rows(mask.seeing, rows)
    return logits, allowed.bool().expand_as(logits)


def _of_rows(shared: Tensor, rows: Rows) -> Tensor:
    return shared if len(shared) == 1 else shared[rows]


@dataclass(frozen=True)
class LayerReading:
    """Measurements of one layer in one step. A quantity that was not measured is None.

    Attributes:
        name: Path of the layer in the model.
        activation_rms: Root mean square of the layer's output.
        activation_max: Largest magnitude in the outputs of the Transformer layer and of the linear
            layers inside.
        gradient_norm: Norm of the gradient of the layer's parameters, as the optimizer uses it
            (averaged and clipped).
        update_ratio: Norm of the parameters' change in the step, divided by their norm before the
            step.
        attention_logit_max: Largest attention logit among the pairs that the mask allows.
        attention_entropy: Mean entropy of attention in nats, over queries with more than one key.
        entropy_share: Mean ratio of entropy to log(number of keys), over the same queries. The
            ratio is 1 for uniform attention, and 0 for attention to one key.
        distinct_rms: Variation between positions: the RMS of the output after subtraction of the
            mean over a sample's positions. If a stack reads several modalities, each modality has
            its own mean. Padded positions are included, unless tokens are packed.
    """

    name: str
    activation_rms: float | None = None
    activation_max: float | None = None
    gradient_norm: float | None = None
    update_ratio: float | None = None
    attention_logit_max: float | None = None
    attention_entropy: float | None = None
    entropy_share: float | None = None
    distinct_rms: float | None = None

    @property
    def token_similarity(self) -> float | None:
        """1 - distinct_rms² / activation_rms². At 1 (rank collapse), all positions are equal."""
        if self.activation_rms is None or self.distinct_rms is None or not self.activation_rms:
            return None
        return 1 - (self.distinct_rms / self.activation_rms) ** 2


class Probe:
    """Measures the layers of every encoder and decoder stack in a model.

    Run the forward and backward pass in `with probe.watch():`. Call `probe.mark()` before the
    optimizer's step to measure the update, and `probe.read()` after the step. With several ranks,
    activations are measured on the current rank. Gradients and updates are measured for the whole
    model.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the layers of each `Encoder`, `Decoder` and `MultiwayEncoder` in the model.

        Raises:
            ValueError: If the model has no stack.
        """
        self.layers = {
            f"{path}.layers.{index}".lstrip("."): LayerRecorder(layer, stack)
            for path, stack in find_stacks(model).items()
            for index, layer in enumerate(stack.layers)
        }
        inside = {id(p) for layer in self.layers.values() for p in layer.module.parameters()}
        outside = [part for part in model.modules() if isinstance(part, EMBEDDINGS)]
        self.embeddings = [p for part in outside for p in part.parameters() if id(p) not in inside]
        self.embedding_gradient: Tensor | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record the layers while the `with` block runs; only the last forward pass is kept."""
        with ExitStack() as hooks:
            for handle in self.hook():
                hooks.enter_context(handle)
            yield

    def hook(self) -> list[RemovableHandle]:
        """Add hooks to the layers, and return the handles that remove the hooks."""
        return [handle for layer in self.layers.values() for handle in layer.hook()]

    @torch.no_grad()
    def mark(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Record weights and gradients before a step.

        If `optimizer` has a gradient scale, the recorded gradients are divided by this scale.
        """
        divisor = getattr(optimizer, GRAD_SCALE, 1.0)
        for layer in self.layers.values():
            parameters = list(layer.module.parameters())
            layer.before = [p.detach().clone() for p in parameters]
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                layer.keep("gradient_norm", layer.module, total_norm(gradients) / divisor)
        gradients = [p.grad for p in self.embeddings if p.grad is not None]
        if gradients:
            size = sum(gradient.numel() for gradient in gradients)
            self.embedding_gradient = total_norm(gradients) / divisor / math.sqrt(size)

    @torch.no_grad()
    def read(self) -> list[LayerReading]:
        """Return the measurements since the previous call. Synchronise with the GPU once."""
        seen: list[dict[str, Tensor]] = []
        for layer in self.layers.values():
            if layer.before:
                pairs = zip(layer.module.parameters(), layer.before, strict=True)
                changes = [after - before for after, before in pairs]
                ratio = total_norm(changes) / total_norm(layer.before)
                layer.keep("update_ratio", layer.module, ratio)
            seen.append(layer.take())
        tensors = [value for values in seen for value in values.values()]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        return [
            LayerReading(name, **{quantity: next(numbers) for quantity in values})
            for name, values in zip(self.layers, seen, strict=True)
        ]


def find_stacks(model: nn.Module) -> dict[str, ProbedStack]:
    """Return a model's encoder and decoder stacks by module name, in the model's order.

    Raises:
        ValueError: If the model has no stack.
    """
    found = {path: part for path, part in model.named_modules() if isinstance(part, ProbedStack)}
    if not found:
        raise ValueError(f"no encoder or decoder stack to probe in {type(model).__name__}")
    return found


def last_stack(model: nn.Module) -> ProbedStack:
    """Return a model's last stack, or raise ValueError if the model has no stack."""
    return list(find_stacks(model).values())[-1]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors together, including all shards of sharded tensors."""
    norm = torch.stack([tensor.float().norm() for tensor in tensors]).norm()
    return norm.full_tensor() if is_sharded(norm) else norm


@dataclass(frozen=True)
class Trouble:
    """The first layer that fails in a step, and the reason."""

    layer: str
    reason: str


def first_trouble(readings: Sequence[LayerReading], limit: str = "fp16") -> Trouble | None:
    """Find the first layer whose values are not finite or whose activations are too large.

    `limit` is a number format, "fp16" or "bf16". Activations are too large if they exceed half the
    range of the format. Activations and updates are checked from the first layer to the last,
    because the low layers fail first. Gradients are checked from the last layer to the first.
    """
    half = LIMITS[limit] / 2
    for reading in readings:
        if not _finite(reading.activation_max) or not _finite(reading.activation_rms):
            return Trouble(reading.name, "its activations are not finite")
        if reading.activation_max is not None and reading.activation_max > half:
            size = f"an activation of {reading.activation_max:.3g}"
            return Trouble(reading.name, f"{size} exceeds half of {limit}'s range ({half:.3g})")
    for reading in reversed(readings):
        if not _finite(reading.gradient_norm):
            return Trouble(reading.name, "its gradient is not finite")
    for reading in readings:
        if not _finite(reading.update_ratio):
            return Trouble(reading.name, "its weights are not finite after the step")
    return None


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


class ProbeHook:
    """Measures every `period`-th step of a run. Pass `hooks=[ProbeHook(100).hook]` to `train`.

    The model has hooks only in measured steps. Each measured step adds a line to probe.jsonl: the
    step, its learning rate, and a `LayerReading` for every layer. The line also has the RMS of the
    embeddings' gradient (tokens, positions, patches). The run reports a layer whose values are not
    finite, or whose activations exceed half the range of bf16 (if `precision` is bf16) or of fp16
    (if `precision` is fp32). When a run resumes, lines of steps after the checkpoint are removed,
    as in metrics.jsonl.
    """

    def __init__(self, period: int) -> None:
        """Measure every `period` steps.

        Raises:
            ValueError: If the period is below 2. Hooks for a step are added after the previous
                step, so the first step cannot be measured.
        """
        if period < 2:
            raise ValueError(f"a probe's period must be 2 steps or more, not {period}")
        self.period = period
        self.probe: Probe | None = None
        self.hooked: ExitStack | None = None  # during a measured step
        self.reported: set[str] = set()

    @property
    def hook(self) -> Hook:
        """The hook to pass to `train`. It takes almost no time in steps that are not measured."""
        return Hook(1, self)

    def __call__(self, state: TrainingState) -> None:
        """Write this step's measurements, if any. If the next step will be measured, add hooks."""
        if self.probe is None:
            self.probe = Probe(unwrap(state.model))
            path = state.run / PROBE_FILE
            if state.world.is_main_process and path.exists():
                cut_after(path, state.step - 1)
        if self.hooked is not None:
            self.hooked.close()
            self.hooked = None
            self._write(state, self.probe.read(), self.probe.embedding_gradient)
        if (state.step + 1) % self.period == 0 and state.step < state.config.steps:
            self.hooked = self._begin(state, self.probe)

    def _begin(self, state: TrainingState, probe: Probe) -> ExitStack:
        hooked = ExitStack()
        if state.config.compile:  # compiled code ignores later hooks
            torch.compiler.set_stance("force_eager")
            hooked.callback(torch.compiler.set_stance, "default")
        mark = state.optimizer.register_step_pre_hook(lambda given, *rest: probe.mark(given))
        for handle in (mark, *probe.hook()):
            hooked.enter_context(handle)
        return hooked

    def _write(
        self, state: TrainingState, layers: list[LayerReading], gradient: Tensor | None
    ) -> None:
        if not state.world.is_main_process:
            return
        row = {
            "step": state.step,
            "learning_rate": learning_rate(state.config, state.step - 1),
            "embedding_gradient_rms": gradient if gradient is None else float(gradient),
            "layers": [asdict(layer) for layer in layers],
        }
        with (state.run / PROBE_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row)) + "\n")
        trouble = first_trouble(layers, "bf16" if state.config.precision == "bf16" else "fp16")
        if trouble and trouble.layer not in self.reported:
            self.reported.add(trouble.layer)
            state.report.say(f"step {state.step}: {trouble.layer}: {trouble.reason}")
