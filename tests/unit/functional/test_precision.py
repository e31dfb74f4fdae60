"""Autocast is off where it is turned off, on devices that have it and on others."""

import torch

from magneto.functional.cross_entropy import without_autocast


def test_products_keep_their_type() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with without_autocast(x):
            assert (x @ x).dtype == torch.float32


def test_a_device_without_autocast_is_no_error() -> None:
    x = torch.ones(2, 2, device="meta")
    with without_autocast(x):
        assert (x @ x).dtype == torch.float32
