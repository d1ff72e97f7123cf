"""Who is calling, and for whom (spec-http, "Owner rules")."""

from typing import Any

import pytest

from threadkeep.errors import AccessDenied, Unauthenticated
from threadkeep.http import identity
from threadkeep.http.identity import ANONYMOUS, Identity, from_authorizer

USER = {"kind": "user", "resource": "user-ada", "expires": "1000"}


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.time, "time", lambda: 990.0)


def test_a_service_acts_for_whom_it_names_and_for_all() -> None:
    service = from_authorizer({"kind": "service"})
    assert service == Identity("service")
    assert (service.owner("user-ada"), service.owner(None)) == ("user-ada", None)


def test_a_user_is_the_owner_whatever_is_asked_for() -> None:
    user = from_authorizer(USER)
    assert user == Identity("user", "user-ada", 1000)
    assert user.owner("user-eve") == user.owner(None) == "user-ada"


def test_nobody_acts_for_nobody() -> None:
    for requested in ("user-ada", None):
        with pytest.raises(Unauthenticated):
            ANONYMOUS.owner(requested)


@pytest.mark.parametrize("context", [None, {}, {"kind": "user"}, {"kind": "anonymous"}, USER | {"resource": None}])
def test_what_the_authorizer_does_not_say_opens_nothing(context: Any) -> None:
    with pytest.raises(Unauthenticated):
        from_authorizer(context)


@pytest.mark.parametrize(("expires", "open_"), [(985, False), (986, True), (985.9, False)])
def test_a_token_ends_five_seconds_after_its_time(expires: float, open_: bool) -> None:
    if open_:
        assert from_authorizer(USER | {"expires": expires}).owner(None) == "user-ada"
    else:
        with pytest.raises(Unauthenticated):
            from_authorizer(USER | {"expires": expires})


def test_a_subject_that_cannot_be_an_owner_is_denied() -> None:
    with pytest.raises(AccessDenied, match="cannot be a resourceId"):
        from_authorizer(USER | {"resource": "a/b"})
