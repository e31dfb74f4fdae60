"""The frozen model beside a task's own: built once, never trained, in no checkpoint."""

from __future__ import annotations

import torch

from magneto.training.task import Task


def place_companion(task: Task, device: torch.device) -> None:
    """Build a task's companion, if it has one, on a device: frozen, in evaluation mode."""
    companion = task.build_companion()
    if companion is not None:
        companion = companion.requires_grad_(False).eval().to(device)
    task.companion = companion
