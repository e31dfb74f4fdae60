"""A training loop with Hugging Face's Accelerate.

python examples/accelerate_loop.py
accelerate launch --num_processes 2 examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from magneto.data.documents import docstrings
from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel


def windows(length: int) -> TensorDataset:
    """Return rows of `length` bytes of built-in text, and the same rows shifted by one byte."""
    text = bytearray("\n\n".join(docstrings()[:50]), "utf-8")
    data = torch.frombuffer(text, dtype=torch.uint8).long()
    rows = (len(data) - 1) // length
    cut = rows * length
    return TensorDataset(data[:cut].view(rows, length), data[1 : cut + 1].view(rows, length))


def main(steps: int = 100) -> list[float]:
    """Train a language model on bytes; return the loss of each step, in nats per byte."""
    torch.manual_seed(1)
    accelerator = Accelerator()
    config = LanguageModelConfig(
        vocab_size=256, width=64, layers=6, heads=4, ffn_width=256, positions="rotary"
    )
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(windows(64), batch_size=16, shuffle=True, drop_last=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    losses = []
    while len(losses) < steps:
        for tokens, targets in batches:
            summed = model(tokens, targets=targets)
            loss = summed.total / summed.count
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.2f} nats per byte at step 1, {losses[-1]:.2f} at step {len(losses)}")
