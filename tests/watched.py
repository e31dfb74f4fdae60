"""Operations while they are watched: what makes the host wait, and what memory tensors take.

What waits is an error on CUDA, and counted on a CPU, where nothing would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

# Calls that turn a tensor into numbers, or numbers into a tensor on the device.
CALLS = {
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__int__),
    *(Tensor.__float__, Tensor.__index__, Tensor.new_tensor, torch.tensor, torch.as_tensor),
    *(torch.from_numpy, torch.scalar_tensor),
}
# Operations whose result's shape, or value, the host must know.
OPERATIONS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim"),
    *("unique_consecutive", "bincount", "equal", "is_nonzero", "lift_fresh", "lift_fresh_copy"),
}


class Calls(TorchFunctionMode):
    """Notes calls by what Python code says."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in CALLS:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Notes operations by what they come down to."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in OPERATIONS or (name in ("index", "index_put", "index_put_") and masks(args[1])):
            self.found.append(name)
        if func is torch.ops.aten.repeat_interleave.Tensor:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def masks(index: list[Tensor | None]) -> bool:
    """Return whether an index holds a mask, whose places have to be found first."""
    return any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in index)


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """Yield a list of what makes the host wait meanwhile."""
    found: list[str] = []
    with Operations(found), Calls(found):
        yield found


@contextmanager
def no_host_reads(device: torch.device) -> Iterator[None]:
    """Fail where the body makes the host wait.

    Raises:
        RuntimeError: On CUDA by torch's own check at the very place; else at the end.
    """
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with host_reads() as found:
        yield
    if found:
        raise RuntimeError(f"the host would wait for a device: {', '.join(found)}")


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
