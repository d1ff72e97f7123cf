"""Pages, filters and neighbours of messages (MS-9, M-RC-2 to M-RC-7, M-DISC-2, M-DISC-14)."""

from typing import Any

import pytest

from threadkeep.errors import InvalidInput
from threadkeep.storage.port import (
    Direction,
    Include,
    MessageFilter,
    NewThread,
    SavedMessage,
    Storage,
    Thread,
)
from threadkeep.testing.storage_base import StorageBase, ids_of

SCALARS: list[Any] = [2, "2", 2.5, True, 1, False, 0, None, "", "true"]


@pytest.mark.asyncio
class ReadingContract(StorageBase):
    @pytest.fixture
    def long(self) -> int:
        return 300

    @pytest.mark.parametrize("direction", ["ASC", "DESC"])
    async def test_a_long_thread_is_paged_both_ways(
        self, storage: Storage, thread: Thread, direction: Direction, long: int
    ):
        rows = await self.fill(storage, thread, long)
        found: list[str] = []
        page, more = 0, True
        while more:
            answer = (await storage.list_messages(thread.id, page=page, per_page=70, direction=direction)).page
            assert answer.total == long
            found = found + ids_of(answer.items) if direction == "ASC" else ids_of(answer.items) + found
            page, more = page + 1, answer.has_more
        assert found == ids_of(rows)
        assert page == -(-long // 70)
        beyond = await storage.list_messages(thread.id, page=page, per_page=70, direction=direction)
        assert (beyond.page.items, beyond.page.total) == ((), long)

    async def at_times(self, storage: Storage, thread: Thread, times: range) -> list[str]:
        rows = [
            SavedMessage(("user", "assistant", "signal")[t % 3], {"format": 2, "metadata": {"t": t}}, f"at{t}", None, t)
            for t in times
        ]
        return ids_of(await storage.save_messages(thread.id, rows, resource_id=None))

    @pytest.mark.parametrize("direction", ["ASC", "DESC"])
    @pytest.mark.parametrize(
        ("since", "until"), [(1010, 1030), (None, 1000), (1059, None), (0, 999), (1060, 10**18), (-5, None), (9, 8)]
    )
    async def test_mrc5_dates_belong_to_the_range(
        self, storage: Storage, thread: Thread, since: int | None, until: int | None, direction: Direction
    ):
        await self.at_times(storage, thread, range(1000, 1060))
        low, high = -(10**9) if since is None else since, 10**18 if until is None else until
        wanted = [f"at{t}" for t in range(1000, 1060) if low <= t <= high]
        match = MessageFilter(since=since, until=until)
        answer = await storage.list_messages(thread.id, per_page=None, direction=direction, match=match)
        assert (ids_of(answer.page.items), answer.page.total) == (wanted, len(wanted))
        part = await storage.list_messages(thread.id, page=1, per_page=4, direction=direction, match=match)
        cut = wanted[4:8] if direction == "ASC" else wanted[::-1][4:8][::-1]
        assert (ids_of(part.page.items), part.page.total) == (cut, len(wanted))
        assert part.page.has_more == (len(wanted) > 8)

    async def test_a_filter_by_role(self, storage: Storage, thread: Thread):
        await self.at_times(storage, thread, range(1000, 1012))
        match = MessageFilter(roles=frozenset({"user", "signal"}), since=1002)
        answer = await storage.list_messages(thread.id, match=match)
        assert ids_of(answer.page.items) == [f"at{t}" for t in range(1002, 1012) if t % 3 != 1]
        assert (await storage.list_messages(thread.id, match=MessageFilter(roles=frozenset()))).page.total == 0

    @pytest.mark.parametrize("wanted", SCALARS)
    async def test_mrc6_metadata_is_compared_with_its_type(self, storage: Storage, thread: Thread, wanted: Any):
        rows = [SavedMessage("user", {"metadata": {"v": value}}, repr(value)) for value in SCALARS]
        rows += [
            SavedMessage("user", {"metadata": {}}, "absent"),
            SavedMessage("user", {"metadata": {"v": {"v": wanted}}}, "nested"),
            SavedMessage("user", {"metadata": None}, "none"),
            SavedMessage("user", {}, "no metadata"),
        ]
        await storage.save_messages(thread.id, rows, resource_id=None)
        answer = await storage.list_messages(thread.id, match=MessageFilter(metadata={"v": wanted}))
        assert ids_of(answer.page.items) == [repr(wanted)]

    async def test_mrc6_all_keys_must_match_and_an_empty_filter_matches_all(self, storage: Storage, thread: Thread):
        rows = [SavedMessage("user", {"metadata": {"a": a, "b": b}}, f"{a}{b}") for a in (1, 2) for b in (1, 2)]
        await storage.save_messages(thread.id, rows, resource_id=None)
        answer = await storage.list_messages(thread.id, match=MessageFilter(metadata={"a": 1, "b": 2}))
        assert (ids_of(answer.page.items), answer.page.total) == (["12"], 1)
        assert (await storage.list_messages(thread.id, match=MessageFilter(metadata={}))).page.total == 4

    # include (M-RC-7, M-DISC-2)

    async def test_mrc7_mdisc2_targets_and_neighbours_join_the_page_once_and_ascending(
        self, storage: Storage, thread: Thread
    ):
        await self.fill(storage, thread, 20)
        include = [Include("m010", 1, 2), Include("m011", 1, 1), Include("none", 3, 3), Include("m000", 5, 0)]
        answer = await storage.list_messages(thread.id, per_page=2, include=include)
        assert ids_of(answer.page.items) == ["m000", "m009", "m010", "m011", "m012", "m018", "m019"]
        assert (answer.page.total, answer.page.has_more, answer.page.per_page) == (20, True, 2)
        only = await storage.list_messages(thread.id, per_page=0, include=[Include("m005"), Include("m019", 0, 9)])
        assert ids_of(only.page.items) == ["m005", "m019"]

    async def test_mrc7_a_target_is_found_in_the_owners_other_threads_only(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await self.fill(storage, thread, 4)
        for name, owner in (("own", thread.resource_id), ("foreign", f"other-{unique}"), ("gone", thread.resource_id)):
            made = await storage.create_thread(NewThread(f"{name}-{unique}", owner))
            rows = [SavedMessage("user", {"format": 2}, f"{name}{n}-{unique}", None, 1000 + n) for n in range(5)]
            await storage.save_messages(made.id, rows, resource_id=None)
        await storage.delete_thread(f"gone-{unique}", resource_id=None)
        include = [Include(f"{name}2-{unique}", 1, 1) for name in ("own", "foreign", "gone")]
        answer = await storage.list_messages(thread.id, per_page=1, include=include)
        assert ids_of(answer.page.items) == ["m003", *(f"own{n}-{unique}" for n in (1, 2, 3))]
        assert [m.thread_id for m in answer.page.items] == [thread.id] + [f"own-{unique}"] * 3

    async def test_mrc7_an_id_of_this_thread_means_this_threads_message(
        self, storage: Storage, thread: Thread, unique: str
    ):
        other = await storage.create_thread(NewThread(f"o-{unique}", thread.resource_id))
        for home in (thread, other):
            await storage.save_messages(home.id, [SavedMessage("user", {"of": home.id}, "same")], resource_id=None)
        answer = await storage.list_messages(thread.id, per_page=0, include=[Include("same")])
        assert [m.content["of"] for m in answer.page.items] == [thread.id]

    # list_resource_messages (MS-9)

    @pytest.mark.parametrize("direction", ["ASC", "DESC"])
    async def test_ms9_messages_of_all_threads_of_a_resource_ascend(
        self, storage: Storage, unique: str, direction: Direction
    ):
        for n, owner in enumerate((unique, unique, f"other-{unique}", unique)):
            made = await storage.create_thread(NewThread(f"{n}-{unique}", owner))
            rows = [SavedMessage("user", {"n": k}, f"{n}.{k}", None, 1000 + 10 * k + n) for k in range(5)]
            await storage.save_messages(made.id, rows, resource_id=None)
        await storage.delete_thread(f"3-{unique}", resource_id=None)
        wanted = [f"{n}.{k}" for k in range(5) for n in range(2)]
        answer = await storage.list_resource_messages(unique, per_page=None, direction=direction)
        assert (ids_of(answer.items), answer.total, answer.has_more) == (wanted, 10, False)
        part = await storage.list_resource_messages(unique, page=1, per_page=4, direction=direction)
        assert (ids_of(part.items), part.total, part.has_more) == (
            wanted[4:8] if direction == "ASC" else wanted[2:6],
            10,
            True,
        )
        match = MessageFilter(since=1011, until=1030)
        some = await storage.list_resource_messages(unique, match=match)
        assert ids_of(some.items) == ["1.1", "0.2", "1.2", "0.3"]
        assert (await storage.list_resource_messages(f"none-{unique}")).items == ()

    async def test_a_filter_that_must_look_at_too_much_is_refused_by_name(
        self, storage: Storage, thread: Thread, monkeypatch: pytest.MonkeyPatch
    ):
        from threadkeep.storage import rules

        rows = await self.fill(storage, thread, 12)
        monkeypatch.setattr(rules, "MAX_FILTERED", 10)
        match = MessageFilter(metadata={"a": 1})
        with pytest.raises(InvalidInput) as caught:
            await storage.list_messages(thread.id, match=match)
        assert caught.value.issues[0].field == "filter"
        with pytest.raises(InvalidInput) as caught:
            await storage.list_resource_messages(thread.resource_id)
        assert caught.value.issues[0].field == "resourceId"
        match = MessageFilter(since=rows[4].created_at, metadata={"a": 1})
        assert (await storage.list_messages(thread.id, match=match)).page.total == 0
        assert (await storage.list_messages(thread.id, per_page=None)).page.total == 12
