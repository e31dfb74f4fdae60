"""When a run has diverged: a loss that is not finite, or one that stays far above its own past."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

# Weight of the newest loss in the smoothed one.
NEWEST = 0.1
# Progress below this share of the first loss is noise, not something that could be lost.
PROGRESS = 0.05
# A loss this much above the first one is far above any past.
ABOVE_FIRST = 1.5


@dataclass
class DivergenceDetector:
    """Watches the loss, one step at a time; its state is plain values.

    Attributes:
        share: Share of the progress since the first loss that must be given back.
        patience: Steps in a row for which that must hold.
    """

    share: float
    patience: int
    first: float | None = None
    smooth: float = 0.0
    best: float = math.inf
    bad: int = 0

    def look(self, loss: float) -> str | None:
        """Take in the next loss; return why the run has diverged, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth += NEWEST * (loss - self.smooth)
        self.best = min(self.best, self.smooth)
        progress = self.first - self.best
        given_back = (
            progress > PROGRESS * abs(self.first)
            and self.smooth > self.best + self.share * progress
        )
        far_above = self.smooth > ABOVE_FIRST * abs(self.first) + 1e-12
        self.bad = self.bad + 1 if given_back or far_above else 0
        if self.bad < self.patience:
            return None
        return (
            f"the loss stays at {self.smooth:.3g} for {self.bad} steps; "
            f"it was {self.best:.3g} at best and {self.first:.3g} at first"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from another detector's state."""
        for name in ("first", "smooth", "best", "bad"):
            setattr(self, name, state[name])
