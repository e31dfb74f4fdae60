"""Files that are there whole or not at all, locks, the path nearest to a wrong one, packages."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filelock import FileLock

MANIFEST = "manifest.json"
# Of a file in a manifest: when it was changed, in nanoseconds.
CHANGED = "changed"
LOCK_FILE = ".lock"
# Seconds between looks at a lock that is waited for.
POLL_SECONDS = 0.5


class Damaged(ValueError):
    """A file, or a directory whose files are not what its manifest says, that is not as written."""


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Its full name.
        extra: Of ours, which installs it.
        purpose: What needs which package, for the message.

    Raises:
        ModuleNotFoundError: If it is not there; says what to install.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        why = "" if error.name == package else f" ({error})"  # it is there, and broken
        install = f"pip install 'foundation-transformers[{extra}]'"
        raise ModuleNotFoundError(f"{purpose}: {install}{why}", name=package) from error


def user_path(name: str | Path) -> Path:
    """Return a path, in which ~ is a home directory; where there is no such user, as it stands."""
    return Path(os.path.expanduser(name))


def nearest_path(path: Path) -> str:
    """Return "; did you mean ...?" with what is nearest to the first part of a path that is not."""
    while not os.path.isdir(path.parent):
        path = path.parent
    near = get_close_matches(path.name, [beside.name for beside in path.parent.iterdir()], n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def process_name() -> str:
    """Name this process among those of all machines that share a folder."""
    return f"{socket.gethostname()}.{os.getpid()}"


def aside_path(path: Path, process: str | None = None) -> Path:
    """Return where a file or directory is made before it is renamed.

    Args:
        path: Where it shall be.
        process: `process_name` of who makes it; by default this process.
    """
    path = path.absolute()
    return path.with_name(f".{path.name}.{process or process_name()}")


def is_aside(path: Path) -> bool:
    """Return whether a path's name is one of `aside_path`'s."""
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file aside and rename it into place."""
    aside = aside_path(path)
    clear_dead(path.parent, path.name)
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, aside, and rename it into place."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON aside and rename it into place."""
    write_text(path, json.dumps(value, indent=1, default=str))


def read_json(path: Path) -> Any:
    """Read a file of JSON that we wrote.

    Raises:
        Damaged: If it holds none; names it.
        OSError: If it can't be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from error


def read_object(path: Path, *keys: str) -> dict[str, Any]:
    """Read a file of one JSON object that we wrote.

    Args:
        path: The file.
        keys: That it must have.

    Raises:
        Damaged: If it holds something else, or lacks a key; names it.
        OSError: If it can't be read.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged: it must hold one JSON object")
    if missing := [key for key in keys if key not in value]:
        raise Damaged(f"{path} is damaged: it has no {', '.join(missing)}")
    return value


def plain(value: Any) -> Any:
    """Return nested values as JSON has them: keys are texts, numbers that are not finite None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def clear_aside(directory: Path) -> None:
    """Clear a directory in which only this process writes of what a killed one left half-written.

    A replacement that it began is finished.
    """
    for path in directory.glob(".*"):
        replaced = directory / path.stem.removeprefix(".")
        if path.suffix == ".old" and not replaced.exists():
            path.rename(replaced)
        elif path.suffix == ".old" or is_aside(path):
            _remove(path)


def clear_dead(directory: Path, name: str = "*") -> None:
    """Clear a shared directory of what processes of this machine that are gone left half-written.

    What another machine's processes write is left: whether they live can't be known here.

    Args:
        directory: It need not be there.
        name: Of what they wrote; by default whatever it was.
    """
    pattern = f".{name if name == '*' else escape(name)}.{escape(socket.gethostname())}.*"
    for path in directory.glob(pattern):
        process = path.suffix[1:]
        if process.isdigit() and not _is_alive(int(process)):
            _remove(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def directory_aside(path: Path) -> Iterator[Path]:
    """Give an empty directory beside `path`, to be filled and renamed; else it is removed."""
    aside = aside_path(path)
    clear_dead(path.absolute().parent, path.name)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Give a directory to fill; it appears at `path` with a manifest, complete, or not at all."""
    with directory_aside(path) as aside:
        yield aside
        publish(aside, path, {p.name: fingerprint(p) for p in sorted(aside.iterdir())})


def publish(aside: Path, path: Path, manifest: dict[str, dict[str, int]]) -> None:
    """Put a filled directory in its place, in place of what stands there.

    Args:
        aside: Holds the files.
        path: Where it shall be.
        manifest: Fingerprint of each file by name.
    """
    write_json(aside / MANIFEST, manifest)
    sync_to_disk(aside)
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        aside.rename(path)
        shutil.rmtree(old)
    else:
        aside.rename(path)
    sync_to_disk(path.parent)


def check_directory(path: Path) -> None:
    """Compare a directory with its manifest.

    A file of which the manifest has the time of change, and which has it still, is taken as it is.

    Raises:
        Damaged: If a file is missing, or has another size or checksum.
    """
    try:
        for name, written in read_json(path / MANIFEST).items():
            file, changed = path / name, written.pop(CHANGED, None)
            state = file.stat()
            untouched = (state.st_size, state.st_mtime_ns) == (written["bytes"], changed)
            if not untouched and fingerprint(file, sync=False) != written:
                raise Damaged(f"{file} is not as it was written")
    except (OSError, AttributeError, KeyError, TypeError) as error:
        raise Damaged(f"{path}: {error}") from error


def fingerprint(path: Path, sync: bool = True) -> dict[str, int]:
    """Return the size and the checksum of a file; with `sync` it is on the disk afterwards."""
    checksum, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
        if sync:
            os.fsync(file.fileno())
    return {"bytes": size, "crc32": checksum}


def sync_to_disk(path: Path) -> None:
    """Have a file or a directory written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire_lock(directory: Path, patience: float = 0.0) -> FileLock | None:
    """Lock a directory, which is made if it is not there, on whatever machine sees it.

    The kernel holds the lock and releases it when its holder ends, however that ends; a holder that
    is stopped keeps it. The lock's file stays where it is and names its last holder: a file that
    goes while others wait for it would let two of them in.

    Args:
        directory: What is locked.
        patience: Seconds for which a lock that another process holds is waited for.

    Returns:
        The lock, to be released; None if another holds it.

    Raises:
        OSError: If the directory can't be made, or its file system has no locks.
    """
    from filelock import FileLock, Timeout

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK_FILE
    # A lock made of a file alone, filelock's substitute, would outlive a holder that was killed.
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience, poll_interval=POLL_SECONDS)
    except Timeout:
        return None
    path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
    return lock


def lock_holder(directory: Path) -> str:
    """Say in words who holds a directory's lock, or held it last."""
    try:
        process, host = (directory / LOCK_FILE).read_text(encoding="utf-8").split(" ")
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"
