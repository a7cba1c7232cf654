"""Imports operators of other libraries: writes entries from the schema of an installed package."""

from pathlib import Path

from ...diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))
