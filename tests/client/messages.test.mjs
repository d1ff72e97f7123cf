import assert from "node:assert/strict";
import { test } from "node:test";

import { client, conversation, fields, MOMENT, newId, raw, refused, textOf } from "./support.mjs";

const save = (messages, agentId = "template-agent") => client.saveMessageToMemory({ agentId, messages });
const ids = (messages) => messages.map((message) => message.id);

/** A thread with messages `1` to `count` from the user. */
async function numbered(count) {
  const talk = conversation();
  await talk.create();
  const rows = Array.from({ length: count }, (_, n) => ({ threadId: talk.thread, resourceId: talk.resource, role: "user", content: String(n + 1) }));
  return { talk, saved: (await save(rows)).messages };
}

test("a saved text comes back in the stored form", async () => {
  const talk = conversation();
  await talk.create();
  const given = { id: newId("message"), threadId: talk.thread, resourceId: talk.resource, role: "user", content: "Hello!" };
  const { messages: [saved] } = await save([given]);
  assert.deepEqual([saved.id, saved.role, saved.threadId, saved.resourceId], [given.id, "user", talk.thread, talk.resource]);
  assert.deepEqual([saved.content.format, saved.content.parts[0].type, textOf(saved)], [2, "text", "Hello!"]);
  assert.match(saved.createdAt, MOMENT);
  assert.deepEqual(await talk.messages(), [saved]);
});

test("the stored form is kept exactly", async () => {
  const talk = conversation();
  await talk.create();
  const content = { format: 2, parts: [{ type: "text", text: "Zoë 🐘" }, { type: "custom", data: { n: 0.1, nothing: null } }], metadata: { from: "import" } };
  const { messages: [saved] } = await save([{ threadId: talk.thread, resourceId: talk.resource, role: "assistant", content, createdAt: new Date(0) }]);
  assert.deepEqual([saved.content, saved.createdAt], [content, "1970-01-01T00:00:00.000Z"]);
  assert.deepEqual(await talk.messages(), [saved]);
});

test("a message saved again under its id is replaced, not doubled", async () => {
  const { talk, saved } = await numbered(2);
  await save([{ id: saved[0].id, threadId: talk.thread, resourceId: talk.resource, role: "user", content: "one" }]);
  assert.deepEqual((await talk.messages()).map(textOf), ["one", "2"]);
});

test("saving into a missing thread is a 404", async () => {
  await refused(save([{ threadId: newId("missing"), resourceId: newId("owner"), role: "user", content: "x" }]), 404);
});

test("saving without thread or owner, or no list, names the field", async () => {
  assert.deepEqual(fields(await refused(save([{ role: "user", content: "x", resourceId: "a" }]), 400)), ["messages.0.threadId"]);
  assert.deepEqual(fields(await refused(save([{ role: "user", content: "x", threadId: "a" }]), 400)), ["messages.0.resourceId"]);
  assert.deepEqual(fields(await refused(save("x"), 400)), ["messages"]);
});

test("saving into another owner's thread is a 403 and stores nothing", async () => {
  const { talk } = await numbered(1);
  await refused(save([{ threadId: talk.thread, resourceId: "user-mallory", role: "user", content: "x" }]), 403);
  assert.equal((await talk.messages()).length, 1);
});

test("a list is the newest page, oldest message first", async () => {
  const { talk, saved } = await numbered(5);
  const { messages, ...page } = await talk.handle.listMessages({ perPage: 2 });
  assert.deepEqual(ids(messages), ids(saved.slice(3)));
  assert.deepEqual(page, { total: 5, page: 0, perPage: 2, hasMore: true, uiMessages: null });
});

test("pages in ascending order show every message once", async () => {
  const { talk, saved } = await numbered(5);
  const seen = [];
  for (let page = 0; page < 3; page++) {
    const found = await talk.handle.listMessages({ page, perPage: 2, orderBy: { field: "createdAt", direction: "ASC" } });
    assert.deepEqual([found.total, found.hasMore], [5, page < 2]);
    seen.push(...ids(found.messages));
  }
  assert.deepEqual(seen, ids(saved));
});

test("pages in descending order show every message once", async () => {
  const { talk, saved } = await numbered(5);
  const seen = [];
  for (let page = 0; page < 3; page++)
    seen.push(...ids((await talk.handle.listMessages({ page, perPage: 2, orderBy: { field: "createdAt", direction: "DESC" } })).messages));
  assert.deepEqual(seen.sort(), ids(saved).sort());
});

test("the client's own list needs no agent, and takes a network", async () => {
  const { talk, saved } = await numbered(3);
  assert.deepEqual(ids((await client.listThreadMessages(talk.thread)).messages), ids(saved));
  assert.deepEqual(ids((await client.listThreadMessages(talk.thread, { networkId: "template-agent" })).messages), ids(saved));
});

test("ordering of messages is read in all three spellings", async () => {
  const { talk, saved } = await numbered(3);
  const orders = [
    "orderBy[field]=createdAt&orderBy[direction]=ASC",
    `orderBy=${encodeURIComponent('{"field":"createdAt","direction":"ASC"}')}`,
    "orderBy=createdAt&sortDirection=ASC",
  ];
  for (const order of orders) {
    const { body } = await raw("GET", `/api/memory/threads/${talk.thread}/messages?agentId=template-agent&perPage=1&${order}`);
    assert.deepEqual(ids(body.messages), [saved[0].id], order);
  }
});

test("messages are filtered by role and date", async () => {
  const talk = conversation();
  await talk.say("one\n@say 1");
  const users = await talk.messages({ filter: { roles: ["user"], dateRange: { start: new Date(0) } } });
  assert.deepEqual(users.map((message) => message.role), ["user"]);
  assert.deepEqual(await talk.messages({ filter: { dateRange: { end: new Date(1000) } } }), []);
});

test("a message is included with its neighbours", async () => {
  const { talk, saved } = await numbered(5);
  const include = [{ id: saved[2].id, withPreviousMessages: 1, withNextMessages: 1 }];
  const { messages, total } = await talk.handle.listMessages({ perPage: 0, include });
  assert.deepEqual([ids(messages), total], [ids(saved.slice(1, 4)), 5]);
});

test("messages are deleted in all four spellings", async () => {
  const { talk, saved } = await numbered(6);
  const [a, b, c, d, e, f] = ids(saved);
  const spellings = [[a, 1], [[b, c], 2], [{ id: d }, 1], [[{ id: e }], 1]];
  for (const [given, count] of spellings) {
    const { success, message } = await talk.handle.deleteMessages(given);
    assert.deepEqual([success, message], [true, `${count} message${count > 1 ? "s" : ""} deleted successfully`]);
  }
  assert.deepEqual(ids(await talk.messages()), [f]);
});

test("unknown messages are deleted without complaint", async () => {
  const { talk } = await numbered(1);
  assert.equal((await talk.handle.deleteMessages(newId("message"))).success, true);
  assert.equal((await talk.messages()).length, 1);
});

test("deleting nothing recognisable is a 400 that names it", async () => {
  const { talk } = await numbered(1);
  assert.deepEqual(fields(await refused(talk.handle.deleteMessages(5), 400)), ["messageIds"]);
});
