"""``mlxgen.load`` and the notebook extension: operators from strings, built in a cache."""

from pathlib import Path

from ...diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))
