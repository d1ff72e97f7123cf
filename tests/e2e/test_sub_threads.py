"""What hangs on a thread goes with it: by the table's stream, the outbox and the clean-up (DEL-6, case H30)."""

from tests.e2e.application import Application, eventually
from threadkeep.ids import sub_resource
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.storage.port import NewMessage, NewThread, Origin, TurnCommit
from threadkeep.storage.runs import DurableRun, Entry

BIG = "x" * 400_000


async def test_with_a_thread_go_its_sub_agents_threads_its_journals_and_their_bodies(
    application: Application, thread: str, owner: str
) -> None:
    stack = application.stack
    s3, bucket = stack.client("s3"), stack.outputs["BucketName"]
    storage = DynamoDBStorage(stack.outputs["TableName"], stack.client("dynamodb"), Bucket(lambda: s3, bucket))
    await storage.create_thread(NewThread(thread, owner))
    home, resource = thread, owner
    for level in ("sub", "lower"):
        origin = Origin(resource, level, home)
        home, resource = f"{thread}-{level}", sub_resource(resource, level)
        made = await storage.create_thread(NewThread(home, resource, origin=origin))
        said = NewMessage(f"{home}-m", "assistant", {"format": 2, "parts": [], "pad": BIG}, at=0)
        await storage.commit_turn(TurnCommit(made, (said,)))
    await storage.create_run(DurableRun(f"{thread}-run", "agent", owner, thread, "hash"))
    await storage.write_entries(f"{thread}-run", [Entry("a", BIG), Entry("b", 1)], thread_id=None)
    await storage.write_entries(f"{thread}-journal", [Entry("a", BIG), Entry("b", 1)], thread_id=thread)
    rows = application.rows()
    ours = [key for key in rows if thread in "".join(key)]
    bodies = {rows[key]["blob"]["S"] for key in ours if "blob" in rows[key]}
    assert (len(ours), len(bodies)) == (19, 4)

    def left() -> set[str]:
        found = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return bodies & {body["Key"] for page in found for body in page.get("Contents", [])}

    assert left() == bodies
    assert application.delete(thread, owner).status_code == 200
    eventually(lambda: not application.rows_of(thread) and not left(), seconds=60)
    assert (application.rows_of(thread), left()) == ([], set())
    assert await storage.list_sub_resources(owner) == ("sub",)
