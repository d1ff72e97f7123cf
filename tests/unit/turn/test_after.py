"""What follows a turn: titles by way of a job (TT-2 to TT-6, cases H30, H34)."""

import pytest

from threadkeep import Memory, RequestContext
from threadkeep.errors import ModelRejected, ModelUnavailable
from threadkeep.storage.port import NewThread, ThreadChange
from threadkeep.turn import after

TITLED = Memory(generate_title=True)


async def title(house) -> str:
    thread = await house.storage.get_thread("t")
    assert thread is not None
    return thread.title


async def test_h34_the_first_turn_yields_one_title_and_later_turns_none(house):
    h = house("hello", "Greetings", "fine", memory=TITLED)
    first = await h.turn("hi")
    await after.finish_turn(h.services, "t", first.run_id)
    assert await title(h) == "Greetings"
    assert h.model.prompt[1] == ("user", "User: hi\nAssistant: hello")
    second = await h.turn("how are you?")
    assert await h.storage.get_job("t", second.run_id) is None
    assert len(h.model.requests) == 3


async def test_h30_a_job_done_twice_has_one_effect(house):
    h = house("hello", "Greetings", "Other", memory=TITLED)
    run = (await h.turn("hi")).run_id
    await after.finish_turn(h.services, "t", run)
    await after.finish_turn(h.services, "t", run)
    assert await title(h) == "Greetings" and len(h.model.requests) == 2


async def test_h34_a_title_that_a_person_gave_stays(house):
    h = house(memory=TITLED)
    await h.storage.create_thread(NewThread("t", "ana", "Mine"))
    run = (await h.turn("hi")).run_id
    assert await h.storage.get_job("t", run) is None
    assert await title(h) == "Mine"


async def test_h34_a_title_given_while_the_job_runs_wins(house):
    h = house("hello", memory=TITLED)
    run = (await h.turn("hi")).run_id
    thread = await h.storage.get_thread("t")

    async def named_meanwhile():
        await h.storage.set_title(thread, "New")
        from tests.unit.fakes import says

        return says("Generated")

    h.model.answers = [named_meanwhile]
    await after.finish_turn(h.services, "t", run)
    assert await title(h) == "New"


async def test_h34_with_history_off_the_title_is_still_made_once(house):
    h = house("a", "Title", "b", "c", memory=Memory(last_messages=False, generate_title=True))
    for text in ("one", "two", "three"):
        run = (await h.turn(text)).run_id
        await after.finish_turn(h.services, "t", run)
    assert await title(h) == "Title" and len(h.model.requests) == 4


async def test_tt2_only_loaded_history_counts(house):
    h = house(memory=Memory(last_messages=2, generate_title={"minMessages": 5}))
    for text in ("one", "two", "three", "four"):
        run = (await h.turn(text)).run_id
        assert await h.storage.get_job("t", run) is None
    run = (await h.turn("five", options=Memory(generate_title={"minMessages": 5}).options)).run_id
    assert await h.storage.get_job("t", run) is not None


async def test_tt2_a_read_only_turn_owes_no_title(house):
    h = house(memory=Memory(generate_title=True, read_only=True))
    await h.storage.create_thread(NewThread("t", "ana"))
    run = (await h.turn("hi")).run_id
    assert await h.storage.get_job("t", run) is None


async def test_tt6_mdisc6_a_title_changes_neither_birth_nor_metadata(house):
    h = house("hello", "Greetings", memory=TITLED)
    made = await h.storage.create_thread(NewThread("t", "ana", metadata={"workingMemory": "INITIAL"}))
    run = (await h.turn("hi")).run_id
    await h.storage.update_thread("t", ThreadChange(metadata={"workingMemory": "UPDATED"}), resource_id="ana")
    await after.finish_turn(h.services, "t", run)
    thread = await h.storage.get_thread("t")
    assert (thread.title, thread.metadata) == ("Greetings", {"workingMemory": "UPDATED"})
    assert thread.created_at == made.created_at


@pytest.mark.parametrize("answer", ["", "<think>x</think>", ModelRejected("no")])
async def test_tt4_a_model_without_a_title_leaves_it_empty_and_the_job_is_done(house, answer):
    h = house("hello", answer, memory=TITLED)
    run = (await h.turn("hi")).run_id
    await after.finish_turn(h.services, "t", run)
    assert await title(h) == "" and await h.storage.get_job("t", run) is None


async def test_h30_a_model_that_is_busy_leaves_the_job_for_the_next_try(house):
    h = house("hello", ModelUnavailable("busy"), "Greetings", memory=TITLED)
    run = (await h.turn("hi")).run_id
    with pytest.raises(ModelUnavailable):
        await after.finish_turn(h.services, "t", run)
    await after.finish_turn(h.services, "t", run)
    assert await title(h) == "Greetings"


async def test_h10_a_title_for_a_thread_deleted_meanwhile_is_dropped(house):
    h = house("hello", memory=TITLED)
    run = (await h.turn("hi")).run_id
    await h.storage.delete_thread("t", resource_id="ana")
    await after.finish_turn(h.services, "t", run)
    assert len(h.model.requests) == 1
    await after.purge(h.services, "t")
    assert await h.storage.get_thread("t") is None


async def test_h10_a_thread_deleted_while_its_job_begins_ends_the_job(house, monkeypatch):
    """Not done, the job would come back after the queue's half hour, and hold the clean-up back until then."""
    h = house("hello", memory=TITLED)
    run = (await h.turn("hi")).run_id
    read = h.storage.get_thread

    async def deleted_when_read(thread_id):
        thread = await read(thread_id)
        await h.storage.delete_thread(thread_id, resource_id="ana")
        return thread

    monkeypatch.setattr(h.storage, "get_thread", deleted_when_read)
    await after.finish_turn(h.services, "t", run)
    assert len(h.model.requests) == 1 and await h.storage.get_job("t", run) is None


async def test_tt1_a_title_may_have_a_model_and_instructions_of_its_own(house):
    h = house("hello", "T", memory=Memory(generate_title={"model": "fake/two", "instructions": "Shout."}))
    run = (await h.turn("hi")).run_id
    await after.finish_turn(h.services, "t", run)
    assert h.model.requests[-1].model == "two" and h.model.prompt[0] == ("system", "Shout.")


async def test_tt1_title_instructions_may_depend_on_the_request(house):
    async def instructions(context):
        return f"Answer in {context['language']}."

    h = house("hello", "Titre", memory=Memory(generate_title={"instructions": instructions}))
    run = (await h.turn("hi", request_context=RequestContext({"language": "French"}))).run_id
    await after.finish_turn(h.services, "t", run)
    assert h.model.prompt[0] == ("system", "Answer in French.")


async def test_tt1_empty_title_instructions_mean_the_default(house):
    h = house("hello", "T", memory=Memory(generate_title={"instructions": lambda context: ""}))
    run = (await h.turn("hi")).run_id
    await after.finish_turn(h.services, "t", run)
    assert "80 characters" in h.model.prompt[0][1]


async def test_tt4_a_title_model_that_does_not_exist_leaves_the_title_empty_and_the_job_is_done(house):
    h = house("hello", memory=Memory(generate_title={"model": "nowhere/m"}))
    run = (await h.turn("hi")).run_id
    await after.finish_turn(h.services, "t", run)
    assert await title(h) == "" and await h.storage.get_job("t", run) is None
