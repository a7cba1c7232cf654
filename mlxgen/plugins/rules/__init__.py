"""Reports about valid operators, for mistakes that compile: each rule is a module.

The generator needs none of them. It resolves an entry, and passes the operator to ``check``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ...check.context import Context, Named
from ...diagnostics.messages import Messages
from ...model.op import Op, Vmap
from ...model.signature import Signature
from ...read.keys import Sample

MESSAGES = Messages(Path(__file__).with_name("messages.yaml"))


def check(context: Context, op: Op, samples: Mapping[int, Sample]) -> None:
    """Report probable mistakes of a valid entry.

    Args:
        context: The entry.
        op: Its operator.
        samples: The valid samples by position; -1: the default one.
    """
    from .batch import check_batch
    from .defaults import check_defaults, check_initial
    from .overloads import check_overload
    from .unused import check_unused

    check_defaults(context, op)
    check_initial(context, op)
    check_overload(context, samples)
    if op.derivatives.vmap is Vmap.BATCH and not op.elementwise:
        check_batch(context, op, samples.values())
    check_unused(context, op)
    if context.raw.grad == "todo":
        context.warning("grad_to_write", ("grad",), table=MESSAGES)


def check_names(entries: Iterable[Named], signature: Callable[[str], Signature | None]) -> None:
    """Report probable mistakes in the names of all entries.

    Args:
        entries: The entries, of which some may be invalid.
        signature: Returns the signature of an entry.
    """
    from .overloads import check_overloads

    check_overloads(entries, signature)
