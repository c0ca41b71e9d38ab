"""The world outside, in the test's own process: a ledger of effects, and points at which a worker is held.

Tools, probes, predicates and the model (`cast.py`) say where they are, one JSON line per connection, and go on
when they get an answer. A point that is armed gets none: until it is released, or its process is killed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


def returned(name: str, number: int | str, size: int) -> str:
    """Return what a tool returns: which of its effects it had, and about so many bytes more."""
    return f"{name} {number}" + "".join(f" {at:07}" for at in range(size // 8))


@dataclass(frozen=True)
class Effect:
    """One request that took effect."""

    run: str
    tool: str
    key: str
    call: str


@dataclass
class Held:
    """An armed point. `reached` has the process id that came there first."""

    reached: asyncio.Future[int]
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Stage:
    """Ledger and points. Serve it with `Stage.open()`."""

    def __init__(self):
        self.address = ""
        self.pause: Callable[[], float] = lambda: 0  # seconds that each point takes
        self.effects: list[Effect] = []
        self.repeats: Counter[str] = Counter()  # requests with the key of an idempotent effect that is there already
        self.looks: dict[str, list[bool]] = {}  # what probes found, by run
        self._armed: dict[tuple[str, str], list[Held]] = {}
        self._lost: Counter[tuple[str, str]] = Counter()
        self._changed = asyncio.Condition()

    @classmethod
    @asynccontextmanager
    async def open(cls):
        stage = cls()
        server = await asyncio.start_server(stage._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        stage.address = f"{host}:{port}"
        try:
            yield stage
        finally:
            server.close()

    def arm(self, run, point):
        """Hold whoever comes to `point` of `run` next; once."""
        held = Held(asyncio.get_running_loop().create_future())
        self._armed.setdefault((run, point), []).append(held)
        return held

    def lose_reply(self, run, tool):
        """Break the connection once, after the effect and before the answer."""
        self._lost[run, tool] += 1

    def done(self, run, tool=""):
        """Return the effects of a run."""
        return [effect for effect in self.effects if effect.run == run and tool in ("", effect.tool)]

    async def until(self, true):
        """Wait until `true()` is; it is asked again whenever something happens here."""
        async with self._changed:
            await self._changed.wait_for(true)

    async def _serve(self, reader, writer):
        try:
            said = json.loads(await reader.readline())
            answer = await getattr(self, f"_on_{said.pop('op')}")(reader, **said)
            if answer is not None:
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # killed while it spoke
        finally:
            writer.close()
            async with self._changed:
                self._changed.notify_all()

    async def _on_at(self, reader, run, point, pid):
        await asyncio.sleep(self.pause())
        waiting = self._armed.get((run, point))
        if waiting:
            held = waiting.pop(0)
            if not held.reached.done():
                held.reached.set_result(pid)
            await self._hold(held, reader)
        return {}

    async def _hold(self, held, reader):
        """Return when it is released, or its process is gone."""
        gone = asyncio.ensure_future(reader.read())
        released = asyncio.ensure_future(held.released.wait())
        await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, released):
            task.cancel()

    async def _on_effect(self, reader, run, tool, key, call, idempotent, pid):
        """Perform an effect. Once it has been asked for it happens, whatever becomes of who asked."""
        await self._on_at(reader, run, f"{tool} during", pid)
        if idempotent and any(effect.key == key for effect in self.effects):
            self.repeats[key] += 1
        else:
            self.effects.append(Effect(run, tool, key, call))
        if self._lost[run, tool] > 0:
            self._lost[run, tool] -= 1
            return None
        return {"number": len(self.done(run, tool))}

    async def _on_look(self, reader, run, key, pid):
        await self._on_at(reader, run, "probe", pid)
        found = any(effect.key == key for effect in self.effects)
        self.looks.setdefault(run, []).append(found)
        return {"found": found}
