"""``mlxgen.metal``: kernels of ``mx.fast.metal_kernel``, emulated, recorded and imported."""

from pathlib import Path

from ...diagnostics.messages import Messages

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))
