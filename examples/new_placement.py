"""A new norm placement is one row: which slots hold a norm, and what is derived from depth.

Here: "sandwich without a final norm", peri-LN whose branches start smaller in deeper stacks. The
row goes wherever a placement's name goes; to have it in every comparison, add it to
`magneto.theory.placement`.
"""

from dataclasses import replace

import torch

from magneto import PLACEMENTS, Depth, Encoder, Placement, TransformerConfig


def shrinking(depth: Depth) -> float:
    """Return the gain of v, out, fc1 and fc2: one over the root of the number of sublayers."""
    return (2 * depth.layers) ** -0.5


SANDWICH = Placement(
    name="sandwich",
    title="Sandwich without a final norm",
    source="this example",
    self_attention=("before", "branch"),
    feed_forward=("before", "branch"),
    scaled=("self_attention", "feed_forward"),
    gain=shrinking,
)


def main(layers: int = 24) -> dict[str, float]:
    """Return the size of the gradient at the first layer over that at the last, per placement."""
    shape = TransformerConfig(width=64, layers=layers, heads=4, ffn_width=256)
    ratios = {}
    for placement in (*PLACEMENTS.values(), SANDWICH):
        torch.manual_seed(1)
        encoder = Encoder(replace(shape, placement=placement))
        features = encoder(torch.randn(8, 32, shape.width))
        (features * torch.randn_like(features)).sum().backward()
        first, last = (
            torch.stack([p.grad.norm() for p in layer.parameters()]).norm().item()
            for layer in (encoder.layers[0], encoder.layers[-1])
        )
        ratios[placement.title] = first / last
    return ratios


if __name__ == "__main__":
    print("gradient of layer 1 over that of layer 24, at initialisation:")
    for title, ratio in main().items():
        print(f"  {title:<30} {ratio:.3g}")
