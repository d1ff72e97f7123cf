"""Who may come in: an API Gateway REQUEST authorizer for the service key and for the issuer's tokens (DESIGN 5).

Boto3, PyJWT and cryptography are loaded by the path that needs them. Credentials are never logged.
"""

import hmac
import time
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from threadkeep.config import Settings, settings
from threadkeep.errors import Unauthenticated
from threadkeep.http.identity import Identity
from threadkeep.http.logs import logger

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

    from threadkeep.http.tokens import Tokens

KEY_SECONDS = 120  # a rotated key is known after this and the 60 s for which the gateway keeps an answer


def authorize(event: dict[str, Any]) -> dict[str, Any]:
    """The Allow policy for a request to the whole stage, with the identity as its context (strings only).

    Raises `Exception("Unauthorized")`, which API Gateway turns into its 401 reply.
    """
    try:
        caller = identify(_bearer(event), settings())
    except Unauthenticated as error:
        logger().info("refused", extra={"fields": {"reason": str(error)}})
        raise Exception("Unauthorized") from None
    return policy(caller, str(event["methodArn"]))


def identify(token: str, config: Settings) -> Identity:
    """Whose credential this is. Raises `Unauthenticated` with the reason, which is for the log only.

    A token of three dotted parts is a JWT, anything else can only be the service key.
    """
    if token.count(".") == 2:
        return _tokens(config).verify(token)
    if not hmac.compare_digest(_bytes(token), _bytes(service_key(config.service_key_secret))):
        raise Unauthenticated("the key is not the service key")
    return Identity("service")


def policy(caller: Identity, method_arn: str) -> dict[str, Any]:
    """Allow every method and path of the stage: the gateway keeps the answer for the caller's next requests."""
    stage = "/".join(method_arn.split("/")[:2])
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": f"{stage}/*"}
    context = {"kind": caller.kind}
    if caller.resource is not None:
        context |= {"resource": caller.resource, "expires": str(caller.expires)}
    return {
        "principalId": caller.kind if caller.resource is None else f"{caller.kind}:{caller.resource}",
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": context,
    }


def _bearer(event: dict[str, Any]) -> str:
    headers: dict[str, str] = event.get("headers") or {}
    given = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("no bearer credential")
    return token.strip()


@cache
def _tokens(config: Settings) -> "Tokens":
    from threadkeep.http.tokens import Tokens

    return Tokens(config.jwt_issuer, config.jwt_audience, config.jwt_resource_claim)


_keys: dict[str, tuple[str, float]] = {}


def service_key(secret: str) -> str:
    """The key in the secret, read again after `KEY_SECONDS`. Raises `Unauthenticated` if there is none."""
    if not secret:
        raise Unauthenticated("no service key is configured")
    key, read_at = _keys.get(secret, ("", float("-inf")))
    if time.monotonic() - read_at >= KEY_SECONDS:
        key = _read_secret(secret)
        _keys[secret] = (key, time.monotonic())
    if not key:
        raise Unauthenticated("the service key is empty")
    return key


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _read_secret(secret: str) -> str:
    return _secrets_manager().get_secret_value(SecretId=secret)["SecretString"]


@cache
def _secrets_manager() -> "SecretsManagerClient":
    import boto3
    from botocore.config import Config

    patience = Config(connect_timeout=2, read_timeout=3, retries={"mode": "standard"})
    return cast(Any, boto3).client("secretsmanager", config=patience)  # the stubs know only the services in use
