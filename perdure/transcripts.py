"""Conversations by hash: what lets a model call name a transcript without sending it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from perdure.messages import Message, content_hash

ROOT = ""
"""The chained hash of an empty conversation."""


def link(parent: str, content: str) -> str:
    """Return the chained hash of a conversation that ends with a message whose content hash is `content`."""
    return hashlib.sha256(f"{parent}/{content}".encode()).hexdigest()[:32]


class Chain:
    """The hashes of a growing conversation."""

    def __init__(self) -> None:
        self.contents: list[str] = []
        self.heads: list[str] = []

    def extend(self, messages: Sequence[Message]) -> None:
        """Add those of `messages` that are not there yet; earlier ones never change."""
        for message in messages[len(self.contents) :]:
            self.contents.append(content_hash(message))
            self.heads.append(link(self.head(len(self.heads)), self.contents[-1]))

    def head(self, length: int) -> str:
        """Return the chained hash of the first `length` messages."""
        return self.heads[length - 1] if length else ROOT
