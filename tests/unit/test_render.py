"""Tool results as the model reads them."""

from __future__ import annotations

import pytest

from perdure.messages import ToolResult
from perdure.results import render_result


def result(**fields) -> ToolResult:
    return ToolResult.model_validate({"call_id": "c", "name": "t", "status": "ok", **fields})


@pytest.mark.parametrize("content", ["", "plain", '{"a": 1}', "多"])
def test_an_ok_result_is_its_content_to_the_byte(content):
    assert render_result(result(content=content)) == content


def test_a_preview_says_how_much_of_it_is_shown():
    assert render_result(result(content="多多", size=1000)) == "多多\n[Cut: 6 of 1000 bytes are shown.]"


def test_a_note_follows_the_content():
    assert render_result(result(content="x", note="Edited.")) == "x\n[Note: Edited.]"


def test_anything_else_is_an_object_of_what_is_known():
    failed = result(
        status="error", message="No “seat”", error_type="sold_out", note="n", suggestion="Try B", content="x"
    )
    expected = '{"status":"error","error_type":"sold_out","message":"No “seat”","suggestion":"Try B","note":"n"}'
    assert render_result(failed) == expected
    assert render_result(result(status="denied", message="no")) == '{"status":"denied","message":"no"}'
