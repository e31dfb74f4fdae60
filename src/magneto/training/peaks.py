"""The rates at which GPUs multiply matrices, by their data sheets."""

from __future__ import annotations

# Dense matrix-product peaks by part of the device's name, FLOP/s in (bf16, fp32 with TF32 off).
# The first part that is in the name counts. Source: the vendors' data sheets.
PEAKS = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L40": (181e12, 90.5e12),
    "L4": (121e12, 30.3e12),
    "V100": (125e12, 15.7e12),
    "4090": (165e12, 82.6e12),
    "3090": (71e12, 35.6e12),
}


def nominal_peaks(name: str) -> tuple[float, float] | None:
    """Return the data sheet's FLOP/s (bf16, fp32) of a device by its name, or None."""
    return next((peaks for part, peaks in PEAKS.items() if part in name), None)
