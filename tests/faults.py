"""Faults of DynamoDB that the emulator never shows, injected where botocore sends.

Register a `Faults` on a client's event `before-send.dynamodb` and plan what the next requests of an operation
meet. A fault gets the request and gives the answer, or raises what botocore would; it may carry the request out
(`sent`) or not (`refused`).
"""

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ReadTimeoutError

Fault = Callable[[AWSPreparedRequest], AWSResponse]


class Body(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        yield self.read()


def answer(request: AWSPreparedRequest, body: bytes, status: int = 200) -> AWSResponse:
    return AWSResponse(request.url, status, {"content-type": "application/x-amz-json-1.0"}, Body(body))


def sent(request: AWSPreparedRequest) -> AWSResponse:
    """Carry the request out."""
    headers = {k: v.decode() if isinstance(v, bytes) else v for k, v in request.headers.items()}
    call = urllib.request.Request(request.url, request.body, headers, method="POST")
    try:
        with urllib.request.urlopen(call) as response:
            return answer(request, response.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return answer(request, refusal.read(), refusal.code)


def refused(code: str, **more: Any) -> Fault:
    """The request is not carried out."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "injected", **more}
    return lambda request: answer(request, json.dumps(body).encode(), 400)


def collision(request: AWSPreparedRequest) -> AWSResponse:
    """The last action of the transaction met another writer's."""
    reasons = [{"Code": "None"} for _ in json.loads(request.body)["TransactItems"]]
    reasons[-1] = {"Code": "TransactionConflict", "Message": "injected"}
    return refused("TransactionCanceledException", CancellationReasons=reasons)(request)


def lost(request: AWSPreparedRequest) -> AWSResponse:
    """The request is carried out, but nobody hears of it."""
    sent(request)
    raise ReadTimeoutError(endpoint_url=request.url)


def half_read(request: AWSPreparedRequest) -> AWSResponse:
    """BatchGetItem reads one key and hands the others back."""
    asked = json.loads(request.body)["RequestItems"]
    left = {name: {**part, "Keys": part["Keys"][1:]} for name, part in asked.items()}
    found = json.loads(sent(request).content)["Responses"]
    first = {name: part["Keys"][0] for name, part in asked.items()}
    kept = {name: [row for row in rows if first[name].items() <= row.items()] for name, rows in found.items()}
    return answer(request, json.dumps({"Responses": kept, "UnprocessedKeys": left}).encode())


def nothing_written(request: AWSPreparedRequest) -> AWSResponse:
    """BatchWriteItem hands everything back."""
    return answer(request, json.dumps({"UnprocessedItems": json.loads(request.body)["RequestItems"]}).encode())


def last_third_unread(request: AWSPreparedRequest) -> AWSResponse:
    """BatchGetItem hands the last third of its keys back, at least one."""
    asked = json.loads(request.body)["RequestItems"]
    left: dict[str, Any] = {}
    for name, part in asked.items():
        kept = len(part["Keys"]) * 2 // 3
        left[name] = part | {"Keys": part["Keys"][kept:]}
        part["Keys"] = part["Keys"][:kept]
    if not any(part["Keys"] for part in asked.values()):
        return answer(request, json.dumps({"Responses": {}, "UnprocessedKeys": left}).encode())
    found = json.loads(sent(_instead(request, {"RequestItems": asked})).content)
    return answer(request, json.dumps(found | {"UnprocessedKeys": left}).encode())


def last_third_unwritten(request: AWSPreparedRequest) -> AWSResponse:
    """BatchWriteItem hands the last third of its writes back, at least one."""
    asked = json.loads(request.body)["RequestItems"]
    left = {name: writes[len(writes) * 2 // 3 :] for name, writes in asked.items()}
    done = {name: writes[: len(writes) * 2 // 3] for name, writes in asked.items()}
    if any(done.values()):
        sent(_instead(request, {"RequestItems": done}))
    return answer(request, json.dumps({"UnprocessedItems": left}).encode())


def _instead(request: AWSPreparedRequest, body: dict[str, Any]) -> AWSPreparedRequest:
    text = json.dumps(body).encode()
    headers = dict(request.headers.items()) | {"Content-Length": str(len(text))}
    return AWSPreparedRequest(request.method, request.url, headers, text, request.stream_output)


THROTTLED = refused("ProvisionedThroughputExceededException")
IN_PROGRESS = refused("TransactionInProgressException")


class Faults:
    """Answers the next requests of an operation in DynamoDB's place, one fault each, or all of them (`always`)."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, Fault]] = []
        self.standing: dict[str, Fault] = {}

    def plan(self, operation: str, *faults: Fault) -> None:
        self.planned += [(operation, fault) for fault in faults]

    def always(self, operation: str, fault: Fault) -> None:
        self.standing[operation] = fault

    def over(self) -> None:
        """From now on everything goes well."""
        self.planned.clear()
        self.standing.clear()

    def __call__(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        target = request.headers["X-Amz-Target"]
        name = target.decode() if isinstance(target, bytes) else target
        if self.planned and name.endswith(f".{self.planned[0][0]}"):
            return self.planned.pop(0)[1](request)
        standing = self.standing.get(name.partition(".")[2])
        return standing(request) if standing else None
