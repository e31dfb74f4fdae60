"""Atomic writes, manifests, locks and optional packages."""

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
# Key of a file's time of change in a manifest, in nanoseconds.
CHANGED = "changed"
LOCK_FILE = ".lock"
# Seconds between attempts to acquire a lock.
POLL_SECONDS = 0.5


class DamagedError(ValueError):
    """Error for a damaged file or directory."""


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional package.

    Raises:
        ModuleNotFoundError: If the package is not installed. The message contains `purpose` and the
            command that installs the package.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        why = "" if error.name == package else f" ({error})"  # installed but broken
        install = f"pip install 'foundation-transformers[{extra}]'"
        raise ModuleNotFoundError(f"{purpose}: {install}{why}", name=package) from error


def user_path(name: str | Path) -> Path:
    return Path(os.path.expanduser(name))


def nearest_path(path: Path) -> str:
    """Return "; did you mean PATH?" for a missing path, or "" if no path is near."""
    while not os.path.isdir(path.parent):
        path = path.parent
    near = get_close_matches(path.name, [beside.name for beside in path.parent.iterdir()], n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def process_name() -> str:
    """Return the name of this process, "HOST.PID"."""
    return f"{socket.gethostname()}.{os.getpid()}"


def temporary_path(path: Path, process: str | None = None) -> Path:
    """Return the path of a process's temporary file beside `path`."""
    path = path.absolute()
    return path.with_name(f".{path.name}.{process or process_name()}")


def is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically, and create missing folders."""
    temporary = temporary_path(path)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    clear_dead(path.parent, path.name)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, default=str))


def read_json(path: Path) -> Any:
    """Parse a JSON file that Magneto wrote, or raise DamagedError."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def read_object(path: Path, *keys: str) -> dict[str, Any]:
    """Return the JSON object in a file that Magneto wrote.

    Raises:
        DamagedError: If the file is damaged, or the object lacks one of `keys`.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DamagedError(f"{path} is damaged: it must be a JSON object")
    if missing := [key for key in keys if key not in value]:
        raise DamagedError(f"{path} is damaged: it lacks {', '.join(missing)}")
    return value


def plain(value: Any) -> Any:
    """Return nested values for JSON, with None for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def clear_temporary(directory: Path) -> None:
    """Remove temporary files in a directory to which no other process writes.

    If the replacement of a directory was interrupted, the old version is restored.
    """
    for path in directory.glob(".*"):
        replaced = directory / path.stem.removeprefix(".")
        if path.suffix == ".old" and not replaced.exists():
            path.rename(replaced)
        elif path.suffix == ".old" or is_temporary(path):
            _remove(path)


def clear_dead(directory: Path, name: str = "*") -> None:
    """Remove the temporary files of this machine's dead processes from a directory.

    Files of other machines stay, because processes there may be alive.
    """
    pattern = f".{name if name == '*' else escape(name)}.{escape(socket.gethostname())}.*"
    for path in directory.glob(pattern):
        process = path.suffix[1:]
        if process.isdigit() and not _is_alive(int(process)):
            _remove(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends no signal
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # a process of another user
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """Yield a new temporary directory beside `path`.

    The caller fills the directory and renames it to `path`. If the caller does not rename the
    directory, the directory is removed after the block.
    """
    temporary = temporary_path(path)
    clear_dead(path.absolute().parent, path.name)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new(directory: Path) -> None:
    """Raise FileExistsError if a path exists, unless it is an empty directory."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} exists and is not empty")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `directory` after the block.

    `directory` must be missing or empty.
    """
    check_new(directory)
    with temporary_directory(directory) as temporary:
        yield temporary
        temporary.rename(directory)  # replaces an empty directory only


def publish(temporary: Path, path: Path, manifest: dict[str, dict[str, int]]) -> None:
    """Write a manifest into a directory, and rename the directory to `path`.

    An older directory at `path` is replaced.
    """
    write_json(temporary / MANIFEST, manifest)
    sync_to_disk(temporary)
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old)
    else:
        temporary.rename(path)
    sync_to_disk(path.parent)


def check_directory(path: Path) -> None:
    """Compare a directory with its manifest.

    A file is skipped if size and modification time are as in the manifest.

    Raises:
        DamagedError: If a file is missing or damaged.
    """
    try:
        for name, written in read_json(path / MANIFEST).items():
            file, changed = path / name, written.pop(CHANGED, None)
            state = file.stat()
            untouched = (state.st_size, state.st_mtime_ns) == (written["bytes"], changed)
            if not untouched and fingerprint(file, sync=False) != written:
                raise DamagedError(f"{file} is damaged: it differs from its manifest")
    except (OSError, AttributeError, KeyError, TypeError) as error:
        raise DamagedError(f"{path}: {error}") from error


def fingerprint(path: Path, sync: bool = True) -> dict[str, int]:
    """Return the "bytes" and "crc32" of a file.

    If `sync` is set, the file is also synchronised to the disk.
    """
    checksum, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
        if sync:
            os.fsync(file.fileno())
    return {"bytes": size, "crc32": checksum}


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire_lock(directory: Path, patience: float = 0.0) -> FileLock | None:
    """Lock a directory, or return None if another process has the lock.

    The lock holds on all machines that share the directory. The kernel releases the lock when the
    process ends.

    Args:
        directory: Directory to lock. A missing directory is created.
        patience: Seconds to wait while another process has the lock.

    Raises:
        OSError: If the directory can't be created, or if the file system has no locks.
    """
    from filelock import FileLock, Timeout

    directory.mkdir(parents=True, exist_ok=True)
    # The file is never removed: afterwards two waiting processes could each acquire a lock.
    path = directory / LOCK_FILE
    # filelock's fallback, a lock file without kernel lock, would outlive a killed holder.
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience, poll_interval=POLL_SECONDS)
    except Timeout:
        return None
    path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
    return lock


def lock_holder(directory: Path) -> str:
    try:
        process, host = (directory / LOCK_FILE).read_text(encoding="utf-8").split(" ")
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"
