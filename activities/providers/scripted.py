"""`scripted:FILE`: a model that follows a script."""

from __future__ import annotations

from perdure.policies import ModelSettings
from perdure.testing.script import load_script
from perdure.testing.scripted_model import ScriptedModel


class ScriptedFile(ScriptedModel):
    """A scripted model that reads its script from a JSON file.

    Args:
        path: From the folder in which the worker runs, unless absolute.
        settings: None of them matters.

    Raises:
        ModelError: `bad_request` if there is no such file, or it is no script.
    """

    def __init__(self, path: str, settings: ModelSettings) -> None:
        del settings
        super().__init__(load_script(path))
