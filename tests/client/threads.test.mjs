import assert from "node:assert/strict";
import { test } from "node:test";

import { client, conversation, fields, MOMENT, newId, raw, refused, textOf } from "./support.mjs";

test("a created thread is returned whole", async () => {
  const talk = conversation();
  const { createdAt, updatedAt, ...rest } = await talk.create({ title: "First", metadata: { category: "support" } });
  assert.deepEqual(rest, { id: talk.thread, resourceId: talk.resource, title: "First", metadata: { category: "support" } });
  assert.match(createdAt, MOMENT);
  assert.equal(updatedAt, createdAt);
});

test("a thread without id and title gets an id and an empty title", async () => {
  const created = await client.createMemoryThread({ agentId: "template-agent", resourceId: newId("owner") });
  assert.equal(created.title, "");
  assert.match(created.id, /^[0-9a-f-]{36}$/);
  assert.ok(!("metadata" in created));
});

test("a thread is read back, with and without agent", async () => {
  const talk = conversation();
  const created = await talk.create({ title: "Mine" });
  const read = await talk.handle.get();
  assert.deepEqual(read, { ...created, metadata: null });
  assert.deepEqual(await client.getMemoryThread({ threadId: talk.thread }).get(), read);
});

test("creating a thread again returns the stored one", async () => {
  const talk = conversation();
  const created = await talk.create({ title: "Mine" });
  assert.deepEqual(await talk.create({ title: "Other" }), created);
});

test("another owner cannot take a thread over by creating it", async () => {
  const talk = conversation();
  await talk.create();
  await refused(client.createMemoryThread({ agentId: "template-agent", threadId: talk.thread, resourceId: "user-mallory" }), 403);
  assert.equal((await talk.handle.get()).resourceId, talk.resource);
});

test("creating a thread needs a known agent with memory", async () => {
  const given = { threadId: newId("thread"), resourceId: newId("owner") };
  assert.match((await refused(client.createMemoryThread({ agentId: "nope", ...given }), 404)).error, /not found/);
  await refused(client.createMemoryThread({ agentId: "plain-agent", ...given }), 400);
});

test("creating a thread without owner, or with wrong types, names the field", async () => {
  const none = await refused(client.createMemoryThread({ agentId: "template-agent" }), 400);
  assert.deepEqual([none.error, fields(none)], ["Invalid request body", ["resourceId"]]);
  const wrong = await refused(client.createMemoryThread({ agentId: "template-agent", resourceId: 5, title: [], metadata: "x" }), 400);
  assert.deepEqual(fields(wrong).sort(), ["metadata", "resourceId", "title"]);
});

test("a missing thread is a 404 for reading, changing and deleting", async () => {
  const missing = client.getMemoryThread({ threadId: newId("missing"), agentId: "template-agent" });
  for (const call of [() => missing.get(), () => missing.update({ title: "x" }), () => missing.delete(), () => missing.listMessages()])
    assert.equal((await refused(call(), 404)).error, "Thread not found");
  await refused(missing.clone(), 404);
});

test("threads of an owner are listed, newest first", async () => {
  const resource = newId("owner");
  const made = [];
  for (let n = 0; n < 3; n++) made.push((await conversation("template-agent", { resource }).create()).id);
  const { threads, ...page } = await client.listMemoryThreads({ resourceId: resource, agentId: "template-agent" });
  assert.deepEqual(threads.map((thread) => thread.id), made.reverse());
  assert.deepEqual(page, { total: 3, page: 0, perPage: 100, hasMore: false });
});

test("a list in pages, oldest first, misses and repeats nothing", async () => {
  const resource = newId("owner");
  const made = [];
  for (let n = 0; n < 3; n++) made.push((await conversation("template-agent", { resource }).create()).id);
  const seen = [];
  for (let page = 0; page < 3; page++) {
    const orderBy = { field: "createdAt", direction: "ASC" };
    const found = await client.listMemoryThreads({ resourceId: resource, page, perPage: 1, orderBy });
    assert.deepEqual([found.total, found.page, found.perPage, found.hasMore], [3, page, 1, page < 2]);
    seen.push(...found.threads.map((thread) => thread.id));
  }
  assert.deepEqual(seen, made);
});

test("an owner without threads has an empty list", async () => {
  const { threads, total, hasMore } = await client.listMemoryThreads({ resourceId: newId("nobody") });
  assert.deepEqual([threads, total, hasMore], [[], 0, false]);
});

test("threads are found by equality of all metadata given", async () => {
  const resource = newId("owner");
  const talk = conversation("template-agent", { resource });
  await talk.create({ metadata: { category: "support", level: 2 } });
  await conversation("template-agent", { resource }).create({ metadata: { category: "support", level: "2" } });
  const found = await client.listMemoryThreads({ resourceId: resource, metadata: { category: "support", level: 2 } });
  assert.deepEqual(found.threads.map((thread) => thread.id), [talk.thread]);
});

test("an update replaces metadata and keeps what is absent", async () => {
  const talk = conversation();
  const created = await talk.create({ title: "Old", metadata: { a: 1, b: 2 } });
  const renamed = await talk.handle.update({ title: "New" });
  assert.deepEqual([renamed.title, renamed.metadata, renamed.createdAt], ["New", { a: 1, b: 2 }, created.createdAt]);
  assert.ok(renamed.updatedAt >= created.updatedAt);
  const changed = await talk.handle.update({ metadata: { c: 3 }, resourceId: talk.resource });
  assert.deepEqual([changed.title, changed.metadata], ["New", { c: 3 }]);
  assert.deepEqual(await talk.handle.get(), changed);
});

test("an update that names another owner is refused and changes nothing", async () => {
  const talk = conversation();
  const created = await talk.create({ title: "Mine" });
  const body = await refused(talk.handle.update({ title: "Theirs", resourceId: "user-mallory" }), 403);
  assert.deepEqual(body, { error: "Access denied: thread belongs to a different resource" });
  assert.deepEqual(await talk.handle.get(), { ...created, metadata: null });
});

test("a clone has its own thread and copies of the messages", async () => {
  const talk = conversation();
  await talk.say("one\n@say 1");
  await talk.say("two\n@say 2");
  const newThreadId = newId("copy");
  const options = { messageLimit: 2 };
  const { thread, clonedMessages, messageIdMap } = await talk.handle.clone({ newThreadId, title: "Copy", metadata: { branch: "b1" }, options });
  assert.deepEqual([thread.id, thread.resourceId, thread.title, thread.metadata.branch], [newThreadId, talk.resource, "Copy", "b1"]);
  const originals = (await talk.messages()).slice(2);
  assert.deepEqual(thread.metadata.clone.sourceThreadId, talk.thread);
  assert.deepEqual(Object.keys(messageIdMap).sort(), originals.map((message) => message.id).sort());
  assert.deepEqual(clonedMessages.map(textOf), originals.map(textOf));
  assert.deepEqual(clonedMessages.map((message) => message.id), originals.map((message) => messageIdMap[message.id]));
  assert.deepEqual(await conversation("template-agent", { thread: newThreadId }).messages(), clonedMessages);
});

test("a clone without options has everything and a default title", async () => {
  const talk = conversation();
  await talk.create({ title: "Trip" });
  await talk.say("one\n@say 1");
  const { thread, clonedMessages } = await talk.handle.clone();
  assert.deepEqual([thread.title, clonedMessages.length], ["Clone of Trip", 2]);
});

test("a clone onto an id that exists is a 409", async () => {
  const [talk, other] = [conversation(), conversation()];
  await Promise.all([talk.create(), other.create()]);
  await refused(talk.handle.clone({ newThreadId: other.thread }), 409);
});

test("a transferred thread belongs to its new owner, messages too", async () => {
  const talk = conversation();
  const created = await talk.create();
  await talk.say("hello\n@say hi");
  const next = newId("owner");
  const moved = await talk.handle.transfer({ resourceId: next });
  assert.deepEqual([moved.resourceId, moved.createdAt], [next, created.createdAt]);
  assert.deepEqual((await talk.messages()).map((message) => message.resourceId), [next, next]);
  await refused(talk.say("still mine?\n@say no"), 403);
});

test("a deleted thread is gone with its messages, and from the list", async () => {
  const talk = conversation();
  await talk.say("hello\n@say hi");
  assert.deepEqual(await talk.handle.delete(), { result: "Thread deleted" });
  await refused(talk.handle.get(), 404);
  await refused(talk.handle.listMessages(), 404);
  assert.equal((await client.listMemoryThreads({ resourceId: talk.resource })).total, 0);
});

test("a thread is deleted through the client, by agent and by network", async () => {
  const [one, two] = [conversation(), conversation()];
  await Promise.all([one.create(), two.create()]);
  assert.deepEqual(await client.deleteThread(one.thread, { agentId: "template-agent" }), { result: "Thread deleted" });
  assert.deepEqual(await client.deleteThread(two.thread, { networkId: "template-agent" }), { result: "Thread deleted" });
});

test("ordering is read in all three spellings", async () => {
  const resource = newId("owner");
  const made = [];
  for (let n = 0; n < 2; n++) made.push((await conversation("template-agent", { resource }).create()).id);
  const orders = [
    "orderBy[field]=createdAt&orderBy[direction]=ASC",
    `orderBy=${encodeURIComponent('{"field":"createdAt","direction":"ASC"}')}`,
    "orderBy=createdAt&sortDirection=ASC",
  ];
  for (const order of orders) {
    const { body } = await raw("GET", `/api/memory/threads?resourceId=${resource}&${order}`);
    assert.deepEqual(body.threads.map((thread) => thread.id), made, order);
  }
});

test("pages that are no numbers are refused by name", async () => {
  for (const [query, field] of [["page=-1", "page"], ["perPage=x", "perPage"]]) {
    const { status, body } = await raw("GET", `/api/memory/threads?${query}`);
    assert.deepEqual([status, body.error, fields(body)], [400, "Invalid query parameters", [field]]);
  }
});
