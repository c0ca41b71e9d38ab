"""Models by name: `openai:gpt-…`, `openai-responses:…`, `scripted:FILE`, and whatever a test registers."""

from __future__ import annotations

from collections.abc import Callable

from perdure.errors import ModelError
from perdure.models import Model
from perdure.policies import ModelSettings

Factory = Callable[[str, ModelSettings], Model]
"""Called with what follows the provider's name, and the settings."""


def _chat(name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.openai_chat import OpenAIChat

    return OpenAIChat(name, settings)


def _responses(name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.openai_responses import OpenAIResponses

    return OpenAIResponses(name, settings)


def _scripted(name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.scripted import ScriptedFile

    return ScriptedFile(name, settings)


_factories: dict[str, Factory] = {"openai": _chat, "openai-responses": _responses, "scripted": _scripted}


def register(prefix: str, factory: Factory) -> None:
    """Make `PREFIX:NAME` a model of this process, in place of any other of that prefix."""
    _factories[prefix] = factory


def unregister(prefix: str) -> None:
    """Undo `register`."""
    _factories.pop(prefix, None)


def known() -> list[str]:
    """Return the providers of this process, by name."""
    return sorted(_factories)


def open_model(name: str, settings: ModelSettings) -> Model:
    """Return the model of that name. Costs no request; its connections open with the first one.

    Raises:
        ModelError: `bad_request` if no provider has that name, or a setting can't be; `authentication` if
            there is no key.
    """
    provider, _, rest = name.partition(":")
    factory = _factories.get(provider)
    if factory is None or not rest:
        names = ", ".join(known())
        raise ModelError("bad_request", f"Model {name!r} has to be PROVIDER:NAME; known providers are {names}.")
    return factory(rest, settings)


def address_of(name: str, settings: ModelSettings) -> str:
    """Return where the requests for a model go: its server's address, or the provider's name where it has none."""
    provider = name.partition(":")[0]
    if _factories.get(provider) not in (_chat, _responses):
        return provider
    from perdure.activities.providers.openai_client import base_url

    return base_url(settings)
