// needs: POST /api/memory/threads/{threadId}/working-memory

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { flaky } from "./flaky.mjs";
import { client, conversation, prompt, raw } from "./support.mjs";

const ADA = "# User Profile\n- Name: Ada\n- Location: London\n";
const update = (memory) => `@call updateWorkingMemory ${JSON.stringify({ memory })}`;
const of = ({ agentId, thread, resource }) => ({ agentId, threadId: thread, resourceId: resource });
const kept = async (talk) => (await client.getWorkingMemory(of(talk))).workingMemory;
const systemOf = (reply) => prompt(reply).system.join("\n");

test("the model writes a template memory with its tool", async () => {
  const talk = conversation();
  const reply = await talk.say(`My name is Ada\n${update(ADA)}\n@say Noted, Ada`);
  assert.deepEqual([reply.text, reply.toolResults[0].payload.result.success], ["Noted, Ada", true]);
  assert.equal((await kept(talk)).trim(), ADA.trim());
});

test("the next turn shows the memory to the model, in all threads of the owner", async () => {
  const talk = conversation();
  await talk.say(`${update(ADA)}\n@say Noted`);
  const other = conversation("template-agent", { resource: talk.resource });
  for (const { say } of [talk, other]) assert.match(systemOf(await say("@dump")), /- Location: London/);
  assert.doesNotMatch(systemOf(await conversation().say("@dump")), /London/);
});

test("a thread's memory is shown in that thread only", async () => {
  const talk = conversation("thread-agent");
  await talk.say(`${update(ADA)}\n@say Noted`);
  assert.match(systemOf(await talk.say("@dump")), /- Location: London/);
  assert.doesNotMatch(systemOf(await conversation("thread-agent", { resource: talk.resource }).say("@dump")), /London/);
});

test("the model's updates of a schema memory are merged", async () => {
  const talk = conversation("schema-agent");
  await talk.say(`${update({ name: "Ada", tags: ["math", "art"], prefs: { color: "blue", size: "L" } })}\n@say ok`);
  await talk.say(`${update({ location: "Paris", tags: ["math"], prefs: { color: "red" } })}\n@say ok`);
  assert.deepEqual(JSON.parse(await kept(talk)), { name: "Ada", location: "Paris", tags: ["math"], prefs: { color: "red", size: "L" } });
});

test("an update that breaks the schema is told to the model and changes nothing", async () => {
  const talk = conversation("schema-agent");
  await talk.say(`${update({ name: "Ada" })}\n@say ok`);
  const reply = await talk.say(`${update({ name: 5 })}\n@dump`);
  assert.match(prompt(reply).messages.at(-1).content, /name/);
  assert.deepEqual(JSON.parse(await kept(talk)), { name: "Ada" });
});

test("calls of the memory's tool are not in the stored messages", async () => {
  const talk = conversation();
  await talk.say(`${update(ADA)}\n@say Noted`);
  const parts = (await talk.messages()).flatMap((message) => message.content.parts);
  assert.deepEqual(parts.filter((part) => part.type === "tool-invocation"), []);
  const { roles } = prompt(await talk.say("@dump"));
  assert.deepEqual(roles.filter((role) => role !== "system"), ["user", "assistant", "user"]);
});

test("an agent with memory offers the tool, one without does not", async () => {
  assert.ok(prompt(await conversation().say("@dump")).tools.includes("updateWorkingMemory"));
  assert.deepEqual(prompt(await client.getAgent("plain-agent").generate("@dump")).tools, []);
});

test("a read-only turn shows the memory and has no tool to write it", async () => {
  const talk = conversation();
  await talk.say(`${update(ADA)}\n@say Noted`);
  const reply = await talk.say("@dump", { memory: { ...talk.memory, options: { readOnly: true } } });
  assert.match(systemOf(reply), /- Location: London/);
  assert.ok(!prompt(reply).tools.includes("updateWorkingMemory"));
});

test("what is written over HTTP is in the next turn's prompt", async () => {
  const talk = conversation();
  await talk.create();
  await client.updateWorkingMemory({ ...of(talk), workingMemory: "# User Profile\n- Name: Grace\n" });
  assert.match(systemOf(await talk.say("@dump")), /- Name: Grace/);
});

test("a memory's write is done once when the turn's answer is lost", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  proxy.drop(2);
  await talk.say(`${update(ADA)}\n@say Noted`, { runId: randomUUID() });
  const { body } = await raw("GET", `/api/memory/resources/${talk.resource}/working-memory`);
  assert.deepEqual([body.version, body.workingMemory.trim()], [1, ADA.trim()]);
});

test("a memory written over HTTP is one version when its answer is lost", async (t) => {
  const proxy = await flaky(t);
  const talk = conversation("template-agent", { by: proxy.client });
  await talk.create();
  proxy.drop(3);
  await proxy.client.updateWorkingMemory({ ...of(talk), workingMemory: ADA });
  const { body } = await raw("GET", `/api/memory/resources/${talk.resource}/working-memory`);
  assert.deepEqual([body.version, body.workingMemory], [1, ADA]);
});
