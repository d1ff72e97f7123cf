"""One long-lived agent object serves many users, and remembers none of them (case H04, H17)."""

import asyncio

import pytest

from tests.unit.fakes import FakeModel, Gate, calls, says
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Memory
from threadkeep.ids import sub_resource
from threadkeep.storage.port import MemoryTarget

USERS = ("u-ana", "u-bo")


def wrote(fact: str):
    return calls(("updateWorkingMemory", {"memory": f"# Facts\n- {fact}"}))


async def facts_of(d, user: str) -> str:
    target = MemoryTarget("resource", sub_resource(user, "researcher"))
    return (await d.storage.get_working_memory(target)).text


@pytest.fixture
def shared(desk):
    """A desk whose sub-agent has no memory of its own; what it inherits keeps working memory."""

    def make(boss, sub):
        return desk(boss, sub, on_boss={"memory": Memory(working_memory=True, last_messages=10)})

    return make


async def test_h04_h17_users_who_take_turns_share_nothing(shared):
    boss = (asks("researcher"), "done") * 4
    sub = (wrote("ana likes tea"), "a1", wrote("bo likes rum"), "b1", "a2", "b2")
    d = shared(boss, sub)
    for n, user in enumerate(USERS * 2):
        result = await d.turn(f"I am {user}", thread=f"T-{user}-{n}", resource=user)
        assert results_of(result)[0]["subAgentResourceId"] == f"{user}-researcher"
    ana, bo = d.sub_model.requests[-2], d.sub_model.requests[-1]
    assert "ana likes tea" in str(ana.messages) and "rum" not in str(ana.messages) and "u-bo" not in str(ana.messages)
    assert "bo likes rum" in str(bo.messages) and "tea" not in str(bo.messages) and "u-ana" not in str(bo.messages)
    assert [len(await d.sub_threads(user)) for user in USERS] == [2, 2]


async def test_h04_users_whose_turns_interleave_share_nothing(shared):
    """Both sub-agents run at once: ana's is held while bo's begins and ends, and then the other way round."""
    d = shared((), ())
    gates = {user: Gate(wrote(f"{user} likes it")) for user in USERS}

    class ByUser(FakeModel):
        """The same model object for all; what it answers depends on whose prompt it is."""

        async def generate(self, request):
            self.requests.append(request)
            (user,) = [u for u in USERS if f"I am {u}" in str(request.messages)]  # never both
            is_boss = any(t.name == "agent-researcher" for t in request.tools)
            over = any(m.role == "tool" for m in request.messages)
            if is_boss:
                return says(f"done {user}") if over else asks("researcher", prompt=f"task of {user}")
            return says(f"for {user}") if over else await gates[user]()

    model = ByUser()
    for agent in (d.boss, d.boss.agents["researcher"]):
        object.__setattr__(agent, "model", model)
    for first, second in (USERS, USERS[::-1]):
        turns = {
            user: asyncio.create_task(d.turn(f"I am {user}", thread=f"{first}-{user}", resource=user)) for user in USERS
        }
        for user in USERS:
            await gates[user].reached.wait()
        gates[second].opened.set()
        result = await turns[second]
        assert result.text == f"done {second}" and not turns[first].done()
        gates[first].opened.set()
        assert (await turns[first]).text == f"done {first}"
        for user in USERS:
            (told,) = results_of(turns[user].result())
            assert (told["text"], told["subAgentResourceId"]) == (f"for {user}", f"{user}-researcher")
            assert await facts_of(d, user) == f"# Facts\n- {user} likes it"
            rows = await d.texts(told["subAgentThreadId"])
            assert rows == [("user", f"task of {user}"), ("assistant", f"for {user}")]
            gates[user] = Gate(wrote(f"{user} likes it"))
    assert d.boss.agents["researcher"].memory is None


async def test_h04_many_turns_at_once_keep_apart(shared):
    d = shared((), ())

    class Echo(FakeModel):
        async def generate(self, request):
            self.requests.append(request)
            await asyncio.sleep(0)
            if any(t.name == "agent-researcher" for t in request.tools) and request.messages[-1].role != "tool":
                return asks("researcher", prompt=f"about {request.messages[-1].text}")
            return says(request.messages[-1].text or "done")

    for agent in (d.boss, d.boss.agents["researcher"]):
        object.__setattr__(agent, "model", Echo())
    users = [f"user{n}" for n in range(12)]
    results = await asyncio.gather(*(d.turn(user, thread=f"T{user}", resource=user) for user in users))
    assert [results_of(r)[0]["text"] for r in results] == [f"about {user}" for user in users]
    for user in users:
        (sub,) = await d.sub_threads(user)
        assert await d.texts(sub.id) == [("user", f"about {user}"), ("assistant", f"about {user}")]
