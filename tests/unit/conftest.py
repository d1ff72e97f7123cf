import ssl
from collections.abc import Iterator
from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """HTTP clients share a TLS context, which no test here uses: each would read all authorities anew, for 40 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield
