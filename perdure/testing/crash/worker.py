"""A worker that can be killed at its points: `python -m perdure.testing.crash.worker FILE …`, as `perdure worker`."""

from __future__ import annotations

import sys
from typing import Any

from temporalio.worker import Worker

from perdure import worker
from perdure.testing.crash.points import CrashPoints


class _Watched(Worker):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, plugins=[CrashPoints()])  # pyright: ignore[reportUnknownMemberType]


def main() -> None:
    """Serve what the arguments say, as `perdure worker` does."""
    from perdure.starter import main as command

    setattr(worker, "Worker", _Watched)  # noqa: B010
    sys.argv[1:1] = ["worker"]
    command()


if __name__ == "__main__":
    main()
