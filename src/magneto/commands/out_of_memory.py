"""What is said where there is no memory left: how much was asked for, and what would fit.

Nothing heavy is imported before it is needed: the command line looks here at every error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from magneto.mistakes import OutOfMemory, is_out_of_memory, what_happened

if TYPE_CHECKING:
    from magneto.recipe import Recipe

# Of what a step needs by the plan and did not get: what is proposed needs less than this share.
LESS = 0.9


@contextmanager
def advised(build: Callable[[Mapping[str, Any]], Recipe]) -> Iterator[None]:
    """Let a training that runs out of memory say what a step needs, and options that fit.

    Args:
        build: From dotted fields to the recipe with these.

    Raises:
        OutOfMemory: In the place of torch's error, where the recipe can be planned.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        try:
            lines = planned_lines(build)
        except Exception:  # the advice must not hide what happened
            raise error from None
        raise OutOfMemory("\n".join([what_happened(error), *lines])) from error


def planned_lines(build: Callable[[Mapping[str, Any]], Recipe]) -> list[str]:
    """Return what a step needs by the plan, and options by which it needs less."""
    from magneto.analysis.plan.plan import advise, micro_batch, trace_both, usable, way
    from magneto.analysis.plan.sharding import Cluster
    from magneto.training.distributed import pick_device
    from magneto.training.memory import gigabytes, memory_of

    recipe = build({})
    device = pick_device(recipe.training.device)
    there = float(memory_of(device) or 0)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    cluster = Cluster(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)), there)
    task, config = recipe.build_task(), recipe.training
    traced = trace_both(build, micro_batch(config, cluster), device.type == "cuda")
    strategy = (
        config.distributed
        if config.distributed in ("ddp", "hybrid", "fsdp")
        else (cluster.strategies()[0])
    )
    again = recomputed(recipe) and True in traced
    now = way(task, traced, config, cluster, strategy, again)
    limit = min(usable(cluster), LESS * now.needed)
    smaller = Cluster(cluster.gpus, cluster.per_node, limit * there / usable(cluster))
    found = advise(task, traced, config, smaller)
    lines = [f"by the plan a step needs {gigabytes(now.needed)}, of which "
             f"{gigabytes(traced[again].small.state.total)} whatever the batch; {device.type} has "
             f"{gigabytes(there)} in all"]  # fmt: skip
    if found is None:
        return [*lines, "no way to cut or recompute needs enough less: make the model or the "
                "length smaller"]  # fmt: skip
    return [*lines, f"add {found.options()}, which needs {gigabytes(found.needed)}"]


def recomputed(recipe: Recipe) -> bool:
    """Return whether a recipe's layers are recomputed; not where its model has no such field."""
    return bool(recipe.to_mapping()["model"].get("checkpoint_activations"))
