"""The commands check and generate, and the files that they write."""

from pathlib import Path

from ..diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))
