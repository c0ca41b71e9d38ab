"""Runs a command for as long as its parent lives: `leash.py RECORD COMMAND…`, started by its path.

The parent holds the other end of stdin, and never writes. When that end closes, by intent or because the
parent was killed, RECORD is removed and the command is ended. The first line of stdout is the command's
process id; its output goes to stderr. It imports nothing of Perdure, so that it is small and starts fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

PATIENCE = 10
"""Seconds that the command gets to end by itself."""


def main(record: str, *command: str) -> int:
    """Return the command's exit code."""
    # Open files are inherited: with them, the lock of the database file.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, close_fds=False)

    def end(_signum: int, _frame: FrameType | None) -> None:
        child.terminate()

    signal.signal(signal.SIGTERM, end)
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()

    def follow_parent() -> None:
        os.read(0, 1)
        Path(record).unlink(missing_ok=True)
        child.terminate()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=follow_parent, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
