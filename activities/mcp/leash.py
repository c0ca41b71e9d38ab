"""Runs an MCP server for as long as its worker lives: `leash.py COMMAND…`, started by its path.

The server has the leash's stdin, stdout and stderr. Most servers end when their stdin does, as it does with the worker;
one that is busy, or does not care, is ended with all that it has started. It imports nothing of Perdure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

PATIENCE = 2.0
"""Seconds that the server gets to end by itself."""
LOOK = 0.5
"""Seconds between two looks at whether the worker is there."""


def main(*command: str) -> int:
    """Return the command's exit code."""
    worker, alone = os.getppid(), threading.Event()
    signal.signal(signal.SIGTERM, _stay)  # it is the server's to end; the group may be signalled as a whole
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127

    def follow() -> None:
        while os.getppid() == worker:
            time.sleep(LOOK)
        alone.set()
        os.killpg(os.getpgrp(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    code = child.wait()
    if alone.is_set():
        following.join()  # what the server has started may be there yet
    return code if code >= 0 else 128 - code


def _stay(_signum: int, _frame: object) -> None:
    """Do nothing."""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
