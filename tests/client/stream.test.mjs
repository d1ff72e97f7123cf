// needs: POST /api/agents/{agentId}/stream

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { createTool } from "@mastra/client-js";
import { z } from "zod";

import { flaky } from "./flaky.mjs";
import { chunks, assertOrder, of, reason, text, types } from "./streams.mjs";
import { ada, client, conversation, eve, modelCalls, newId, refused, textOf } from "./support.mjs";

const stream = async (talk, messages, options = {}) => chunks(await talk.agent.stream(messages, { memory: talk.memory, ...options }));
const invocations = (messages) =>
  messages.flatMap((message) => message.content.parts).filter((part) => part.type === "tool-invocation").map((part) => part.toolInvocation);

function pickColor() {
  const calls = [];
  const execute = async (args) => (calls.push(args), { color: "teal" });
  const tool = createTool({ id: "pickColor", description: "picks", inputSchema: z.object({ hint: z.string() }), execute });
  return { tools: { pickColor: tool }, calls };
}

test("a text streams from start to finish in order", async () => {
  const seen = await stream(conversation(), "@say Hello streaming world");
  assertOrder(seen, ["start", "step-start", "text-delta", "step-finish", "finish"]);
  assert.deepEqual([text(seen), reason(seen), of(seen, "start").length, of(seen, "finish").length], ["Hello streaming world", "stop", 1, 1]);
  assert.equal(types(seen).at(-1), "finish");
});

test("every chunk names its run, and the run is one", async () => {
  const runId = randomUUID();
  const seen = await stream(conversation(), "@say Hello", { runId });
  assert.deepEqual([...new Set(seen.map((chunk) => chunk.runId))], [runId]);
  assert.equal(of(seen, "start")[0].payload.id, "template-agent");
});

test("a text comes in pieces", async () => {
  const seen = await stream(conversation(), `@say ${"word ".repeat(40)}`);
  assert.ok(of(seen, "text-delta").length > 5, types(seen).join(" "));
});

test("a streamed turn is stored once, under the id that the stream told", async () => {
  const talk = conversation();
  const seen = await stream(talk, "@say Hello");
  const stored = await talk.messages();
  assert.deepEqual(stored.map((message) => [message.role, textOf(message)]), [["user", "@say Hello"], ["assistant", "Hello"]]);
  assert.equal(stored[1].id, of(seen, "start")[0].payload.messageId);
});

test("finish tells the text and the usage", async () => {
  const { output } = of(await stream(conversation(), "@say Hello"), "finish")[0].payload;
  assert.ok(output.usage.totalTokens > 0);
});

test("a tool call streams in order, arguments first", async () => {
  const seen = await stream(conversation(), '@call getWeather {"city":"Oslo"}\n@say It is 21C');
  assertOrder(seen, ["start", "step-start", "tool-call", "tool-result", "step-finish", "step-start", "text-delta", "step-finish", "finish"]);
  const [{ payload: call }] = of(seen, "tool-call");
  const [{ payload: result }] = of(seen, "tool-result");
  assert.deepEqual([call.toolName, call.args, result.toolCallId, result.result], ["getWeather", { city: "Oslo" }, call.toolCallId, { city: "Oslo", tempC: 21 }]);
  assert.deepEqual(of(seen, "step-finish").map((chunk) => chunk.payload.stepResult.isContinued), [true, false]);
  const deltas = of(seen, "tool-call-delta");
  if (deltas.length) {
    assertOrder(seen, ["tool-call-input-streaming-start", "tool-call-delta", "tool-call"]);
    assert.deepEqual(JSON.parse(deltas.map((chunk) => chunk.payload.argsTextDelta).join("")), { city: "Oslo" });
  }
});

test("chunks leave while the run goes on", async () => {
  const seen = await stream(conversation(), '@call getWeather {"city":"Oslo"}\n@wait 1500\n@say late');
  const [result] = of(seen, "tool-result");
  assert.ok(seen.at(-1).at - result.at > 1000, "the tool's result came together with the end");
});

test("arguments that break the schema are told, and the run goes on", async () => {
  const seen = await stream(conversation(), '@call getWeather {"city":5}\n@say sorry');
  assert.equal(of(seen, "tool-result").length + of(seen, "tool-error").length, 1);
  assert.deepEqual([text(seen), reason(seen)], ["sorry", "stop"]);
});

test("the next stream is shown what was streamed before", async () => {
  const talk = conversation();
  await stream(talk, "My boat is called Petrel.\n@say A fine name.");
  const { user } = JSON.parse(text(await stream(talk, "@dump")));
  assert.deepEqual(user, ["My boat is called Petrel.\n@say A fine name.", "@dump"]);
});

test("a client tool is run by the client in the middle of the stream", async () => {
  const { tools, calls } = pickColor();
  const seen = await stream(conversation(), '@call pickColor {"hint":"sea"}\n@say teal it is', { clientTools: tools });
  assert.deepEqual([text(seen), calls], ["teal it is", [{ hint: "sea" }]]);
  assertOrder(seen, ["tool-call", "finish", "tool-result", "text-delta", "finish"]);
});

test("a client tool's call in a stream is stored with arguments and result", async () => {
  const talk = conversation();
  await stream(talk, '@call pickColor {"hint":"sea"}\n@say teal it is', { clientTools: pickColor().tools });
  assert.deepEqual(invocations(await talk.messages()).map(({ state, args, result }) => [state, args, result]), [["result", { hint: "sea" }, { color: "teal" }]]);
});

test("a client tool works in a stream without a thread", async () => {
  const { tools, calls } = pickColor();
  const question = [{ role: "user", content: '@call pickColor {"hint":"sea"}\n@say teal it is' }];
  const seen = await chunks(await client.getAgent("plain-agent").stream(question, { clientTools: tools }));
  assert.deepEqual([text(seen), calls.length], ["teal it is", 1]);
});

test("structured output streams its object", async () => {
  const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
  const seen = await chunks(await client.getAgent("plain-agent").stream('@say {"city":"Rome"}', { structuredOutput: { schema } }));
  assert.deepEqual(of(seen, "object-result").map((chunk) => chunk.object), [{ city: "Rome" }]);
});

test("what is wrong before the run is a plain error, not a stream", async () => {
  const talk = conversation();
  await talk.create();
  await refused(client.getAgent("nope").stream("hi"), 404);
  await refused(talk.agent.stream("hi", { memory: { ...talk.memory, resource: "user-mallory" } }), 403);
  await refused(talk.agent.stream("", { memory: talk.memory }), 400);
});

test("a model that fails ends the stream with error and finish, and stores nothing", async () => {
  const talk = conversation();
  await talk.create();
  const seen = await stream(talk, "@fail 400 bad request");
  assertOrder(seen, ["error", "finish"]);
  assert.equal(reason(seen), "error");
  assert.ok(!JSON.stringify(seen).includes("requestBodyValues"));
  assert.deepEqual(await talk.messages(), []);
});

test("streamUntilIdle and untilIdle stream the same", async () => {
  for (const seen of [
    await chunks(await conversation().agent.streamUntilIdle("@say idle")),
    await stream(conversation(), "@say idle", { untilIdle: true }),
  ])
    assert.deepEqual([text(seen), reason(seen)], ["idle", "stop"]);
});

test("hanging up leaves a thread that can be talked in", async () => {
  const talk = conversation();
  await talk.create();
  const stop = new AbortController();
  const response = await talk.agent.stream("@wait 1500\n@say never seen", { memory: talk.memory, abortSignal: stop.signal });
  setTimeout(() => stop.abort(), 300);
  await chunks(response).catch(() => []);
  assert.equal(text(await stream(talk, "@say still here")), "still here");
});

test("the model writes working memory in a stream, and the next one shows it", async () => {
  for (const [agentId, memory] of [["template-agent", "# User Profile\n- Name: Ada\n"], ["thread-agent", "# User Profile\n- Name: Ada\n"], ["schema-agent", { name: "Ada" }]]) {
    const talk = conversation(agentId);
    const seen = await stream(talk, `@call updateWorkingMemory ${JSON.stringify({ memory })}\n@say Noted`);
    assert.deepEqual([text(seen), of(seen, "tool-result")[0].payload.result.success], ["Noted", true]);
    const { workingMemory } = await client.getWorkingMemory({ agentId, threadId: talk.thread, resourceId: talk.resource });
    assert.match(workingMemory, /Ada/);
    assert.match(JSON.parse(text(await stream(talk, "@dump"))).system.join("\n"), /Ada/);
  }
});

test("another user cannot stream in a thread", async () => {
  const talk = conversation("template-agent", { by: ada(), resource: "user-ada" });
  await stream(talk, "secret\n@say ok");
  await refused(eve().getAgent("template-agent").stream("@dump", { memory: talk.memory }), 403);
});

test("a stream that is lost before its first byte is run once under a run id", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  const question = `${newId("stream")}\n@say Once`;
  proxy.drop(1);
  const seen = await stream(talk, question, { runId: randomUUID() });
  assert.equal(text(seen), "Once");
  assert.deepEqual([(await talk.messages()).length, (await modelCalls(question)).length], [2, 1]);
});
