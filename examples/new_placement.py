"""Your own norm placement: Peri-LN without the final norm, with smaller initial weights.

export PYTHONPATH=examples
magneto probe causal-lm/tiny --placements pre,new_placement:SANDWICH
"""

from magneto import Depth, Placement


def one_over_root_depth(depth: Depth) -> float:
    """Return 1 / sqrt(sublayers), the gain of v, out, fc1 and fc2."""
    return depth.sublayers**-0.5


SANDWICH = Placement(
    name="sandwich",
    title="Sandwich",
    source="this example",
    self_attention=("before", "branch"),
    cross_attention=("before", "branch"),
    feed_forward=("before", "branch"),
    scaled=("self_attention", "cross_attention", "feed_forward"),
    gain=one_over_root_depth,
)
