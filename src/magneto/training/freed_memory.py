"""While training on a CPU, memory that a step has freed stays with the process for the next step.

By default glibc gives large blocks back to the system when they are freed; the next step gets them
anew, page by page, each of which the kernel fills with zeros first.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

# glibc's malloc.h: names of settings for mallopt, and their defaults (mallopt(3)).
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
DEFAULT = 128 * 1024
# Blocks up to so many bytes come from the heap, and so many stay free at its end.
LARGEST_BLOCK, LARGEST_REST = 1 << 30, (1 << 31) - 1
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@contextmanager
def keep_freed_memory(
    device: torch.device, environment: Mapping[str, str] = os.environ
) -> Iterator[bool]:
    """Keep freed memory inside; give all back at the end.

    The numbers that are computed do not depend on it. Nothing is done for other devices than a CPU,
    without glibc, and where the environment sets malloc's thresholds itself.

    Args:
        device: Where the training is.
        environment: The process' own, by default.

    Yields:
        Whether anything was done.
    """
    libc = glibc()
    if device.type != "cpu" or libc is None or any(name in environment for name in SETTINGS):
        yield False
        return
    libc.mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)
    libc.mallopt(TRIM_THRESHOLD, LARGEST_REST)
    try:
        yield True
    finally:
        libc.mallopt(MMAP_THRESHOLD, DEFAULT)
        libc.mallopt(TRIM_THRESHOLD, DEFAULT)
        libc.malloc_trim(0)


def glibc() -> ctypes.CDLL | None:
    """Return the C library of this process, if it is glibc."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError):
        return None
    return ctypes.CDLL(None) if version else None
