"""The attention kernels a wrapped model can be asked for: "sdpa" and "eager"."""

from __future__ import annotations

from torch import nn

from magneto.nn.dot_product import DotProductAttention, EagerAttention

KERNELS: dict[str, type[DotProductAttention]] = {
    "sdpa": DotProductAttention,
    "eager": EagerAttention,
}


def use_attention(model: nn.Module, name: str) -> None:
    """Let every attention layer of a model compute with one kernel; no weight changes.

    "sdpa" is torch's own function, which takes its flash kernel where there is one: on a GPU, in
    half precision, without padding and without a bias on the logits. Attention whose logits are
    capped stays as it is: torch's function has no cap.

    Raises:
        ValueError: If there is no kernel of that name.
    """
    if name not in KERNELS:
        raise ValueError(f"no attention {name!r} here: there are {', '.join(KERNELS)}; "
                         "sdpa uses torch's flash kernel where it can")  # fmt: skip
    for module in model.modules():
        for child_name, child in module.named_children():
            if not isinstance(child, DotProductAttention) or child.limit is not None:
                continue
            if type(child) is not KERNELS[name]:
                kernel = KERNELS[name](child.dropout)
                setattr(module, child_name, kernel.train(child.training))
