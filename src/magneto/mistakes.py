"""Error messages for users.

This module imports nothing slow, because every command imports this module.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

# A full disk in the errors of numpy, safetensors and tokenizers (which raises a plain Exception).
WRITE_ERRORS = ("SafetensorError", "Exception")
DISK_FULL = (" requested and ", "(os error 28)", "(os error 27)", "(os error 122)")
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
NO_FOLDER_ERRORS = (errno.EEXIST, errno.ENOTDIR)
# torch reports these by a RuntimeError.
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")


def user_lines(error: Exception) -> list[str]:
    """Return the lines that users see, or [] if the error is a bug in this package."""
    text = str(error)
    writing = isinstance(error, OSError) or type(error).__name__ in WRITE_ERRORS
    full = getattr(error, "errno", None) in DISK_FULL_ERRORS or any(w in text for w in DISK_FULL)
    if writing and full:
        return [f"Could not write: the disk or a quota is full ({text})."]
    if isinstance(error, MemoryError) or any(word in text for word in OUT_OF_MEMORY):
        size = re.search(r"allocate ([\d.,]+ ?\w+)", text)
        request = f" (requested {size[1]} more)" if size else ""
        return [
            f"Out of memory{request}. Reduce the model, the batch or the length, or raise "
            "training.gradient_accumulation_steps. `magneto plan` finds what fits."
        ]
    if type(error).__name__ == "SafetensorError":  # the package may not be installed
        return [f"Damaged weight file: {text}"]
    if not isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return []
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        place = Path(error.filename)
        file = next((path for path in (place, *place.parents) if path.is_file()), None)
        if error.errno in NO_FOLDER_ERRORS and file is not None:
            return [f"{file} is a file, not a folder. Choose another path."]
        return [f"{place}: {error.strerror}"]
    return text.splitlines() or [type(error).__name__]
