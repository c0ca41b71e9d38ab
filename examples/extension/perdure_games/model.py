"""A model for any agent: `model: parrot:grey`. It calls the first tool once, and then repeats what it was told."""

from perdure import ModelSettings, Usage
from perdure.models import ModelReply, ModelRequest, RawCall


class Parrot:
    """Says what it heard last.

    Args:
        name: What follows `parrot:` in the model's name.
    """

    provider = "parrot"

    def __init__(self, name: str) -> None:
        self.name = name

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the reply."""
        used = Usage(input_tokens=10, output_tokens=5)
        last = request.messages[-1]
        if request.tools and not request.answer_only and last.role == "user":
            call = RawCall(id=f"parrot-{len(request.messages)}", name=request.tools[0].name, arguments="{}")
            return ModelReply(calls=[call], finish="calls", usage=used, model=self.name)
        heard = last.result.content if last.role == "tool" else "nothing"
        return ModelReply(text=f"The {self.name} parrot heard {heard}.", usage=used, model=self.name)

    async def aclose(self) -> None:
        """Release nothing."""


def parrot(name: str, _settings: ModelSettings) -> Parrot:
    """Return the model `parrot:NAME`."""
    return Parrot(name)
