"""A small OIDC issuer on 127.0.0.1 for tests: discovery, keys and tokens signed by them."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "threadkeep-tests"


class Issuer:
    """Serves while entered. `url` is the issuer, `fetches` counts how often its keys were read.

    `documents` maps paths to what is served there and may be changed by a test.
    """

    def __init__(self) -> None:
        self.fetches = 0
        self.documents: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        discovery = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.documents["/.well-known/openid-configuration"] = discovery
        self.add_key("rsa-1")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_key(self, key_id: str, *, curve: bool = False) -> None:
        """Make a key pair (RSA, or EC P-256) and publish its public half."""
        private = ec.generate_private_key(ec.SECP256R1()) if curve else rsa.generate_private_key(65537, 2048)
        self._keys[key_id] = private
        entries = self.documents.setdefault("/keys", {"keys": []})["keys"]
        public: Any = private.public_key()
        to_jwk = ECAlgorithm.to_jwk if curve else RSAAlgorithm.to_jwk
        entries.append(
            {**to_jwk(public, as_dict=True), "kid": key_id, "use": "sig", "alg": "ES256" if curve else "RS256"}
        )

    def token(self, subject: Any = "user-ada", *, expires_in: float = 600, key_id: str = "rsa-1", **claims: Any) -> str:
        """A token for `subject`; `claims` adds to the usual ones or, with None, takes one away."""
        now = time.time()
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": int(now), "exp": int(now + expires_in)}
        given = {name: value for name, value in (usual | claims).items() if value is not None}
        key = self._keys[key_id]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(given, key, algorithm=algorithm, headers={"kid": key_id})

    def public_pem(self, key_id: str = "rsa-1") -> bytes:
        """The public half of a key in PEM."""
        return self._keys[key_id].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document = issuer.documents.get(self.path)
                issuer.fetches += self.path == "/keys"
                body = json.dumps(document or {}).encode()
                location = (document or {}).get("location")
                self.send_response(302 if location else 200 if document else 404)
                if location:
                    self.send_header("location", location)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler
