"""`perdure record`, `replay` and `check-histories`, as a user types them."""

from __future__ import annotations

import json

import pytest

LOOKING = {"text": "Let me look.", "calls": [{"name": "look", "arguments": {"name": "ada"}}]}


@pytest.mark.long
def test_a_run_is_recorded_and_a_replay_shows_where_another_model_goes_another_way(served):
    served("run", "agents.py:clerk", "Write to Ada.", "--id", "kept", "--no-wait", code=3)
    assert "1 history replayed" in served("check-histories", "--from-server", "--query", 'WorkflowId = "kept"').stdout
    served("approve", "kept")
    served("run", "agents.py:clerk", "Write to Ada.", "--id", "kept")
    assert "run kept of clerk, completed" in served("record", "kept", "--out", "case.json").stderr
    assert json.loads((served.folder / "case.json").read_text())["source"] == "agents.py"
    assert "kept goes the same way" in served("replay", "case.json").stdout
    (served.folder / "other.json").write_text(json.dumps([LOOKING, {"text": "I'd rather not."}]))
    words = ("replay", "case.json", "--agent", "agents.py:clerk", "--model", "scripted:other.json")
    shown = served(*words, code=1).stdout
    assert "kept goes another way at step 2" in shown
    assert '["send"]' in shown


def test_what_can_not_be_recorded_or_replayed_is_said_in_a_sentence(served):
    assert "no run" in served("record", "nobody", "--out", "none.json", code=1).stderr.lower()
    assert "can't be read" in served("replay", "none.json", code=2).stderr
    (served.folder / "strange.json").write_text('{"format": "perdure.case/2"}')
    assert "is no case" in served("replay", "strange.json", code=2).stderr
