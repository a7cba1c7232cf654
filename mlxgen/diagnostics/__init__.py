"""Diagnostics: codes, messages, locations and fixes.

A diagnostic has a stable code (``MG104``), which errors.md explains, and a ``Span``, which can
point inside a string of the YAML file (``Entry.text_span``). ``Diagnostics`` collects all of them.
"""

from .collect import Diagnostic as Diagnostic
from .collect import Diagnostics as Diagnostics
from .collect import Related as Related
from .collect import TooMany as TooMany
from .collect import one_line as one_line
from .fix import Advice as Advice
from .fix import Fix as Fix
from .fix import Guess as Guess
from .fix import Help as Help
from .fix import applied as applied
from .messages import Rendered as Rendered
from .messages import Report as Report
from .messages import sections as sections
from .span import COMMAND_LINE as COMMAND_LINE
from .span import LINE_BREAK as LINE_BREAK
from .span import Span as Span
from .span import Text as Text
from .suggest import did_you_mean as did_you_mean
