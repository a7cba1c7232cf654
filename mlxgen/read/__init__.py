"""Parses text to located data: YAML, signatures, settings, hand-written C++ and Metal."""

import errno
from pathlib import Path

from ..diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))


def unreadable(error: OSError | ValueError) -> dict[str, str]:
    """Return the problem with a file that cannot be read, for messages."""
    if not isinstance(error, OSError):
        return {"problem": "encoding"}
    known = {errno.EINVAL: "no_file", errno.EFBIG: "large"}
    return {"problem": known.get(error.errno or 0, "system"), "reason": error.strerror or ""}
