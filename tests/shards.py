"""Tar shards and lines of JSON for tests."""

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    """Write files by name into a tar file; a name that ends in / is a folder's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            file.addfile(member, io.BytesIO(content))
    return path


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """Write lines of JSON; a string is a line as it stands."""
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return path
