import uuid
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep import ids
from threadkeep.errors import InvalidInput

TEXT = st.text()
TRICKY = st.text("a%#/235F")
WIRE = st.text("aZ9._~:@|+=,-", min_size=1, max_size=256).filter(lambda i: i not in (".", ".."))


@given(st.one_of(TEXT, TRICKY))
@example("%23")
@example("%2523")
@example("%")
@example("100%25%2525")
def test_decoding_undoes_encoding(identifier: str):
    assert ids.decode(ids.encode(identifier)) == identifier


@given(TRICKY, TRICKY)
@example("#", "%23")
@example("%", "%25")
@example("a/b", "a%2Fb")
def test_different_ids_have_different_encodings(left: str, right: str):
    assert (ids.encode(left) == ids.encode(right)) == (left == right)


@given(TRICKY, TRICKY, TRICKY, TRICKY)
@example("a#b", "c", "a", "b#c")
@example("#", "", "", "#")
@example("a%23", "b", "a", "%23b")
def test_joined_encodings_are_equal_only_for_equal_pairs(a: str, b: str, c: str, d: str):
    joined = [f"{ids.encode(x)}#{ids.encode(y)}" for x, y in ((a, b), (c, d))]
    assert (joined[0] == joined[1]) == ((a, b) == (c, d))


@given(st.one_of(TEXT, TRICKY))
def test_an_encoding_holds_no_separator(identifier: str):
    assert not set("#/") & set(ids.encode(identifier))


@pytest.mark.parametrize(
    "identifier", ["a", "x" * 256, "é" * 128, "日" * 85, "a#b", "/", ":", "|", "%23", " ", "#", "🧵" * 64]
)
def test_legal_ids(identifier: str):
    assert ids.problem(identifier) is None
    assert ids.check("threadId", identifier) == identifier


@pytest.mark.parametrize(
    ("identifier", "rule"),
    [
        ("", "1 to 256 bytes of UTF-8, received 0"),
        ("x" * 257, "1 to 256 bytes of UTF-8, received 257"),
        ("é" * 129, "received 258"),
        ("🧵" * 65, "received 260"),
        ("a\nb", "control characters"),
        ("\x00", "control characters"),
        ("a\x7f", "control characters"),
        ("\x85", "control characters"),
        ("a\ud800", "valid Unicode"),
        ("#" * 151, "450 bytes once"),
        ("x" * 100 + "%" * 117, "450 bytes once"),
    ],
)
def test_illegal_ids_are_refused_with_field_and_rule(identifier: str, rule: str):
    with pytest.raises(InvalidInput) as caught:
        ids.check("threadId", identifier)
    (issue,) = caught.value.issues
    assert issue.field == "threadId"
    assert rule in issue.message
    assert caught.value.status == 400


def test_the_encoded_bound_is_exact():
    assert ids.problem("#" * 150) is None
    assert ids.problem("x" * 159 + "#" * 97) is None  # 159 + 3 * 97 = 450


@given(TEXT)
def test_a_legal_id_fits_its_bounds(identifier: str):
    if ids.problem(identifier) is None:
        assert 1 <= len(identifier.encode()) <= ids.MAX_BYTES
        assert len(ids.encode(identifier).encode()) <= ids.MAX_ENCODED_BYTES


@given(WIRE)
def test_ids_for_http_need_no_escapes(identifier: str):
    assert ids.http_problem(identifier) is None
    assert ids.from_path("threadId", identifier) == identifier
    assert ids.problem(identifier) is None
    assert ids.encode(identifier) == identifier


@pytest.mark.parametrize(
    "identifier", ["", ".", "..", "a b", "a/b", "a#b", "a%b", "é", "x" * 257, "a\n", "a?b", "a\\b", "٣"]
)
def test_other_ids_do_not_travel_over_http(identifier: str):
    assert ids.http_problem(identifier)


@pytest.mark.parametrize(
    ("identifier", "rule"),
    [
        (".", "must not be . or .., which clients take out of a path"),
        ("..", "must not be . or .., which clients take out of a path"),
        ("a b", "may only contain letters, digits and . _ ~ : @ | + = , -"),
        ("", "must be 1 to 256 bytes of UTF-8, received 0"),
    ],
)
def test_the_rule_that_an_id_for_http_breaks_is_told(identifier: str, rule: str):
    assert ids.http_problem(identifier) == rule


@pytest.mark.parametrize(("raw", "identifier"), [("a%3Ab", "a:b"), ("a:b", "a:b"), ("a%2Bb", "a+b"), ("a+b", "a+b")])
def test_a_path_is_decoded_once(raw: str, identifier: str):
    assert ids.from_path("threadId", raw) == identifier


@pytest.mark.parametrize("raw", ["a%252Fb", "a%2Fb", "a%23b", "..", "%2E%2E", "a%0Ab", "%", "a%", "%ZZ", "a%C3%28"])
def test_what_is_still_escaped_or_illegal_after_one_decode_is_refused(raw: str):
    with pytest.raises(InvalidInput) as caught:
        ids.from_path("threadId", raw)
    assert caught.value.issues[0].field == "threadId"


@given(st.text(), st.sampled_from(["\x1e", "\x1f"]), st.text())
def test_h17_separators_of_derived_resources_are_refused_in_every_id(before: str, separator: str, after: str):
    chosen = f"{before}{separator}{after}"
    assert ids.problem(chosen) is not None
    assert ids.http_problem(chosen) is not None
    with pytest.raises(InvalidInput):
        ids.check("resourceId", chosen)


def test_h17_derived_resources_are_no_ids_that_anybody_may_choose():
    for derived in (ids.sub_resource("ana", "writer"), ids.nobodys_resource("agent", "run")):
        assert ids.problem(derived) == "must not contain control characters"
        with pytest.raises(InvalidInput):
            ids.from_path("resourceId", quote(derived))


def test_new_ids_are_random_uuids_and_legal():
    made = {ids.new_id() for _ in range(100)}
    assert len(made) == 100
    assert all(uuid.UUID(i).version == 4 and ids.http_problem(i) is None for i in made)
