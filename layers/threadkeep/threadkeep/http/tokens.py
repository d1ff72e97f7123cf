"""Tokens of one OIDC issuer: discovery, its keys, and the checks that make a token good (RFC 7519, RFC 8725)."""

import ipaddress
import json
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import jwt

from threadkeep.errors import Unauthenticated
from threadkeep.http.identity import LEEWAY_SECONDS, Identity

ALGORITHMS = ("RS256", "ES256")
REFETCH_SECONDS = 60  # between two looks for a key that is not known
KEYS_SECONDS = 3_600  # after which the keys are read again, so that a withdrawn one is forgotten
FETCH_TIMEOUT = 3  # seconds
MAX_DOCUMENT = 1_000_000  # bytes


class Tokens:
    """Verifies tokens of one issuer for one audience; `claim` names the claim that is the resource."""

    def __init__(self, issuer: str, audience: str, claim: str):
        self._issuer = issuer
        self._audience = audience
        self._claim = claim
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = float("-inf")

    def verify(self, token: str) -> Identity:
        """The user that a token stands for.

        Raises `Unauthenticated` with the reason if it is not good or no issuer and audience are set, and
        `OSError`, `ValueError` or `KeyError` if the issuer's keys cannot be had, which repeating may mend.
        """
        if not self._issuer or not self._audience:
            raise Unauthenticated("no token issuer and audience are configured")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(type(error).__name__) from None
        key = self._key(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(type(error).__name__) from None
        return self._identity(claims)

    def _identity(self, claims: dict[str, Any]) -> Identity:
        resource = claims.get(self._claim)
        if not isinstance(resource, str) or not resource:
            raise Unauthenticated(f"the claim {self._claim} is not a text")
        return Identity("user", resource, int(claims["exp"]))

    def _key(self, header: dict[str, Any]) -> jwt.PyJWK:
        """The issuer's key that the token names, for an algorithm that is allowed."""
        key_id, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in ALGORITHMS or not isinstance(key_id, str):
            raise Unauthenticated("the token names no key or an algorithm that is not allowed")
        self._refresh(key_id)
        key = self._keys.get(key_id)
        if key is None or key.algorithm_name != algorithm:
            raise Unauthenticated("the token's key is not one of the issuer's")
        return key

    def _refresh(self, key_id: str) -> None:
        known, now = key_id in self._keys, time.monotonic()
        if now - self._fetched_at < (KEYS_SECONDS if known else REFETCH_SECONDS):
            return
        try:
            self._keys = _fetch_keys(self._issuer)
            self._fetched_at = now
        except (OSError, ValueError, KeyError):
            if not known:
                raise
            self._fetched_at = now - KEYS_SECONDS + REFETCH_SECONDS  # the issuer is down: go on with the keys we have


def _fetch_keys(issuer: str) -> dict[str, jwt.PyJWK]:
    document = _get_json(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError(f"the discovery document of {issuer} names another issuer")
    keys: dict[str, jwt.PyJWK] = {}
    for entry in _get_json(str(document["jwks_uri"]))["keys"]:
        if entry.get("kty") in ("RSA", "EC") and entry.get("use", "sig") == "sig" and isinstance(entry.get("kid"), str):
            try:
                keys[entry["kid"]] = jwt.PyJWK(entry)
            except jwt.PyJWTError:  # a curve or algorithm that is not ours; another key may do
                continue
    return {key_id: key for key_id, key in keys.items() if key.algorithm_name in ALGORITHMS}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could leave https, or the issuer."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _get_json(url: str) -> dict[str, Any]:
    if not _trusted(url):
        raise ValueError(f"{url} is not https")
    with _opener.open(url, timeout=FETCH_TIMEOUT) as response:
        return json.loads(response.read(MAX_DOCUMENT))


def _trusted(url: str) -> bool:
    """Whether what comes from there is what was sent: https, or this very machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "https" or (parts.scheme == "http" and (host == "localhost" or _is_loopback(host)))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
