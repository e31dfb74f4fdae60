"""Tar shards for tests."""

import io
import tarfile
from pathlib import Path


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    """Write files by name into a tar file."""
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path
