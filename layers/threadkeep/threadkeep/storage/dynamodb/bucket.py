"""Bodies that are too big for an item: in a private bucket, compressed, each under a key that is used once.

A body is written before the item that points to it and removed after the item is gone, so an item never
points to nothing. What a cut-off write leaves is found by `sweep.py`: the object tells what it belongs to.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError

from threadkeep.clock import Millis
from threadkeep.errors import StoreUnavailable
from threadkeep.storage.dynamodb import keys

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

R = TypeVar("R")
Kind = Literal["message", "entry"]

_GONE = ("404", "NoSuchKey")
_DELETE = 1000  # objects in one request
_ABOUT: dict[Kind, tuple[str, str]] = {"message": ("thread", "message"), "entry": ("journal", "entry")}


@dataclass(frozen=True, slots=True)
class Blob:
    """An object of the bucket. `written_at` is in milliseconds since 1970."""

    key: str
    written_at: Millis


class Owner(NamedTuple):
    """What a body belongs to: a message of a thread, or an entry of a journal, by its name."""

    kind: Kind
    within: str
    id: str


class Bucket:
    """`client` makes the boto3 client of service `s3`; it is called once, when the first body is met."""

    def __init__(self, client: Callable[[], "S3Client"], name: str):
        self._make = client
        self._made: S3Client | None = None
        self.name = name

    async def put(self, owner: Owner, body: str) -> str:
        """Store a body; returns its key."""
        key = _key(owner)
        packed = await asyncio.to_thread(gzip.compress, body.encode(), mtime=0)
        await self._call(
            self._client.put_object,
            Key=key,
            Body=packed,
            ContentType="application/json",
            ContentEncoding="gzip",
            Metadata=_about(owner),
        )
        return key

    async def get(self, key: str) -> str:
        """The body under a key. Raises `StoreUnavailable` if its owner has another by now, or is gone."""
        answer = await self._find(self._client.get_object, key)
        if answer is None:
            raise StoreUnavailable("A message or an entry was changed or deleted while it was read")
        packed = await asyncio.to_thread(answer["Body"].read)
        return (await asyncio.to_thread(gzip.decompress, packed)).decode()

    async def copy(self, key: str, owner: Owner) -> str:
        """Store the same body for another owner; returns its key."""
        new = _key(owner)
        await self._call(
            self._client.copy_object,
            Key=new,
            CopySource={"Bucket": self.name, "Key": key},
            MetadataDirective="REPLACE",
            ContentType="application/json",
            ContentEncoding="gzip",
            Metadata=_about(owner),
        )
        return new

    async def delete(self, blobs: Sequence[str]) -> None:
        """Remove bodies; those that are gone already are fine. Raises `StoreUnavailable` naming how many are left."""
        for start in range(0, len(blobs), _DELETE):
            objects: list[Any] = [{"Key": key} for key in blobs[start : start + _DELETE]]
            answer = await self._call(self._client.delete_objects, Delete={"Objects": objects, "Quiet": True})
            if errors := answer.get("Errors", []):
                raise StoreUnavailable(f"{len(errors)} bodies could not be removed: {errors[0].get('Code')}")

    async def all(self) -> AsyncIterator[list[Blob]]:
        """All objects, a page at a time."""
        more: dict[str, Any] = {}
        while True:
            answer = await self._call(self._client.list_objects_v2, **more)
            yield [
                Blob(found.get("Key", ""), int(found["LastModified"].timestamp() * 1000))
                for found in answer.get("Contents", [])
                if "LastModified" in found
            ]
            if not answer.get("IsTruncated"):
                return
            more = {"ContinuationToken": answer.get("NextContinuationToken", "")}

    async def owner(self, key: str) -> Owner | None:
        """For what a body was written; None if it is gone, or not of our making."""
        answer = await self._find(self._client.head_object, key)
        about = answer["Metadata"] if answer else {}
        for kind, (within, own) in _ABOUT.items():
            if about.keys() >= {within, own}:
                return Owner(kind, unquote(about[within]), unquote(about[own]))
        return None

    @property
    def _client(self) -> "S3Client":
        self._made = self._made or self._make()
        return self._made

    async def _find(self, operation: Callable[..., R], key: str) -> R | None:
        """Ask for one object; None if it is gone."""
        try:
            return await self._call(operation, Key=key)
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and cause.response.get("Error", {}).get("Code") in _GONE:
                return None
            raise

    async def _call(self, operation: Callable[..., R], **request: Any) -> R:
        try:
            return await asyncio.to_thread(operation, Bucket=self.name, **request)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            raise StoreUnavailable(f"The bucket answered {code}") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"The bucket cannot be reached: {type(error).__name__}") from error


def _key(owner: Owner) -> str:
    """Digests, so that no id shows in keys and logs; the last part makes each key unique for all time."""
    pk = keys.thread(owner.within) if owner.kind == "message" else keys.run(owner.within)
    partition, own = (sha256(part.encode()).hexdigest() for part in (pk, owner.id))
    return f"{partition}/{owner.kind}/{own}-{uuid4().hex}"


def _about(owner: Owner) -> dict[str, str]:
    within, own = _ABOUT[owner.kind]
    return {within: quote(owner.within, safe=""), own: quote(owner.id, safe="")}
