// needs: POST /api/agents/{agentId}/threads/subscribe

import assert from "node:assert/strict";
import { test } from "node:test";

import { assertOrder, of, reason, send, subscribed, text } from "./streams.mjs";
import { ada, conversation, eve, newId, refused, textOf } from "./support.mjs";

test("a message is accepted at once with its run and signal", async () => {
  const talk = conversation();
  const reply = await send(talk, "hello\n@say hi");
  assert.equal(reply.accepted, true);
  assert.ok(reply.runId && reply.signal.id);
  assert.deepEqual([reply.signal.type, reply.signal.contents], ["user", "hello\n@say hi"]);
});

test("a subscriber sees the user's message before the answer starts", async (t) => {
  const talk = conversation();
  const { until } = await subscribed(t, talk);
  const { runId } = await send(talk, { contents: "hello\n@say hi there", metadata: { clientMessageId: "c-1" } });
  const seen = await until("finish");
  assertOrder(seen, ["data-user-message", "start", "text-delta", "finish"]);
  assert.deepEqual([text(seen), reason(seen), of(seen, "start")[0].runId], ["hi there", "stop", runId]);
  assert.equal(of(seen, "data-user-message")[0].data.metadata.clientMessageId, "c-1");
});

test("one subscription sees several runs", async (t) => {
  const talk = conversation();
  const { until } = await subscribed(t, talk);
  await send(talk, "@say one");
  await until("finish", 1);
  await send(talk, "@say two");
  assert.equal(text(await until("finish", 2)), "onetwo");
});

test("tools stream to subscribers", async (t) => {
  const talk = conversation();
  const { until } = await subscribed(t, talk);
  await send(talk, '@call getWeather {"city":"Oslo"}\n@say It is 21C');
  assertOrder(await until("finish"), ["start", "tool-call", "tool-result", "text-delta", "finish"]);
});

test("a sent message is stored once, under the id of its signal", async (t) => {
  const talk = conversation();
  const { until } = await subscribed(t, talk);
  const { signal } = await send(talk, "hello\n@say hi");
  const shown = of(await until("finish"), "data-user-message")[0].data.id;
  const stored = await talk.messages();
  assert.deepEqual([stored.length, stored[0].id, shown, textOf(stored[1])], [2, signal.id, signal.id, "hi"]);
});

test("a message without thread or text is a 400", async () => {
  const talk = conversation();
  await refused(talk.agent.sendMessage({ message: "hi", resourceId: talk.resource }), 400);
  await refused(talk.agent.sendMessage({ resourceId: talk.resource, threadId: talk.thread }), 400);
});

test("where nothing runs there is nothing to abort", async () => {
  const talk = conversation();
  assert.deepEqual(await talk.agent.abortThread({ resourceId: talk.resource, threadId: talk.thread }), { aborted: false });
});

test("another user can neither subscribe nor send", async () => {
  const talk = conversation("template-agent", { by: ada(), resource: "user-ada", thread: newId("thread") });
  await talk.create();
  const other = eve().getAgent("template-agent");
  await refused(other.subscribeToThread({ threadId: talk.thread, resourceId: "user-ada" }), 403);
  await refused(other.sendMessage({ message: "hi", resourceId: "user-ada", threadId: talk.thread }), 403);
});
