"""Models by name: `openai:gpt-…`, `openai-responses:…`, `scripted:FILE`, servers of the settings, those of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from perdure import extensions
from perdure.errors import ExtensionError, ModelError
from perdure.models import Model
from perdure.policies import ModelSettings
from perdure.settings import Provider

Factory = Callable[[str, ModelSettings], Model]
"""Called with what follows the provider's name, and the settings."""


def _chat(name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.openai_chat import OpenAIChat

    return OpenAIChat(name, settings)


def _declared(prefix: str, provider: Provider, name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.openai_chat import OpenAIChat

    return OpenAIChat(name, _at(provider, settings), provider=prefix)


def _at(provider: Provider, settings: ModelSettings) -> ModelSettings:
    return settings.model_copy(update={"base_url": provider.base_url, "api_key_env": provider.api_key_env})


def _responses(name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.openai_responses import OpenAIResponses

    return OpenAIResponses(name, settings)


def _scripted(name: str, settings: ModelSettings) -> Model:
    from perdure.activities.providers.scripted import ScriptedFile

    return ScriptedFile(name, settings)


_factories: dict[str, Factory] = {"openai": _chat, "openai-responses": _responses, "scripted": _scripted}
_servers: dict[str, Provider] = {}


def register(prefix: str, factory: Factory) -> None:
    """Make `PREFIX:NAME` a model of this process, in place of any other of that prefix."""
    _factories[prefix] = factory


def declare(servers: Mapping[str, Provider]) -> None:
    """Make models of this process of the servers that its settings name."""
    for prefix, provider in servers.items():
        _servers[prefix] = provider
        register(prefix, partial(_declared, prefix, provider))


def unregister(prefix: str) -> None:
    """Undo `register`."""
    _factories.pop(prefix, None)
    _servers.pop(prefix, None)


def known() -> list[str]:
    """Return the providers of this process, by name."""
    return sorted({*_factories, *extensions.names("models")})


class UnknownProvider(ModelError):
    """No provider of this process has the name that a model begins with."""


def strange(names: Iterable[str]) -> str | None:
    """Return what is wrong with the first of these providers, or models by name, that is not known; None if all are."""
    for provider in (name.partition(":")[0] for name in names):
        try:
            if _factory(provider) is None:
                servers = "PERDURE_PROVIDERS makes a server one."
                return f"provider {provider!r} is not known here; known providers are {', '.join(known())}. {servers}"
        except ExtensionError as error:
            return str(error)
    return None


def _factory(provider: str) -> Factory | None:
    """Return what makes the models of a provider: one of this process, else an extension's.

    Raises:
        ExtensionError: If that can't be loaded, or is none.
    """
    if provider in _factories or provider not in extensions.names("models"):
        return _factories.get(provider)
    factory: Factory = extensions.load("models", provider)
    return partial(_checked, provider, factory)


def _checked(provider: str, factory: Factory, name: str, settings: ModelSettings) -> Model:
    model = factory(name, settings)
    lacks = [part for part in ("provider", "generate", "aclose") if not hasattr(model, part)]
    if lacks:
        text = f"The extension that makes models of {provider!r} gave {type(model).__name__}, without {lacks[0]}."
        raise ModelError("bad_request", text)
    return model


def open_model(name: str, settings: ModelSettings) -> Model:
    """Return the model of that name. Costs no request; its connections open with the first one.

    Raises:
        ModelError: `bad_request` (an `UnknownProvider`) if no provider has that name, or a setting can't be;
            `authentication` if there is no key.
    """
    provider, _, rest = name.partition(":")
    if not provider or not rest:
        names = ", ".join(known())
        raise ModelError("bad_request", f"Model {name!r} has to be PROVIDER:NAME; known providers are {names}.")
    if problem := strange([name]):
        raise UnknownProvider("bad_request", f"Model {name!r}: {problem}")
    make = _factory(provider)
    assert make is not None  # noqa: S101 - strange() has looked
    return make(rest, settings)


def settings_of(name: str, settings: ModelSettings) -> ModelSettings:
    """Return the settings that hold for that model: a server that has a name of its own has its own address and key."""
    provider = _servers.get(name.partition(":")[0])
    return _at(provider, settings) if provider else settings


def address_of(name: str, settings: ModelSettings) -> str:
    """Return where the requests for a model go: its server's address, or the provider's name where it has none."""
    provider = name.partition(":")[0]
    if provider not in _servers and _factories.get(provider) not in (_chat, _responses):
        return provider
    from perdure.activities.providers.openai_client import base_url

    return base_url(settings_of(name, settings))
