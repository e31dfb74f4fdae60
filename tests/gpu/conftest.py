"""Every test here has a tiny form on the CPU, and with -m gpu its real form on a CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device of a test; what one test leaves compiled or allocated is gone for the next."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    if "torch._dynamo" in sys.modules:  # a reset would import it, which takes seconds
        torch.compiler.reset()
    yield torch.device(request.param)
    if request.param == "cuda":
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True, scope="module")
def cache(homes: Path) -> Iterator[Path]:
    """Data prepared for one file of these tests serves the others."""
    folder = homes / "gpu"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAGNETO_CACHE", str(folder))
        yield folder


@pytest.fixture
def exact_fp32() -> Iterator[None]:
    """Turn TF32 off for convolutions too: torch has it on there, and off for matrix products."""
    kept = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = kept
