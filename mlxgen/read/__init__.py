"""Parses text to located data: YAML, signatures, settings, hand-written C++ and Metal."""

from pathlib import Path

from ..diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))
