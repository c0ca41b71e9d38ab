"""What users of such systems report as broken is held by a test each, and the page says by which."""

import pytest

from tests.reported import PAGE, REPORTS, held, page


@pytest.mark.parametrize("number", REPORTS)
def test_a_report_has_a_test_that_holds_it(number):
    assert held().get(number), f"mark a test with @pytest.mark.reported({number}): {REPORTS[number]}"


def test_no_test_holds_a_report_that_is_not_listed():
    assert held().keys() <= REPORTS.keys()


def test_the_page_is_the_one_of_the_marks():
    assert PAGE.read_text("utf-8") == page(), "make docs"
