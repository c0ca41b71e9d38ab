"""An agent in fifteen lines: it looks up an address by itself, and asks before it sends mail."""

import os
from pathlib import Path

from perdure import Agent, tool


@tool(effect="read")
def address_of(name: str) -> str:
    """Look up a colleague's e-mail address."""
    return {"ada": "ada@example.com", "grace": "grace@example.com"}.get(name.lower(), "unknown")


@tool(approval="always")  # "unsafe" is the default: done at most once, whatever crashes
def send_mail(to: str, text: str) -> str:
    """Send an e-mail."""  # here, to a file
    with Path("outbox.txt").open("a", encoding="utf-8") as outbox:
        outbox.write(f"To: {to}\n{text}\n\n")
    return f"Sent to {to}."


clerk = Agent("clerk", model=os.environ.get("CLERK_MODEL", "openai:gpt-5-mini"), tools=[address_of, send_mail])
