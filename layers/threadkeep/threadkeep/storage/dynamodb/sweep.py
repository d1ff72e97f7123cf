"""Removes bodies to which no message and no entry points: what writes left that were cut off."""

import asyncio
from collections.abc import Sequence

from threadkeep.storage.dynamodb import items
from threadkeep.storage.dynamodb.bucket import Owner
from threadkeep.storage.dynamodb.part import Part

_DAY = 86_400_000
_TOGETHER = 50  # bodies that are looked at at the same time


class Sweep(Part):
    async def sweep_bodies(self, *, older_than: int = _DAY, younger_than: int = 8 * _DAY) -> int:
        """Remove unused bodies of that age, in milliseconds; returns how many there were.

        A write that still runs has written its bodies seconds ago, never a day. One that was cut off left
        its bodies when it began, so a daily sweep need not look at those that a week of sweeps have seen.
        """
        removed = 0
        if self._bucket is None:
            return removed
        now = self._now()
        async for page in self._bucket.all():
            due = [blob.key for blob in page if older_than <= now - blob.written_at < younger_than]
            for start in range(0, len(due), _TOGETHER):
                unused = await self._unused(due[start : start + _TOGETHER])
                await self._bucket.delete(unused)
                removed += len(unused)
        return removed

    async def _unused(self, blobs: Sequence[str]) -> list[str]:
        """Those of the bodies whose owner points to another one, or is gone. Others' objects are left alone."""
        assert self._bucket is not None
        owners = await asyncio.gather(*map(self._bucket.owner, blobs))
        known = {blob: owner for blob, owner in zip(blobs, owners, strict=True) if owner}
        used = await self._used(list(dict.fromkeys(known.values())))
        return [blob for blob in known if blob not in used]

    async def _used(self, owners: Sequence[Owner]) -> set[str]:
        homes = await self._table.batch_get([items.message_key(o.within, o.id) for o in owners if o.kind == "message"])
        entries = [items.entry_key(o.within, o.id) for o in owners if o.kind == "entry"]
        rows = await self._table.batch_get([*map(items.place_of, homes), *entries])
        return {items.get_text(row, "blob") for row in rows}
