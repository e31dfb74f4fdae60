"""What an error says to a user, line by line: of a mistake, a full disk, no memory left.

Nothing heavy is imported: the command line looks here at every error.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

# How numpy, safetensors and tokenizers (a plain Exception) say that the disk is full.
WRITE_ERRORS = ("SafetensorError", "Exception")
NO_ROOM = (" requested and ", "(os error 28)", "(os error 27)", "(os error 122)")
NO_ROOM_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
NO_FOLDER_ERRORS = (errno.EEXIST, errno.ENOTDIR)
# How torch says that there is no memory left, or that a size is beyond any.
NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")


def user_lines(error: Exception) -> list[str]:
    """Return what an error says to a user, line by line; nothing where it is a fault of ours.

    torch says by a RuntimeError that there is no memory left.
    """
    text = str(error)
    writing = isinstance(error, OSError) or type(error).__name__ in WRITE_ERRORS
    full = getattr(error, "errno", None) in NO_ROOM_ERRORS or any(w in text for w in NO_ROOM)
    if writing and full:
        return [f"could not write, the disk is full or a limit is reached: {text}"]
    if isinstance(error, MemoryError) or any(word in text for word in NO_MEMORY):
        asked = re.search(r"allocate ([\d.,]+ ?\w+)", text)
        more = f" ({asked[1]} more were asked for)" if asked else ""
        return [f"out of memory{more}: make the model, the batch or the length smaller, or raise "
                "training.gradient_accumulation_steps; `magneto plan` says what fits"]  # fmt: skip
    if type(error).__name__ == "SafetensorError":  # its package need not be there
        return [f"damaged file of weights: {text}"]
    if not isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return []
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        place = Path(error.filename)
        file = next((path for path in (place, *place.parents) if path.is_file()), None)
        if error.errno in NO_FOLDER_ERRORS and file is not None:
            return [f"{file} is a file, not a folder: name another place"]
        return [f"{place}: {error.strerror}"]
    return text.splitlines() or [type(error).__name__]
