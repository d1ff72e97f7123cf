import assert from "node:assert/strict";
import { test } from "node:test";

import { client, conversation, fields, modelCalls, MOMENT, newId, prompt, refused, textOf } from "./support.mjs";

test("a text turn answers with text, finish reason, usage and run id", async () => {
  const reply = await conversation().say("Hello\n@say Hello there");
  assert.deepEqual([reply.text, reply.finishReason, reply.toolCalls, reply.toolResults], ["Hello there", "stop", [], []]);
  assert.ok(reply.usage.inputTokens > 0 && reply.usage.totalTokens > reply.usage.inputTokens);
  assert.match(reply.runId, /^[0-9a-f-]{36}$/);
  assert.deepEqual(reply.response.messages.map((message) => message.role), ["assistant"]);
});

test("a turn stores the question and the answer, once each", async () => {
  const talk = conversation();
  const reply = await talk.say("Hello\n@say Hi");
  const stored = await talk.messages();
  assert.deepEqual(stored, reply.messages);
  assert.deepEqual(stored.map((message) => [message.role, textOf(message)]), [["user", "Hello\n@say Hi"], ["assistant", "Hi"]]);
  for (const message of stored) assert.match(message.createdAt, MOMENT);
});

test("the model is shown what was said before, and no system text twice", async () => {
  const talk = conversation("thread-agent");
  await talk.say("My boat is called Petrel.\n@say A fine name.");
  const shown = prompt(await talk.say("What do you know?\n@dump"));
  assert.deepEqual(shown.roles.filter((role) => role !== "system"), ["user", "assistant", "user"]);
  assert.deepEqual(shown.user, ["My boat is called Petrel.\n@say A fine name.", "What do you know?\n@dump"]);
  assert.equal(shown.system.join("\n").split("You are the thread agent.").length, 2);
});

test("the last ten messages are loaded, older ones are not", async () => {
  const talk = conversation("thread-agent");
  await talk.create();
  const rows = Array.from({ length: 14 }, (_, n) => ({ threadId: talk.thread, resourceId: talk.resource, role: n % 2 ? "assistant" : "user", content: `m${n}` }));
  await client.saveMessageToMemory({ agentId: talk.agentId, messages: rows });
  const shown = prompt(await talk.say("@dump"));
  assert.deepEqual(shown.user, ["m4", "m6", "m8", "m10", "m12", "@dump"]);
});

test("a turn creates the thread that it names, empty title", async () => {
  const talk = conversation();
  await talk.say("Hello\n@say Hi");
  const read = await talk.handle.get();
  assert.deepEqual([read.id, read.resourceId, read.title], [talk.thread, talk.resource, ""]);
});

test("messages may be a list, with content in parts", async () => {
  const talk = conversation();
  const content = [{ type: "text", text: "first part" }, { type: "text", text: "@dump" }];
  const shown = prompt(await talk.say([{ role: "user", content: "one" }, { role: "assistant", content: "two" }, { role: "user", content }]));
  assert.deepEqual(shown.roles.filter((role) => role !== "system"), ["user", "assistant", "user"]);
});

test("without memory nothing is remembered", async () => {
  const agent = client.getAgent("plain-agent");
  const reply = await agent.generate("Remember me\n@say ok");
  assert.deepEqual([reply.text, reply.messages.length], ["ok", 2]);
  assert.deepEqual(prompt(await agent.generate("@dump")).user, ["@dump"]);
});

test("instructions of the call replace the agent's", async () => {
  const { system } = prompt(await client.getAgent("plain-agent").generate("@dump", { instructions: "You are a pirate." }));
  assert.deepEqual(system, ["You are a pirate."]);
});

test("a tool call is answered in the turn, step by step", async () => {
  const talk = conversation();
  const reply = await talk.say('@call getWeather {"city":"Oslo"}\n@say It is 21C');
  assert.deepEqual([reply.text, reply.finishReason, reply.steps.map((step) => step.finishReason)], ["It is 21C", "stop", ["tool-calls", "stop"]]);
  const [call] = reply.toolCalls;
  assert.deepEqual([call.type, call.from, call.payload.toolName, call.payload.args], ["tool-call", "AGENT", "getWeather", { city: "Oslo" }]);
  const [result] = reply.toolResults;
  assert.deepEqual([result.payload.toolCallId, result.payload.result], [call.payload.toolCallId, { city: "Oslo", tempC: 21 }]);
});

test("a tool call is stored with its result in the one answer", async () => {
  const talk = conversation();
  await talk.say('@call getWeather {"city":"Oslo"}\n@say It is 21C');
  const stored = await talk.messages();
  assert.deepEqual(stored.map((message) => message.role), ["user", "assistant"]);
  const { toolInvocation } = stored[1].content.parts.find((part) => part.type === "tool-invocation");
  assert.deepEqual([toolInvocation.state, toolInvocation.args, toolInvocation.result], ["result", { city: "Oslo" }, { city: "Oslo", tempC: 21 }]);
});

test("tool arguments that break the schema are told to the model", async () => {
  const shown = prompt(await conversation().say('@call getWeather {"city":5}\n@dump'));
  assert.match(shown.messages.at(-1).content, /validation failed/);
});

test("a tool that the model invented is told to the model", async () => {
  const reply = await conversation().say("@call teleport {}\n@dump");
  assert.match(prompt(reply).messages.at(-1).content, /teleport/);
});

test("maxSteps ends a run that would go on", async () => {
  const reply = await conversation().say('@call getWeather {"city":"Oslo"}\n@say never', { maxSteps: 1 });
  assert.deepEqual([reply.text, reply.finishReason, reply.steps.length], ["", "tool-calls", 1]);
});

test("activeTools and toolChoice limit what the model may call", async () => {
  assert.deepEqual(prompt(await conversation().say("@dump", { activeTools: ["getWeather"] })).tools, ["getWeather"]);
  assert.equal(prompt(await conversation().say("@dump", { toolChoice: "required" })).tool_choice, "required");
});

test("a read-only turn sees the history and stores nothing", async () => {
  const talk = conversation();
  await talk.say("one\n@say 1");
  const reply = await talk.say("@dump", { memory: { ...talk.memory, options: { readOnly: true } } });
  assert.deepEqual(prompt(reply).user, ["one\n@say 1", "@dump"]);
  assert.equal((await talk.messages()).length, 2);
});

test("structured output is in object, and checked", async () => {
  const schema = { type: "object", properties: { city: { type: "string" }, n: { type: "number" } }, required: ["city", "n"], additionalProperties: false };
  const agent = client.getAgent("plain-agent");
  const reply = await agent.generate('@say {"city":"Rome","n":3}', { structuredOutput: { schema } });
  assert.deepEqual([reply.object, reply.usedFallbackValue], [{ city: "Rome", n: 3 }, false]);
});

test("structured output that breaks its schema is a 424 asked for once", async () => {
  const text = `${newId("broken")}\n@say {"city":"Rome"}`;
  const schema = { type: "object", properties: { n: { type: "number" } }, required: ["n"] };
  const body = await refused(client.getAgent("plain-agent").generate(text, { structuredOutput: { schema } }), 424);
  assert.match(body.error, /"n" is a required property/);
  assert.equal((await modelCalls(text)).length, 1);
});

test("structured output falls back where the call says so", async () => {
  const structuredOutput = { schema: { type: "object", required: ["n"] }, errorStrategy: "fallback", fallbackValue: { n: 0 } };
  const reply = await client.getAgent("plain-agent").generate("@say no json", { structuredOutput });
  assert.deepEqual([reply.object, reply.usedFallbackValue], [{ n: 0 }, true]);
});

test("a model's refusal is one 424, and the thread stays as it was", async () => {
  const talk = conversation();
  await talk.say("one\n@say 1");
  const text = `${newId("refusal")}\n@fail 400 bad request`;
  await refused(talk.say(text), 424);
  assert.equal((await modelCalls(text)).length, 1);
  assert.equal((await talk.messages()).length, 2);
});

test("empty or missing messages are a 400 and reach no model", async () => {
  const agent = client.getAgent("template-agent");
  for (const nothing of ["", undefined, []]) assert.deepEqual(fields(await refused(agent.generate(nothing), 400)), ["messages"]);
});

test("memory without an owner is a 400 that names it", async () => {
  const talk = conversation();
  const body = await refused(talk.say("@say hi", { memory: { thread: talk.thread } }), 400);
  assert.deepEqual(fields(body), ["memory.resource"]);
});

test("a turn in another owner's thread is a 403, and no model is asked", async () => {
  const talk = conversation();
  await talk.create();
  const text = `${newId("theft")}\n@say hi`;
  const body = await refused(talk.say(text, { memory: { thread: talk.thread, resource: "user-mallory" } }), 403);
  assert.deepEqual(body, { error: "Access denied: thread belongs to a different resource" });
  assert.deepEqual(await modelCalls(text), []);
});

test("a turn with an unknown agent is a 404", async () => {
  assert.equal((await refused(client.getAgent("nope").generate("hi"), 404)).error, "Agent with id nope not found");
});
