"""Code of several plug-ins: the toolchain in this process, and the text of entries and kernels."""

from pathlib import Path

from ...diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))
