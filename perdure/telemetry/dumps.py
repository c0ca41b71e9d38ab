"""A process that crashes leaves no picture of its memory behind: in it would be all secrets, and all that is private.

What Python prints of a crash (`faulthandler`) names functions and lines, and no values.
"""

from __future__ import annotations

import sys
from contextlib import suppress

_PR_SET_DUMPABLE = 4


def forbid() -> None:
    """Have the system write no core dump of this process, however it is set up, and let no debugger of others read it.

    Where the system knows no such thing, nothing happens. What the process starts is not concerned, but by the limit.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
