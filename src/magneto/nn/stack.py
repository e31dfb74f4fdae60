"""What every stack of layers has, whatever its layers take and give: what the probe asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from magneto.nn.config import TransformerConfig


class ProbedStack(nn.Module, ABC):
    """A stack whose layers can be looked at.

    Attributes:
        config: Its shape.
        causal: Whether a position sees only itself and those before it.
        layers: From the bottom up.
        final_norm: On top of them; of a stack with streams, a dictionary of these.
    """

    config: TransformerConfig
    causal: bool
    layers: nn.ModuleList
    final_norm: Any

    @abstractmethod
    def tokens(self, output: Any) -> Tensor:
        """Return what a layer, or the stack, puts out as one tensor, (..., width)."""

    @abstractmethod
    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return the mean over the positions that a position is to be told apart from.

        Args:
            tokens: What `tokens` gives of a layer's output.
            inputs: That layer's.

        Returns:
            A tensor that broadcasts against the tokens.
        """

    @abstractmethod
    def attention_samples(
        self, count: int, inputs: tuple[Any, ...]
    ) -> tuple[slice | Tensor, Tensor | None]:
        """Choose samples whose attention is looked at.

        Args:
            count: How many; of each kind of sample, where a batch has several kinds.
            inputs: A layer's.

        Returns:
            Their rows in attention's queries and keys; and which positions of these rows are no
            padding, (samples, length), where padding is to be left out.
        """
