import assert from "node:assert/strict";
import { test } from "node:test";

import { ada, client, clientWith, conversation, eve, newId, refused } from "./support.mjs";

const DENIED = { error: "Access denied: thread belongs to a different resource" };

/** A conversation of Ada's, with one turn in it. */
async function adas(agentId = "template-agent") {
  const talk = conversation(agentId, { by: ada(), resource: "user-ada" });
  await talk.say("My secret is 4711.\n@say Noted");
  return talk;
}

/** Eve's handle of a conversation that is not hers. */
const asEve = (talk) => eve().getMemoryThread({ threadId: talk.thread, agentId: talk.agentId });

test("without a credential, or with a wrong one, every call is a 401", async () => {
  for (const credential of ["wrong", "a.b.c", ""]) {
    const stranger = clientWith({ credential });
    await refused(stranger.listAgents(), 401);
    await refused(stranger.listMemoryThreads(), 401);
    await refused(stranger.getAgent("template-agent").generate("hi"), 401);
  }
});

test("a user's token overrides the owner in a created thread", async () => {
  const created = await ada().createMemoryThread({ agentId: "template-agent", threadId: newId("thread"), resourceId: "user-eve" });
  assert.equal(created.resourceId, "user-ada");
});

test("a user need not name an owner", async () => {
  const thread = newId("thread");
  assert.equal((await ada().createMemoryThread({ agentId: "template-agent", threadId: thread })).resourceId, "user-ada");
  const reply = await ada().getAgent("template-agent").generate("hi\n@say hello", { memory: { thread } });
  assert.deepEqual(reply.messages.map((message) => message.resourceId), ["user-ada", "user-ada"]);
});

test("a user's list has the user's threads only, whatever it asks for", async () => {
  const talk = await adas();
  const mine = await ada().listMemoryThreads({ resourceId: "user-eve" });
  assert.ok(mine.threads.some((thread) => thread.id === talk.thread));
  for (const asked of [{ resourceId: "user-ada" }, {}]) {
    const { threads } = await eve().listMemoryThreads({ perPage: 1000, ...asked });
    assert.deepEqual(threads.filter((thread) => thread.resourceId !== "user-eve"), []);
  }
});

test("another user cannot read a thread or its messages", async () => {
  const other = asEve(await adas());
  assert.deepEqual(await refused(other.get(), 403), DENIED);
  assert.deepEqual(await refused(other.listMessages(), 403), DENIED);
});

test("another user cannot change, clone, transfer or delete a thread", async () => {
  const talk = await adas();
  const other = asEve(talk);
  const before = await talk.handle.get();
  assert.deepEqual(await refused(other.update({ title: "Eve's" }), 403), DENIED);
  await refused(other.clone(), 403);
  await refused(other.transfer({ resourceId: "user-eve" }), 403);
  await refused(other.delete(), 403);
  assert.deepEqual(await talk.handle.get(), before);
});

test("another user cannot save or delete messages", async () => {
  const talk = await adas();
  const [message] = await talk.messages();
  await refused(asEve(talk).deleteMessages(message.id), 403);
  const given = [{ threadId: talk.thread, resourceId: "user-ada", role: "user", content: "forged" }];
  await refused(eve().saveMessageToMemory({ agentId: talk.agentId, messages: given }), 403);
  assert.equal((await talk.messages()).length, 2);
});

test("another user cannot talk in a thread, and no history leaks", async () => {
  const talk = await adas();
  const call = eve().getAgent(talk.agentId).generate("@dump", { memory: { thread: talk.thread, resource: "user-ada" } });
  assert.deepEqual(await refused(call, 403), DENIED);
});

test("a user cannot give a thread away, the service can", async () => {
  const talk = await adas();
  await refused(talk.handle.transfer({ resourceId: "user-eve" }), 403);
  await client.getMemoryThread({ threadId: talk.thread, agentId: talk.agentId }).transfer({ resourceId: "user-eve" });
  assert.equal((await asEve(talk).get()).resourceId, "user-eve");
  await refused(talk.handle.get(), 403);
});

test("the service key acts for any owner", async () => {
  const talk = await adas();
  const service = client.getMemoryThread({ threadId: talk.thread, agentId: talk.agentId });
  assert.equal((await service.get()).resourceId, "user-ada");
  const reply = await client.getAgent(talk.agentId).generate("more\n@say ok", { memory: talk.memory });
  assert.equal(reply.text, "ok");
  await refused(client.getAgent(talk.agentId).generate("more\n@say ok", { memory: { thread: talk.thread, resource: "user-eve" } }), 403);
});

test("a user's clone belongs to that user, whatever it asks for", async () => {
  const talk = await adas();
  for (const asked of [{}, { resourceId: "user-eve" }])
    assert.equal((await talk.handle.clone(asked)).thread.resourceId, "user-ada");
});
