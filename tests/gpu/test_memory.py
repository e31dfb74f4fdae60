"""The memory that a training step takes at its peak is what the layers' activations add up to."""

from typing import Any

import torch

from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel
from tests.watched import Peak

# Width, layers, heads, vocabulary, batch, length.
SCALES = {"cpu": (64, 6, 4, 64, 4, 128), "cuda": (768, 12, 12, 1024, 8, 1024)}


def peak_bytes(device: torch.device, **changes: Any) -> tuple[int, LanguageModel]:
    """Return the bytes that a forward and backward pass adds to what is held, at its peak."""
    width, layers, heads, vocab, batch, length = SCALES[device.type]
    sizes = {"width": width, "layers": layers, "heads": heads, "ffn_width": 4 * width}
    sizes |= {"vocab_size": vocab, "placement": "sub", "positions": "none", **changes}
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(**sizes)).to(device).train()
    tokens = torch.randint(sizes["vocab_size"], (batch, length), device=device)

    def run() -> None:
        model(tokens, targets=tokens).total.backward()
        model.zero_grad(set_to_none=True)

    run()  # what libraries keep for themselves is not counted
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - held, model
    with Peak() as peak:
        run()
    return peak.bytes, model


def activation_bytes(device: torch.device) -> int:
    """Estimate what the layers of Sub-LN keep for the backward pass, in fp32.

    Of widths 1 and 4, per token and layer: what goes into both norms at the sublayers' starts
    (which are sums, 2), their outputs (2), queries, keys and values (3), what attention gives (1),
    its norm (1), and in the feed-forward network fc1's output, GELU's and the inner norm's (3 * 4).
    """
    width, layers, _, _, batch, length = SCALES[device.type]
    return 4 * batch * length * layers * width * (2 + 2 + 3 + 1 + 1 + 3 * 4)


def test_a_step_takes_what_its_activations_take(device: torch.device) -> None:
    measured, _ = peak_bytes(device)
    assert 0.9 < measured / activation_bytes(device) < 1.35


def test_recomputed_layers_take_a_fraction(device: torch.device) -> None:
    """One layer's activations, and a stream between layers: 1 of 21 widths each."""
    layers = SCALES[device.type][1]
    measured, model = peak_bytes(device, checkpoint_activations=True)
    gradients = sum(4 * p.numel() for p in model.parameters())
    share = (1.7 / layers + 1 / 21) * activation_bytes(device)
    assert measured < share + gradients


def test_logits_never_exist_all_at_once(device: torch.device) -> None:
    """With an eighth of the rows at a time, the peak is lower by nearly seven eighths of them."""
    width, _, _, vocab, batch, length = SCALES[device.type]
    rows, vocab = batch * length, 32 * width
    whole, _ = peak_bytes(device, vocab_size=vocab, layers=1, loss_chunk=0)
    parts, _ = peak_bytes(device, vocab_size=vocab, layers=1, loss_chunk=rows // 8)
    assert whole - parts > 0.85 * rows * vocab * 4
