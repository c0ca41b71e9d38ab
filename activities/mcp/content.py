"""What a tool of an MCP server returned, as what a run keeps: text or JSON, images, and notes. Data, never followed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from perdure.messages import JSON, ImagePart
from perdure.parsing import parse_json
from perdure.results import Illustrated, clean, short

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What models take."""
MOST_IMAGES = 1_000_000
"""Characters, as base64, of the images of one result: the history holds them."""


def content_of(result: Any, *, shown: bool = True) -> Illustrated:
    """Return what a `CallToolResult` holds: its structured content, where that says all; else its texts, in order.

    Args:
        shown: Whether its images are to be seen; else a note says which there were.
    """
    texts, images, notes = list[str](), list[ImagePart](), list[str]()
    kinds = _IMAGES if shown else frozenset[str]()
    for block in result.content:
        said = _block(block, kinds, images, notes)
        if said:
            texts.append(said)
    value: Any = "\n".join(texts)
    structured = _structured(result)
    if structured is not None:
        value = structured if _say_the_same(texts, structured) else "\n".join([*texts, _dumped(structured)])
    return Illustrated(value=value, images=tuple(images), note=" ".join(notes))


def words_of(result: Any) -> str:
    """Return in which words a `CallToolResult` says that it is an error."""
    made = content_of(result)
    said = made.value if isinstance(made.value, str) else _dumped(made.value)
    return short(said.strip() or "The server says that it failed, and not why.")


def _block(block: Any, kinds: frozenset[str], images: list[ImagePart], notes: list[str]) -> str:
    match block.type:
        case "text":
            return clean(block.text)
        case "image":
            return _image(block.data, block.mime_type, "an image", kinds, images, notes)
        case "audio":
            notes.append(f"Left out: a recording ({_kind(block.mime_type)}, {_size(block.data)}).")
            return ""
        case "resource_link":
            return _link(block)
        case "resource":
            return _embedded(block.resource, kinds, images, notes)
        case other:
            notes.append(f"Left out: something of type {clean(str(other))[:50]!r}.")
            return ""


def _link(link: Any) -> str:
    more = [link.title or link.name, link.mime_type, f"{link.size} bytes" if link.size is not None else None]
    about = ", ".join(clean(str(one)) for one in more if one)
    said = f": {clean(link.description)}" if link.description else ""
    return f"[Resource {clean(str(link.uri))} ({about}){said}]"


def _embedded(resource: Any, kinds: frozenset[str], images: list[ImagePart], notes: list[str]) -> str:
    uri = clean(str(resource.uri))
    text = getattr(resource, "text", None)
    if text is not None:
        return f"[Resource {uri}]\n{clean(text)}"
    return _image(resource.blob, resource.mime_type or "", f"resource {uri}", kinds, images, notes)


def _image(data: str, kind: str, what: str, kinds: frozenset[str], images: list[ImagePart], notes: list[str]) -> str:
    """Keep an image, or say in a note why it is left out."""
    held = sum(len(image.url) for image in images)
    if kind not in kinds:
        notes.append(f"Left out: {what} ({_kind(kind)}, {_size(data)}).")
    elif held + len(data) > MOST_IMAGES:
        notes.append(f"Left out: {what} ({_kind(kind)}, {_size(data)}), as it is too large.")
    else:
        images.append(ImagePart(kind="image", url=f"data:{kind};base64,{data}"))
        return f"[Image {len(images)} of this result: {what}, {_kind(kind)}]"
    return ""


def _kind(kind: str) -> str:
    return clean(kind)[:100] or "of an unknown type"


def _size(data: str) -> str:
    return f"{len(data) * 3 // 4:,} bytes"


def _structured(result: Any) -> JSON:
    """Return the structured content; what is no object is wrapped in one by older servers, as `result` alone."""
    found: JSON = result.structured_content
    fields = cast("dict[str, JSON]", found) if isinstance(found, dict) else {}
    return fields["result"] if set(fields) == {"result"} else cast("JSON", found)


def _say_the_same(texts: Sequence[str], structured: JSON) -> bool:
    """Return whether texts say no more than the structured content, as they do by the protocol's advice."""
    values = [_parsed(text) for text in texts]
    return not texts or texts == [structured] or values in ([structured], structured)


def _parsed(text: str) -> JSON:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _dumped(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
