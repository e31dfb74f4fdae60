"""What a GPU holds and sends when a model is spread over many: by arithmetic alone.

| strategy | holds of weights, optimizer and average | sends in a step |
|---|---|---|
| ddp | all | an all-reduce of the gradients |
| fsdp | a share of each of all GPUs | gathers of weights, a scattered sum of the gradients |
| hybrid | a share of each of a node's GPUs | the same within a node; an all-reduce of a share |

Rings are assumed: an all-reduce of n bytes among k GPUs sends 2 n (k - 1) / k from each, a
gathering or a scattered sum n (k - 1) / k. Weights and gradients travel in the weights' own type.
"""

from __future__ import annotations

from dataclasses import dataclass

from magneto.lab.plan.trace import StepMemory

STRATEGIES = ("ddp", "hybrid", "fsdp")


@dataclass(frozen=True)
class Cluster:
    """The GPUs of a training.

    Attributes:
        gpus: How many there are.
        per_node: GPUs of one machine.
        memory: Of each, in bytes.
    """

    gpus: int
    per_node: int
    memory: float

    @property
    def nodes(self) -> int:
        """Machines; the last may not be full."""
        return -(-self.gpus // self.per_node)

    def strategies(self) -> tuple[str, ...]:
        """Return how the GPUs can share a training: nothing to share on one, no nodes on one."""
        if self.gpus == 1:
            return ("none",)
        return STRATEGIES if self.nodes > 1 else ("ddp", "fsdp")

    def shards(self, strategy: str) -> int:
        """Return among how many GPUs each weight is cut."""
        return {"fsdp": self.gpus, "hybrid": min(self.per_node, self.gpus)}.get(strategy, 1)


@dataclass(frozen=True)
class Sent:
    """Bytes that each GPU sends in a step.

    Attributes:
        within: To GPUs among whom weights are cut, or to all of them under "ddp".
        between: To other nodes, of "hybrid".
    """

    within: float
    between: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.within + self.between


def bytes_needed(step: StepMemory, strategy: str, cluster: Cluster, accumulation: int = 1) -> float:
    """Return the most bytes that a GPU needs in a step.

    Args:
        step: Of one micro-batch, with the whole model.
        strategy: "none", "ddp", "hybrid" or "fsdp".
        cluster: The GPUs.
        accumulation: Micro-batches of a step. With more than one, gradients are there from the
            second on; sharded ones are exchanged after the last, and until then each GPU has all.
    """
    state, shards = step.state, cluster.shards(strategy)
    if shards == 1:
        held = step.held + step.batch
        # DDP exchanges copies of the gradients, which it keeps.
        held += state.gradients if strategy == "ddp" else 0
        peak = step.peak_activations + state.gradients if accumulation > 1 else step.peak
        return held + max(peak, state.gradients)
    held = (step.held - step.fixed) / shards + step.fixed + step.batch
    # Around the layers weights stay gathered; of layers there is the one at work, and the next.
    gathered = step.outside_layers + 2 * step.largest_layer
    # The layer's whole gradients, and their copy that is on its way.
    moving = step.outside_layers + 2 * step.largest_layer
    whole = state.gradients if accumulation > 1 else 0
    working = step.peak_activations + gathered + moving + whole
    return held + state.gradients / shards + working


def bytes_sent(step: StepMemory, strategy: str, cluster: Cluster, accumulation: int = 1) -> Sent:
    """Return what each GPU sends in a step; arguments as for `bytes_needed`."""
    state, shards = step.state, cluster.shards(strategy)
    if strategy == "ddp":
        return Sent(2 * state.gradients * others(cluster.gpus), 0.0)
    if shards == 1:
        return Sent(0.0, 0.0)
    # Forward all weights, backward those of the layers once more, for each micro-batch.
    gathered = (2 * state.weights - step.outside_layers) * accumulation
    within = (gathered + state.gradients) * others(shards)
    copies = cluster.gpus / shards
    return Sent(within, 2 * state.gradients / shards * others(copies))


def others(ranks: float) -> float:
    """Return the share that is not one's own among so many."""
    return (ranks - 1) / ranks
