"""Short names of data sources in tables: two sources of other data never share one."""

from __future__ import annotations

from collections.abc import Mapping, Set


def name_of(source: str, parts: int = 1) -> str:
    """Return the last parts of a path, or of a data set's name."""
    found = source.rstrip("/").replace(":", "/").split("/")
    return "/".join(found[-parts:]) or source


def source_names(digests: Mapping[str, Set[str]]) -> dict[str, str]:
    """Return a name of each source: its last part, and more where other data is called so too.

    Two paths that end alike are of the same data if a run of each has the same digest: a set may
    lie in other places on other machines.

    Args:
        digests: Of the data of the runs on each source, as far as they are known.
    """
    first: dict[str, str] = {}
    for source, own in digests.items():
        same = (first[other] for other in first
                if name_of(other) == name_of(source) and own & digests[other])  # fmt: skip
        first[source] = next(same, source)
    return {source: _apart(one, set(first.values()) - {one}) for source, one in first.items()}


def _apart(source: str, others: Set[str]) -> str:
    """Return the shortest name that none of the others has."""
    most = len(source.replace(":", "/").split("/"))
    names = (name_of(source, parts) for parts in range(1, most + 1))
    taken = (name for name in names if all(name != name_of(o, name.count("/") + 1) for o in others))
    return next(taken, source)
