"""Of a run that goes on, spans are told as they end: what is told at its end besides is what came after that."""

from __future__ import annotations

from datetime import UTC

import pytest

from perdure.engine.converter import data_converter
from perdure.telemetry.attempted import History
from perdure.telemetry.projection import Projection
from perdure.telemetry.spans import Told, spans
from tests.replay.replaying import NAMES, history_of


@pytest.mark.parametrize("name", NAMES)
async def test_spans_that_were_told_while_a_run_went_on_are_those_of_its_end_up_to_there(name: str) -> None:
    recorded = history_of(name)
    projection = Projection(recorded.workflow_id, data_converter)
    history = History(recorded.workflow_id, "execution", data_converter)
    told = []
    now = began = recorded.events[0].event_time.ToDatetime(UTC)
    for event in recorded.events:
        await projection.feed(event)
        await history.feed(event)
        now = event.event_time.ToDatetime(UTC)
        so_far = Told("default", recorded.workflow_id, history, projection.events, None, began, now)
        told.append((event.event_id, spans(so_far)))
    whole = spans(Told("default", recorded.workflow_id, history, projection.events, projection.result(), began, now))
    ended = whole[-1:] if projection.ended else []
    for last, found in told[:-1]:
        assert found == [span for span in whole if span.known <= last]
    assert all(span.known == history.last for span in ended)
    assert len({span.ref for span in whole}) == len(whole)
