// The client repeats whatever got no answer, up to three times. What is done once must be there once.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { createTool } from "@mastra/client-js";

import { flaky } from "./flaky.mjs";
import { client, conversation, modelCalls, newId, textOf } from "./support.mjs";

const keyed = () => ({ headers: { "Idempotency-Key": randomUUID() } });
const threadsOf = async (resourceId) => (await client.listMemoryThreads({ resourceId })).threads;

test("a thread with an id is created once, however often its answer is lost", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  proxy.drop(3);
  const created = await talk.create({ title: "Mine" });
  assert.deepEqual([created.id, created.title, proxy.seen.length], [talk.thread, "Mine", 4]);
  assert.deepEqual((await threadsOf(talk.resource)).map((thread) => thread.id), [talk.thread]);
});

test("a thread without id is created once under an idempotency key", async (t) => {
  const proxy = await flaky(t, keyed());
  const resourceId = newId("owner");
  proxy.drop(2);
  const created = await proxy.client.createMemoryThread({ agentId: "template-agent", resourceId });
  assert.deepEqual((await threadsOf(resourceId)).map((thread) => thread.id), [created.id]);
});

test("a turn under an idempotency key is run and stored once", async (t) => {
  const proxy = await flaky(t, keyed());
  const talk = conversation("template-agent", { by: proxy.client });
  const text = `${newId("keyed")}\n@say Once`;
  proxy.drop(2);
  assert.equal((await talk.say(text)).text, "Once");
  assert.deepEqual([(await talk.messages()).length, (await modelCalls(text)).length], [2, 1]);
});

test("a turn under a run id is run and stored once", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  const text = `${newId("run")}\n@say Once`;
  const runId = randomUUID();
  proxy.drop(3);
  const reply = await talk.say(text, { runId });
  assert.deepEqual([reply.text, reply.runId], ["Once", runId]);
  assert.deepEqual(reply.messages, await talk.messages());
  assert.deepEqual([proxy.seen.filter((sent) => sent.startsWith("POST")).length, (await modelCalls(text)).length], [4, 1]);
});

test("a turn that is cut off while it runs is joined by its repeat, without any key", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  await talk.create();
  const text = `${newId("cut")}\n@wait 1500\n@say Once`;
  proxy.cut(700);
  assert.equal((await talk.say(text)).text, "Once");
  assert.deepEqual([(await talk.messages()).map(textOf), (await modelCalls(text)).length], [[text, "Once"], 1]);
});

test("a turn with a tool answers its repeat with the same steps", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  proxy.drop(1);
  const reply = await talk.say('@call getWeather {"city":"Oslo"}\n@say It is 21C', { runId: randomUUID() });
  assert.deepEqual([reply.text, reply.finishReason], ["It is 21C", "stop"]);
  assert.deepEqual(reply.toolResults.map((result) => result.payload.result), [{ city: "Oslo", tempC: 21 }]);
  assert.equal((await talk.messages()).length, 2);
});

test("a client tool is run once when the answer that calls it is lost", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  let runs = 0;
  const pickColor = createTool({ id: "pickColor", description: "picks", inputSchema: { type: "object" }, execute: async () => (runs++, "teal") });
  proxy.drop(1);
  const reply = await talk.say("@call pickColor {}\n@say teal it is", { clientTools: { pickColor }, runId: randomUUID() });
  assert.deepEqual([reply.text, runs], ["teal it is", 1]);
  assert.equal((await talk.messages()).filter((message) => message.role === "user").length, 1);
});

test("a client tool's result is stored once when the last answer is lost", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  const execute = async () => (proxy.drop(1), "teal");
  const pickColor = createTool({ id: "pickColor", description: "picks", inputSchema: { type: "object" }, execute });
  const reply = await talk.say("@call pickColor {}\n@say teal it is", { clientTools: { pickColor }, runId: randomUUID() });
  assert.equal(reply.text, "teal it is");
  assert.equal((await talk.messages()).filter((message) => textOf(message) === "teal it is").length, 1);
});

test("a failed turn is asked of the model once, and leaves nothing", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  const text = `${newId("failed")}\n@fail 400 no`;
  await assert.rejects(talk.say(text), { status: 424 });
  assert.equal((await modelCalls(text)).length, 1);
  assert.deepEqual(await talk.messages().catch(() => []), []);
});

test("a model that is down is asked again by the client, and nothing is stored", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  await talk.create();
  await assert.rejects(talk.say("@fail 500 down"), { status: 503 });
  assert.equal(proxy.seen.filter((sent) => sent.endsWith("/generate")).length, 4);
  assert.deepEqual(await talk.messages(), []);
});

test("messages with ids are saved once, however often the answer is lost", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  await talk.create();
  const rows = ["one", "two"].map((content) => ({ id: newId("message"), threadId: talk.thread, resourceId: talk.resource, role: "user", content }));
  proxy.drop(2);
  await proxy.client.saveMessageToMemory({ agentId: talk.agentId, messages: rows });
  assert.deepEqual((await talk.messages()).map(textOf), ["one", "two"]);
});

test("messages without ids are saved once under an idempotency key", async (t) => {
  const talk = conversation();
  await talk.create();
  const proxy = await flaky(t, keyed());
  const rows = ["one", "two"].map((content) => ({ threadId: talk.thread, resourceId: talk.resource, role: "user", content }));
  proxy.drop(2);
  const { messages } = await proxy.client.saveMessageToMemory({ agentId: talk.agentId, messages: rows });
  assert.deepEqual(await talk.messages(), messages);
});

test("a clone is made once under an idempotency key", async (t) => {
  const talk = conversation();
  await talk.say("one\n@say 1");
  const proxy = await flaky(t, keyed());
  proxy.drop(1);
  const { thread } = await proxy.client.getMemoryThread({ threadId: talk.thread, agentId: talk.agentId }).clone();
  assert.deepEqual((await threadsOf(talk.resource)).map((found) => found.id).sort(), [thread.id, talk.thread].sort());
});

test("an update whose answer is lost is told as if it were the first", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  await talk.create();
  proxy.drop(1);
  assert.equal((await talk.handle.update({ title: "Renamed", metadata: { n: 1 } })).title, "Renamed");
});

test("messages are deleted once, a repeat does no harm", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  const [question, answer] = (await talk.say("one\n@say 1")).messages;
  proxy.drop(1);
  assert.equal((await talk.handle.deleteMessages(question.id)).success, true);
  assert.deepEqual((await talk.messages()).map((message) => message.id), [answer.id]);
});
