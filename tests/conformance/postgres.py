"""A PostgreSQL server of the tests' own, where its programs are installed."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The server ends, and its folder goes, when this shell's input ends: with the tests, however they end.
_CLEAN_UP = 'read _; "$0" -D "$1/data" -m immediate stop; rm -rf "$1"'


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs, or None."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    found.sort(key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
    if on_path := shutil.which("pg_ctl"):
        found.append(Path(on_path).parent)
    return next((path for path in reversed(found) if (path / "initdb").exists() and (path / "pg_ctl").exists()), None)


@contextmanager
def serving() -> Generator[str | None]:
    """Yield the address of a new server that ends with the block; None where there can't be one."""
    where, user = programs(), _user()
    if where is None or user is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))  # not pytest's: only root may enter that
    if "user" in user:
        shutil.chown(folder, **user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        ["sh", "-c", _CLEAN_UP, where / "pg_ctl", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        **user,
    ):
        _run(user, where / "initdb", "-D", folder / "data", "-U", "perdure", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=60"
        _run(user, where / "pg_ctl", "-D", folder / "data", "-l", folder / "log", "-w", "-t60", "-o", options, "start")
        yield f"postgresql://perdure@127.0.0.1:{port}/postgres"


def _run(user: dict[str, Any], *command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)


def _user() -> dict[str, Any] | None:
    """Return as whom it runs: root it refuses; None where there is nobody else."""
    if os.getuid():
        return {}
    import pwd

    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return None
    return {"user": "postgres", "group": "postgres"}
