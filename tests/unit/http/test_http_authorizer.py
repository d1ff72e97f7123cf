"""Who may come in: service key and tokens, and every way in which one can be wrong."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jwt
import pytest

from tests.oidc import AUDIENCE, Issuer
from tests.unit.http.house import EVENTS
from threadkeep.config import Settings
from threadkeep.errors import Unauthenticated
from threadkeep.http import authorizer, tokens
from threadkeep.http.identity import Identity, from_authorizer

ARN = "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/v1/GET/api/memory/threads/a/b"


class Secrets:
    """Secrets Manager as the authorizer sees it."""

    def __init__(self) -> None:
        self.value = "the-service-key"
        self.reads = 0

    def __call__(self, name: str) -> str:
        assert name == "service-key-secret"
        self.reads += 1
        return self.value


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def config(issuer: Issuer) -> Settings:
    return Settings(service_key_secret="service-key-secret", jwt_issuer=issuer.url, jwt_audience=AUDIENCE)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, config: Settings) -> Iterator[Secrets]:
    fake = Secrets()
    monkeypatch.setattr(authorizer, "_read_secret", fake)
    monkeypatch.setattr(authorizer, "_keys", {})
    monkeypatch.setattr(authorizer, "settings", lambda: config)
    authorizer._tokens.cache_clear()
    yield fake
    authorizer._tokens.cache_clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(time, "monotonic", ticking)
    return ticking


def event(credential: str | None, header: str = "Authorization") -> dict[str, Any]:
    return {"methodArn": ARN, "headers": None if credential is None else {header: credential}}


def refused(credential: str | None) -> None:
    with pytest.raises(Exception) as caught:
        authorizer.authorize(event(credential))
    assert type(caught.value) is Exception, caught.value
    assert str(caught.value) == "Unauthorized"  # the text that API Gateway turns into 401


@pytest.mark.parametrize("header", ["Authorization", "authorization"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_the_service_key_opens_the_whole_stage(header: str, scheme: str) -> None:
    answer = authorizer.authorize(event(f"{scheme} the-service-key", header))
    assert answer["policyDocument"]["Statement"] == [
        {
            "Action": "execute-api:Invoke",
            "Effect": "Allow",
            "Resource": "arn:aws:execute-api:eu-central-1:123456789012:abcdef1234/v1/*",
        }
    ]
    assert answer["context"] == {"kind": "service"}
    assert from_authorizer(answer["context"]) == Identity("service")


@pytest.mark.parametrize(
    "credential",
    [
        *(None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "the-service-key", "Bearer wrong", "Bearer \ud800"),
        *("Bearer the-service-key2", "Bearer the-service-ke", "Bearer THE-SERVICE-KEY", "Bearer é"),
        *("Bearer a.b.c", "Bearer .."),
    ],
)
def test_anything_else_is_401(credential: str | None) -> None:
    refused(credential)


def test_an_empty_secret_opens_nothing(secrets: Secrets, config: Settings) -> None:
    secrets.value = ""
    with pytest.raises(Unauthenticated):
        authorizer.identify("", config)
    refused("Bearer  ")
    refused("Bearer x")


def test_without_a_secret_no_key_opens(monkeypatch: pytest.MonkeyPatch, config: Settings) -> None:
    monkeypatch.setattr(authorizer, "settings", lambda: replace(config, service_key_secret=""))
    refused("Bearer the-service-key")


def test_the_key_is_read_once_and_a_rotation_is_seen(secrets: Secrets, clock: Clock) -> None:
    for _ in range(3):
        authorizer.authorize(event("Bearer the-service-key"))
    assert secrets.reads == 1
    secrets.value = "rotated"
    clock.now += authorizer.KEY_SECONDS
    assert authorizer.KEY_SECONDS + 60 <= 300
    refused("Bearer the-service-key")
    authorizer.authorize(event("Bearer rotated"))
    assert secrets.reads == 2


@pytest.mark.parametrize(
    "name,allowed", [("service-key", True), ("wrong-key", False), ("no-bearer", False), ("basic", False)]
)
def test_example_events(name: str, allowed: bool) -> None:
    given = json.loads((EVENTS / "authorizer" / f"{name}.json").read_text())
    if allowed:
        assert authorizer.authorize(given)["context"]["kind"] == "service"
    else:
        with pytest.raises(Exception, match=r"^Unauthorized$"):
            authorizer.authorize(given)


def test_a_token_names_its_resource_and_expiry(issuer: Issuer) -> None:
    answer = authorizer.authorize(event(f"Bearer {issuer.token('auth0|ada')}"))
    assert answer["principalId"] == "user:auth0|ada"
    assert all(isinstance(value, str) for value in answer["context"].values())
    caller = from_authorizer(answer["context"])
    assert (caller.kind, caller.resource) == ("user", "auth0|ada")
    assert caller.expires is not None and 590 < caller.expires - time.time() < 601
    assert caller.owner("user-eve") == "auth0|ada"


def test_the_claim_that_is_the_resource_is_a_setting(
    issuer: Issuer, config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorizer, "settings", lambda: replace(config, jwt_resource_claim="tenant"))
    assert authorizer.authorize(event(f"Bearer {issuer.token(tenant='acme')}"))["context"]["resource"] == "acme"
    refused(f"Bearer {issuer.token()}")


def test_elliptic_curve_keys_work_too(issuer: Issuer) -> None:
    issuer.add_key("ec-1", curve=True)
    authorizer.authorize(event(f"Bearer {issuer.token(key_id='ec-1')}"))


@pytest.mark.parametrize(
    "claims",
    [
        {"expires_in": -60},
        {"exp": None},
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"nbf": 4_102_444_800},
        {"subject": ""},
        {"subject": 5},
        {"sub": None},
    ],
)
def test_tokens_with_a_wrong_claim_are_401(issuer: Issuer, claims: dict[str, Any]) -> None:
    refused(f"Bearer {issuer.token(**claims)}")


def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    authorizer.authorize(event(f"Bearer {issuer.token(expires_in=-2)}"))


def _segment(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_forged_tokens_are_401(issuer: Issuer) -> None:
    good = issuer.token()
    header, payload, signature = good.split(".")
    other = _segment(jwt.decode(good, options={"verify_signature": False}) | {"sub": "user-eve"})
    refused(f"Bearer {header}.{other}.{signature}")
    refused(f"Bearer {header}.{payload}.")
    refused(f"Bearer {_segment({'alg': 'none', 'kid': 'rsa-1'})}.{payload}.")
    signed = f"{_segment({'alg': 'HS256', 'kid': 'rsa-1'})}.{payload}"  # the public key as an HMAC secret
    mac = hmac.new(issuer.public_pem(), signed.encode(), hashlib.sha256).digest()
    refused(f"Bearer {signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")
    with Issuer() as stranger:  # the same key id, another key
        refused(f"Bearer {stranger.token(iss=issuer.url)}")


def test_tokens_without_a_key_id_or_with_another_algorithm_are_401(issuer: Issuer) -> None:
    key = issuer._keys["rsa-1"]
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    refused(f"Bearer {jwt.encode(claims, key, algorithm='RS256')}")  # type: ignore[arg-type]
    refused(f"Bearer {jwt.encode(claims, key, algorithm='RS512', headers={'kid': 'rsa-1'})}")  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["jwt_issuer", "jwt_audience"])
def test_without_issuer_or_audience_tokens_are_refused(
    issuer: Issuer, config: Settings, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(authorizer, "settings", lambda: replace(config, **{missing: ""}))
    refused(f"Bearer {issuer.token()}")


def test_an_unknown_key_is_looked_for_once_a_minute(clock: Clock) -> None:
    with Issuer() as issuer:
        verifier = tokens.Tokens(issuer.url, AUDIENCE, "sub")
        for _ in range(3):
            verifier.verify(issuer.token())
        assert issuer.fetches == 1
        issuer.add_key("rsa-2")
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                verifier.verify(issuer.token(key_id="rsa-2"))
        assert issuer.fetches == 1
        clock.now += tokens.REFETCH_SECONDS
        assert verifier.verify(issuer.token(key_id="rsa-2")).resource == "user-ada"
        assert issuer.fetches == 2


def test_a_withdrawn_key_is_forgotten_within_the_hour(clock: Clock) -> None:
    with Issuer() as issuer:
        verifier = tokens.Tokens(issuer.url, AUDIENCE, "sub")
        verifier.verify(issuer.token())
        issuer.documents["/keys"] = {"keys": []}
        clock.now += tokens.KEYS_SECONDS
        with pytest.raises(Unauthenticated):
            verifier.verify(issuer.token())


def test_known_keys_outlive_an_issuer_that_is_down(clock: Clock) -> None:
    with Issuer() as issuer:
        verifier = tokens.Tokens(issuer.url, AUDIENCE, "sub")
        verifier.verify(issuer.token())
        issuer.documents.clear()
        clock.now += tokens.KEYS_SECONDS
        verifier.verify(issuer.token())


def test_an_issuer_that_cannot_be_read_is_not_the_callers_fault() -> None:
    with Issuer() as issuer:
        issuer.documents.clear()
        with pytest.raises(OSError, match="404"):
            tokens.Tokens(issuer.url, AUDIENCE, "sub").verify(issuer.token())


def test_discovery_is_not_led_astray() -> None:
    with Issuer() as issuer, Issuer() as other:
        verifier = tokens.Tokens(issuer.url, AUDIENCE, "sub")
        page = "/.well-known/openid-configuration"
        honest = issuer.documents[page]
        other.documents["/poisoned"] = honest | {"jwks_uri": f"{other.url}/keys"}
        for bad in (
            honest | {"issuer": other.url},
            honest | {"jwks_uri": "http://keys.example/keys"},
            honest | {"jwks_uri": "file:///etc/passwd"},
            honest | {"location": f"{other.url}/poisoned"},
        ):
            issuer.documents[page] = bad
            with pytest.raises((ValueError, OSError)):
                verifier.verify(issuer.token())
        assert other.fetches == 0


@pytest.mark.parametrize("url", ["http://issuer.example", "ftp://issuer.example", "http://127.0.0.1.example", "issuer"])
def test_issuers_must_use_https_unless_they_are_this_machine(issuer: Issuer, url: str) -> None:
    with pytest.raises(ValueError, match="is not https"):
        tokens.Tokens(url, AUDIENCE, "sub").verify(issuer.token())


def test_nothing_secret_is_logged(issuer: Issuer, capsys: pytest.CaptureFixture[str]) -> None:
    token = issuer.token(expires_in=-60)
    refused(f"Bearer {token}")
    refused("Bearer wrong-key-value")
    lines = capsys.readouterr().out
    assert "refused" in lines
    assert all(part not in lines for part in (*token.split("."), "wrong-key-value", "the-service-key"))
