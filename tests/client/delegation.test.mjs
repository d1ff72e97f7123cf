// needs: POST /api/agents/{agentId}/stream

import assert from "node:assert/strict";
import { test } from "node:test";

import { assertOrder, chunks, of, reason, send, subscribed, text, types } from "./streams.mjs";
import { ada, client, conversation, refused, textOf } from "./support.mjs";

const asks = (key, prompt) => `@call agent-${key} ${JSON.stringify({ prompt })}`;
const ASKED = `${asks("researcher", "@say The answer is 42")}\n@say Researcher says 42`;
const talkTo = (agent = "supervisor", more = {}) => conversation(agent, more);
const streamed = async (talk, messages, more = {}) => chunks(await talk.agent.stream(messages, { memory: talk.memory, ...more }));
const nested = (seen) => of(seen, "tool-output").map((chunk) => chunk.payload.output);
const calls = (messages) =>
  messages.flatMap((message) => message.content.parts).filter((part) => part.type === "tool-invocation").map((part) => part.toolInvocation);
const threadsOf = async (talk) => (await client.listMemoryThreads({ agentId: talk.agentId, resourceId: talk.resource })).threads;

/** Fails if a spelling that is only for the inside is in a reply. */
const assertOuter = (reply) => assert.doesNotMatch(JSON.stringify(reply), /\\u001[ef]/);

test("a sub-agent stands under its supervisor, and not in the list", async () => {
  const agents = await client.listAgents();
  assert.deepEqual(agents.supervisor.agents, { researcher: { id: "researcher", name: "Researcher" } });
  assert.deepEqual([agents.supervisor.tools, agents.researcher], [{}, undefined]);
});

test("a sub-agent is read and called by its id", async () => {
  const researcher = client.getAgent("researcher");
  const { name, description, tools, agents } = await researcher.details();
  assert.deepEqual([name, description, agents], ["Researcher", "Researches a topic and reports back.", {}]);
  assert.deepEqual([Object.keys(tools), tools.getWeather.id], [["getWeather"], "get-weather"]);
  assert.equal((await researcher.generate("@say Directly")).text, "Directly");
});

test("generate answers with the sub-agent's result as a tool's", async () => {
  const talk = talkTo();
  const reply = await talk.say(ASKED);
  assert.deepEqual([reply.text, reply.finishReason, reply.steps.length], ["Researcher says 42", "stop", 2]);
  const [{ payload }] = reply.toolResults;
  assert.deepEqual([payload.toolName, payload.args], ["agent-researcher", { prompt: "@say The answer is 42" }]);
  const { subAgentThreadId, ...result } = payload.result;
  assert.deepEqual(result, { text: "The answer is 42", subAgentResourceId: `${talk.resource}-researcher`, subAgentToolResults: [] });
  assert.match(subAgentThreadId, new RegExp(`^${talk.thread}-[0-9a-f-]{36}$`));
  assertOuter(reply);
});

test("the supervisor's thread has two messages after a reload, the sub-agent's is apart", async () => {
  const talk = talkTo();
  const reply = await talk.say(ASKED);
  const messages = await talk.messages();
  assert.deepEqual(messages.map((message) => [message.role, textOf(message)]), [["user", ASKED], ["assistant", "Researcher says 42"]]);
  const [{ state, result }] = calls(messages);
  assert.deepEqual([state, result], ["result", reply.toolResults[0].payload.result]);
  assert.deepEqual((await threadsOf(talk)).map(({ id }) => id), [talk.thread]);
  const below = client.getMemoryThread({ threadId: result.subAgentThreadId, agentId: "researcher" });
  const { messages: said } = await below.listMessages();
  assert.deepEqual(said.map((message) => [message.role, textOf(message)]), [["user", "@say The answer is 42"], ["assistant", "The answer is 42"]]);
  assert.deepEqual([...new Set(said.map(({ resourceId }) => resourceId))], [`${talk.resource}-researcher`]);
});

test("tools of the sub-agent are told in the result", async () => {
  const prompt = '@call getWeather {"city":"Oslo"}\n@say It is 21C';
  const reply = await talkTo().say(`${asks("researcher", prompt)}\n@say ok`);
  const { text: said, subAgentToolResults } = reply.toolResults[0].payload.result;
  assert.equal(said, "It is 21C");
  assert.deepEqual(subAgentToolResults.map(({ toolName, args, result }) => [toolName, args, result]), [["getWeather", { city: "Oslo" }, { city: "Oslo", tempC: 21 }]]);
});

test("no user's token opens a sub-agent's thread, also not the user's own", async () => {
  const talk = talkTo("supervisor", { by: ada(), resource: "user-ada" });
  const threadId = (await talk.say(ASKED)).toolResults[0].payload.result.subAgentThreadId;
  const below = ada().getMemoryThread({ threadId, agentId: "researcher" });
  await refused(below.get(), 403);
  await refused(below.listMessages(), 403);
  await refused(ada().getAgent("template-agent").generate("@dump", { memory: { thread: threadId, resource: "user-ada" } }), 403);
  const { threads } = await ada().listMemoryThreads({ agentId: "supervisor", perPage: 100 });
  assert.ok(threads.some(({ id }) => id === talk.thread) && !threads.some(({ id }) => id === threadId));
});

test("the spelled owner of a sub-agent's thread opens nothing", async () => {
  const talk = talkTo();
  const threadId = (await talk.say(ASKED)).toolResults[0].payload.result.subAgentThreadId;
  await refused(client.getMemoryThread({ threadId, agentId: "researcher" }).listMessages({ resourceId: `${talk.resource}-researcher` }), 403);
});

test("deleting the supervisor's thread deletes its sub-agents' threads", async () => {
  const talk = talkTo();
  const threadId = (await talk.say(ASKED)).toolResults[0].payload.result.subAgentThreadId;
  const below = client.getMemoryThread({ threadId, agentId: "researcher" });
  assert.equal((await below.get()).resourceId, `${talk.resource}-researcher`);
  await talk.handle.delete();
  const gone = async () => below.get().then(() => false, ({ status }) => status === 404);
  for (let waited = 0; !(await gone()); waited += 200) {
    assert.ok(waited < 15_000, "it is still there");
    await new Promise((soon) => setTimeout(soon, 200));
  }
});

test("a stream has the sub-agent's own chunks inside, between call and result", async () => {
  const talk = talkTo();
  const seen = await streamed(talk, ASKED);
  assertOrder(seen, ["start", "tool-call", "tool-output", "tool-result", "step-finish", "text-delta", "finish"]);
  assert.deepEqual([text(seen), reason(seen)], ["Researcher says 42", "stop"]);
  const inner = nested(seen);
  assertOrder(inner, ["start", "step-start", "text-delta", "step-finish", "finish"]);
  assert.deepEqual([text(inner), reason(inner), inner[0].payload.id], ["The answer is 42", "stop", "researcher"]);
  assert.deepEqual([inner[0].type, inner.at(-1).type], ["start", "finish"]);
  const runs = [seen, inner].map((all) => [...new Set(all.map((chunk) => chunk.runId))]);
  assert.deepEqual([runs[0].length, runs[1].length, runs[0][0] === runs[1][0]], [1, 1, false]);
  const wrapped = of(seen, "tool-output");
  assert.deepEqual([...new Set(wrapped.map(({ from, payload }) => `${from} ${payload.toolName}`))], ["USER agent-researcher"]);
  assertOuter(seen);
});

test("a streamed delegation is stored as a generated one is", async () => {
  const talk = talkTo();
  const seen = await streamed(talk, ASKED);
  const messages = await talk.messages();
  assert.deepEqual(messages.map((message) => [message.role, textOf(message)]), [["user", ASKED], ["assistant", "Researcher says 42"]]);
  assert.equal(messages[1].id, of(seen, "start")[0].payload.messageId);
  assert.deepEqual(calls(messages)[0].result, of(seen, "tool-result")[0].payload.result);
});

test("what the sub-agent says leaves while it says it", async () => {
  const seen = await streamed(talkTo(), `${asks("researcher", "@pause 300\n@say one two three four")}\n@say ok`);
  const said = of(seen, "tool-output").filter(({ payload }) => payload.output.type === "text-delta");
  assert.ok(said.at(-1).at - said[0].at > 200, "the pieces came together");
});

test("two sub-agents of one step work at the same time, each in its order", async () => {
  const both = `${asks("researcher", "@pause 50\n@say one two")} && agent-researcher ${JSON.stringify({ prompt: "@pause 50\n@say three four" })}\n@say ok`;
  const seen = await streamed(talkTo(), both);
  const order = of(seen, "tool-call").map(({ payload }) => payload.toolCallId);
  const said = order.map((id) => text(of(seen, "tool-output").filter(({ payload }) => payload.toolCallId === id).map(({ payload }) => payload.output)));
  assert.deepEqual(said, ["one two", "three four"]);
  assert.deepEqual(of(seen, "tool-result").map(({ payload }) => payload.toolCallId), order);
  const threads = of(seen, "tool-result").map(({ payload }) => payload.result.subAgentThreadId);
  assert.equal(new Set(threads).size, 2);
});

test("a sub-agent that fails is an error of the call, and the run goes on", async () => {
  const seen = await streamed(talkTo(), `${asks("researcher", "@fail 400 secret cause")}\n@say sorry`);
  assert.deepEqual([text(seen), reason(seen)], ["sorry", "stop"]);
  assert.match(of(seen, "tool-error")[0].payload.error.message, /Failed agent tool execution for researcher/);
  assert.equal(nested(seen).at(-1).type, "finish");
});

test("data that a sub-agent's tool tells come up, and are in the stored answer", async () => {
  const talk = talkTo("limited-agent");
  const prompt = '@call survey {"field":"north"}\n@say surveyed';
  const seen = await streamed(talk, `${asks("surveyor", prompt)}\n@say done`);
  assert.deepEqual(of(seen, "data-progress").map(({ data }) => data), [{ field: "north", done: 100 }]);
  const [, answer] = await talk.messages();
  assert.deepEqual(answer.content.parts.filter(({ type }) => type === "data-progress"), [{ type: "data-progress", data: { field: "north", done: 100 } }]);
  const [, generated] = (await talk.say(`${asks("surveyor", prompt)}\n@say done`)).response.dbMessages[0].content.parts;
  assert.deepEqual(generated, { type: "data-progress", data: { field: "north", done: 100 } });
});

test("the limit at which a run ends is its finish reason", async () => {
  const asked = `${asks("surveyor", "@say one")}\n${asks("surveyor", "@say two")}\n@say never`;
  const talk = talkTo("limited-agent");
  const reply = await talk.say(asked);
  assert.deepEqual([reply.finishReason, reply.text], ["max-delegations", ""]);
  assert.deepEqual(calls(await talk.messages()).map(({ state }) => state), ["result", "output-error"]);
  const seen = await streamed(talkTo("limited-agent"), asked);
  assert.deepEqual([reason(seen), types(seen).at(-1)], ["max-delegations", "finish"]);
});

test("subscribers see what sub-agents say", async (t) => {
  const talk = talkTo();
  const { until } = await subscribed(t, talk);
  await send(talk, ASKED);
  const seen = await until("finish");
  assertOrder(seen, ["data-user-message", "start", "tool-call", "tool-output", "tool-result", "text-delta", "finish"]);
  assert.equal(text(nested(seen)), "The answer is 42");
  assertOuter(seen);
});

test("a client that hangs up while a sub-agent speaks finds what it has seen", async () => {
  const talk = talkTo();
  const stop = new AbortController();
  const response = await talk.agent.stream(`${asks("researcher", `@pause 200\n@say ${"word ".repeat(50)}`)}\n@say never`, { memory: talk.memory, abortSignal: stop.signal });
  const onChunk = async ({ type, payload }) => void (type === "tool-output" && payload.output.type === "text-delta" && stop.abort());
  await response.processDataStream({ onChunk }).catch(() => {});
  let messages = [];
  for (let waited = 0; messages.length < 2; waited += 200) {
    assert.ok(waited < 20_000, "nothing is stored");
    await new Promise((soon) => setTimeout(soon, 200));
    messages = await talk.messages().catch(() => []);
  }
  assert.equal(messages[1].content.metadata.aborted, true);
  assert.equal(textOf((await talk.say("@say still here")).messages.at(-1)), "still here");
});
