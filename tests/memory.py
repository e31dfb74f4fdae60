"""The memory that tensors take at their peak, counted as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Peak(TorchDispatchMode):
    """Follows the bytes of all tensors made while it is on; what is inside a kernel is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        before = {storage._cdata for storage in storages(args)}
        result = func(*args, **(kwargs or {}))
        self._alive = {key: held for key, held in self._alive.items() if not held[0].expired()}
        for storage in storages(result):
            if storage._cdata not in before:
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
        return result


def storages(tensors: Any) -> Iterator[UntypedStorage]:
    """Yield what this process holds of tensors; those on the meta device have no memory."""
    for tensor in tree_iter(tensors):
        if isinstance(tensor, Tensor) and not tensor.is_meta:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            yield local.untyped_storage()
