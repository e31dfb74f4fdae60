"""Training of the decoder stack in your own loop, on docstrings of Python's standard library.

`placement` can be any name of `magneto.PLACEMENTS`.
"""

import torch
from torch import nn
from torch.nn import functional as F

from magneto import Decoder, TransformerConfig
from magneto.data.documents import docstrings


def main(steps: int = 100, placement: str = "sub") -> list[float]:
    """Train on bytes; return the loss of each step, in nats per byte."""
    torch.manual_seed(1)
    config = TransformerConfig(
        width=64, layers=6, heads=4, ffn_width=256, positions="rotary", placement=placement
    )
    embedding, decoder, head = nn.Embedding(256, 64), Decoder(config), nn.Linear(64, 256)
    parameters = [*embedding.parameters(), *decoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)

    text = bytearray("\n\n".join(docstrings()[:50]), "utf-8")
    data = torch.frombuffer(text, dtype=torch.uint8).long()
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - 65, (16, 1))
        window = data[starts + torch.arange(65)]
        features = decoder(embedding(window[:, :-1]))
        loss = F.cross_entropy(head(features).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.2f} nats per byte at step 1, {losses[-1]:.2f} at step {len(losses)}")
