"""The sizes of all tensors that a computation makes."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):
    """Notes the name of every operator and the elements of its largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        self.largest.append((str(func), max(sizes, default=0)))
        return found

    @property
    def most(self) -> int:
        return max(size for _, size in self.largest)
