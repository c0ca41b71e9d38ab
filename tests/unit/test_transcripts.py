"""The chained hashes that name a conversation."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.messages import Message, UserMessage
from perdure.transcripts import ROOT, Chain, link


def messages(*texts: str) -> list[Message]:
    return [UserMessage(role="user", content=text) for text in texts]


def chain_of(*texts: str) -> Chain:
    chain = Chain()
    chain.extend(messages(*texts))
    return chain


def test_head_of_nothing_is_the_root():
    assert Chain().head(0) == ROOT


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=3), max_size=8), st.data())
def test_growing_in_pieces_gives_the_same_hashes_as_at_once(texts, data):
    cut = data.draw(st.integers(0, len(texts)))
    pieces = Chain()
    pieces.extend(messages(*texts[:cut]))
    pieces.extend(messages(*texts))
    whole = chain_of(*texts)
    assert pieces.contents(0) == whole.contents(0)
    assert all(pieces.head(length) == whole.head(length) for length in range(len(texts) + 1))
    assert whole.head(cut) == chain_of(*texts[:cut]).head(cut)


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=5), st.lists(st.sampled_from("ab"), min_size=1, max_size=5))
def test_two_conversations_have_one_head_only_if_they_are_equal(left, right):
    assert (chain_of(*left).head(len(left)) == chain_of(*right).head(len(right))) == (left == right)


def test_link_depends_on_parent_and_content():
    assert len({link("a", "b"), link("b", "a"), link("", "ab"), link("a", "")}) == 4
