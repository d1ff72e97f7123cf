import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { client, conversation, fields, newId, raw, refused } from "./support.mjs";

const ODD = () => `${newId("t")}.~_:@|+=,-`;

test("every character that an id may have survives in paths", async () => {
  const talk = conversation("template-agent", { thread: ODD(), resource: `${newId("o")}:@|+=,` });
  await talk.create();
  await talk.say("hello\n@say hi");
  assert.equal((await talk.handle.get()).id, talk.thread);
  assert.equal((await talk.messages()).length, 2);
  assert.equal((await talk.handle.update({ title: "x", resourceId: talk.resource })).id, talk.thread);
  assert.equal((await client.listMemoryThreads({ resourceId: talk.resource })).threads[0].resourceId, talk.resource);
  await talk.handle.delete();
  await refused(talk.handle.get(), 404);
});

test("an encoded id is the same thread as the plain one", async () => {
  const talk = conversation("template-agent", { thread: ODD() });
  await talk.create();
  const encoded = [...talk.thread].map((letter) => `%${letter.charCodeAt(0).toString(16)}`).join("");
  for (const id of [encodeURIComponent(talk.thread), encoded])
    assert.equal((await client.getMemoryThread({ threadId: id, agentId: "template-agent" }).get()).id, talk.thread);
});

test("what is still no id once it is decoded is refused", async () => {
  for (const id of ["a%2520b", "a%252Fb", "a%253Fb", "a%20b", "a%25"])
    assert.deepEqual(fields(await refused(client.getMemoryThread({ threadId: id, agentId: "template-agent" }).get(), 400)), ["threadId"], id);
});

test("ids that do not survive in a path are refused where they are made", async () => {
  for (const threadId of ["a/b", "a?b", "a#b", "50%", "a b", "ü", "x".repeat(257)]) {
    const body = await refused(client.createMemoryThread({ agentId: "template-agent", resourceId: "a", threadId }), 400);
    assert.deepEqual(fields(body), ["threadId"], threadId);
  }
});

test("message ids may hold what thread ids may not", async () => {
  const talk = conversation();
  await talk.create();
  const id = `${randomUUID()} /?#%25 ü`;
  const rows = [{ id, threadId: talk.thread, resourceId: talk.resource, role: "user", content: "odd" }];
  await client.saveMessageToMemory({ agentId: talk.agentId, messages: rows });
  assert.deepEqual((await talk.messages()).map((message) => message.id), [id]);
  await talk.handle.deleteMessages([id]);
  assert.deepEqual(await talk.messages(), []);
});

test("metadata filters with odd characters find what they name", async () => {
  const talk = conversation();
  await talk.create({ metadata: { label: "50% & more? #1 ü" } });
  const { threads } = await client.listMemoryThreads({ resourceId: talk.resource, metadata: { label: "50% & more? #1 ü" } });
  assert.deepEqual(threads.map((thread) => thread.id), [talk.thread]);
});

test("filters of messages are read as JSON and in brackets", async () => {
  const talk = conversation();
  await talk.say("one\n@say 1");
  const path = `/api/memory/threads/${talk.thread}/messages?agentId=template-agent`;
  for (const filter of [`filter=${encodeURIComponent('{"roles":["user"]}')}`, "filter[roles][]=user", "filter[roles][0]=user"]) {
    const { body } = await raw("GET", `${path}&${filter}`);
    assert.deepEqual(body.messages.map((message) => message.role), ["user"], filter);
  }
});

test("the word undefined in a query means that the owner is absent", async () => {
  const talk = conversation();
  await talk.create();
  const { status, body } = await raw("GET", `/api/memory/threads/${talk.thread}?agentId=template-agent&resourceId=undefined`);
  assert.deepEqual([status, body.resourceId], [200, talk.resource]);
});

test("an unknown route, a broken body and another content type are 4xx in JSON", async () => {
  assert.equal((await raw("GET", "/api/nothing-here")).status, 404);
  const path = "/api/memory/threads?agentId=template-agent";
  const broken = await raw("POST", path, { body: "{" });
  assert.deepEqual([broken.status, fields(broken.body)], [400, ["body"]]);
  assert.equal((await raw("POST", path, { body: "{}", headers: { "content-type": "text/plain" } })).status, 400);
});

test("a request that is too large is a 413 that is asked for once", async () => {
  const body = await refused(client.getAgent("plain-agent").generate("x".repeat(5_000_000)), 413);
  assert.equal(body.error, "Request body too large");
});
