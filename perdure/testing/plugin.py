"""Fixtures for pytest, in every test suite where Perdure is installed. Nothing is imported before one is asked for.

- `perdure_env`: an `Environment`: engine and worker for whole runs, shared by all tests of the session.
- `model_server`: a function that starts a `ModelServerProcess` with a script; it ends with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.testing.environment import Environment
    from perdure.testing.model_process import ModelServerProcess


@pytest.fixture(scope="session")
def perdure_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An engine whose clock can be moved, and workers as tests need them."""
    from perdure.testing.environment import Environment

    with Environment(tmp_path_factory.mktemp("perdure")) as environment:
        yield environment


@pytest.fixture
def model_server() -> Iterator[Callable[..., ModelServerProcess]]:
    """Starts a server of OpenAI's API that follows a script, given as to `ModelServerProcess`."""
    from perdure.testing.model_process import ModelServerProcess

    with ExitStack() as stack:

        def start(replies: Any, **options: Any) -> ModelServerProcess:
            return stack.enter_context(ModelServerProcess(replies, **options))

        yield start
