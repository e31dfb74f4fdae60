"""The attention kernels a wrapped model can be asked for: "sdpa" and "eager"."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from magneto.nn.attention import DotProductAttention, join
from magneto.nn.mask import Mask


class EagerAttention(DotProductAttention):
    """Softmax attention written out, in plain operations; the softmax is taken in fp32."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Tensor | None = None
    ) -> Tensor:
        """Attend; shapes as in `DotProductAttention`."""
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        allowed = join(mask, bias, query, key)
        if allowed is None and mask.causal:
            shape = logits.shape[-2:]
            allowed = torch.ones(shape, dtype=torch.bool, device=logits.device).tril()
        if allowed is not None and allowed.dtype == torch.bool:
            logits = logits.masked_fill(~allowed, float("-inf"))
        elif allowed is not None:
            logits = logits + allowed
        shares = logits.float().softmax(-1).to(query.dtype)
        attended = nn.functional.dropout(shares, self.dropout, self.training) @ value
        return attended if mask.seeing is None else attended * mask.seeing


KERNELS: dict[str, type[DotProductAttention]] = {
    "sdpa": DotProductAttention,
    "eager": EagerAttention,
}


def use_attention(model: nn.Module, name: str) -> None:
    """Let every attention layer of a model compute with one kernel; no weight changes.

    "sdpa" is torch's own function, which takes its flash kernel where there is one: on a GPU, in
    half precision, without padding and without a bias on the logits.

    Raises:
        ValueError: If there is no kernel of that name.
    """
    if name not in KERNELS:
        raise ValueError(f"no attention {name!r} here: there are {', '.join(KERNELS)}; "
                         "sdpa uses torch's flash kernel where it can")  # fmt: skip
    for module in model.modules():
        for child_name, child in module.named_children():
            if isinstance(child, DotProductAttention) and type(child) is not KERNELS[name]:
                kernel = KERNELS[name](child.dropout)
                setattr(module, child_name, kernel.train(child.training))
