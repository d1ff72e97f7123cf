// needs: POST /api/memory/threads/{threadId}/working-memory

import assert from "node:assert/strict";
import { test } from "node:test";

import { ada, client, conversation, eve, fields, newId, raw, refused } from "./support.mjs";

const ADA = "# User Profile\n- Name: Ada\n";
const GRACE = "# User Profile\n- Name: Grace\n";
const TEMPLATE = { format: "markdown", content: "# User Profile\n- Name:\n- Location:\n- Interests:" };

const of = ({ agentId, thread, resource }) => ({ agentId, threadId: thread, resourceId: resource });
const read = (talk, more = {}) => client.getWorkingMemory({ ...of(talk), ...more });
const write = (talk, workingMemory, more = {}) => client.updateWorkingMemory({ ...of(talk), workingMemory, ...more });
const kept = async (talk) => (await read(talk)).workingMemory;

async function created(agentId, more = {}) {
  const talk = conversation(agentId, more);
  await talk.create();
  return talk;
}

test("a template memory is empty at first and shows its template", async () => {
  const talk = conversation();
  assert.deepEqual(await read(talk), { workingMemory: null, source: "resource", workingMemoryTemplate: TEMPLATE, threadExists: false });
  await talk.create();
  assert.equal((await read(talk)).threadExists, true);
});

test("a resource's memory is seen from all of its threads", async () => {
  const talk = await created("template-agent");
  assert.deepEqual(await write(talk, ADA), { success: true });
  assert.deepEqual([await kept(talk), await kept(await created("template-agent", { resource: talk.resource }))], [ADA, ADA]);
  assert.equal(await kept(await created("template-agent")), null);
});

test("a resource's memory is there before its thread, and outlives it", async () => {
  const talk = await created("template-agent");
  await write(talk, ADA);
  await talk.handle.delete();
  const found = await read(talk);
  assert.deepEqual([found.workingMemory, found.threadExists], [ADA, false]);
});

test("a thread's memory stays with the thread", async () => {
  const talk = await created("thread-agent");
  await write(talk, ADA);
  const found = await read(talk);
  assert.deepEqual([found.workingMemory, found.source, found.workingMemoryTemplate], [ADA, "thread", TEMPLATE]);
  assert.equal(await kept(await created("thread-agent", { resource: talk.resource })), null);
});

test("a thread's memory is deleted with the thread", async () => {
  const talk = await created("thread-agent");
  await write(talk, ADA);
  await talk.handle.delete();
  const found = await read(talk);
  assert.deepEqual([found.workingMemory, found.threadExists], [null, false]);
});

test("a schema memory is JSON text, its template an empty object", async () => {
  const talk = await created("schema-agent");
  const empty = await read(talk);
  assert.deepEqual([empty.workingMemory, empty.source, empty.workingMemoryTemplate.format], [null, "resource", "json"]);
  assert.deepEqual(JSON.parse(empty.workingMemoryTemplate.content), { name: "", location: "", tags: [], prefs: { color: "", size: "" } });
  const given = { name: "Ada", tags: ["math"], more: { kept: true } };
  await write(talk, JSON.stringify(given));
  assert.deepEqual(JSON.parse(await kept(talk)), given);
});

test("a write replaces what was there, also for a schema", async () => {
  const talk = await created("schema-agent");
  await write(talk, '{"name":"Ada","tags":["math"]}');
  await write(talk, '{"location":"Paris"}');
  assert.deepEqual(JSON.parse(await kept(talk)), { location: "Paris" });
});

test("what is no JSON or breaks the schema is refused and changes nothing", async () => {
  const talk = await created("schema-agent");
  await write(talk, '{"name":"Ada"}');
  for (const broken of ["not json", '{"name":5}', '{"tags":"math"}', "[]"])
    assert.match(fields(await refused(write(talk, broken), 400))[0], /^workingMemory/);
  assert.deepEqual(JSON.parse(await kept(talk)), { name: "Ada" });
});

test("an empty text and what is no text are refused and change nothing", async () => {
  const talk = await created("template-agent");
  await write(talk, ADA);
  await refused(write(talk, ""), 400);
  for (const wrong of [5, ["x"], { name: "x" }, undefined]) assert.deepEqual(fields(await refused(write(talk, wrong), 400)), ["workingMemory"]);
  assert.equal(await kept(talk), ADA);
});

test("a text that is too large is refused by name", async () => {
  const talk = await created("template-agent");
  assert.deepEqual(fields(await refused(write(talk, "x".repeat(32_769)), 400)), ["workingMemory"]);
  assert.deepEqual(await write(talk, "x".repeat(32_768)), { success: true });
});

test("creating a thread with a memory in its metadata sets the thread's memory", async () => {
  const talk = conversation("thread-agent");
  const made = await talk.create({ metadata: { category: "support", workingMemory: ADA } });
  assert.deepEqual(made.metadata, { category: "support", workingMemory: ADA });
  assert.equal(await kept(talk), ADA);
});

test("the thread's metadata follows its memory, other metadata is left alone", async () => {
  const talk = conversation("thread-agent");
  await talk.create({ metadata: { category: "support" } });
  await write(talk, ADA);
  assert.deepEqual((await talk.handle.get()).metadata, { category: "support", workingMemory: ADA });
  const { threads } = await client.listMemoryThreads({ resourceId: talk.resource, agentId: talk.agentId });
  assert.equal(threads[0].metadata.workingMemory, ADA);
});

test("replacing a thread's metadata does not clear its memory", async () => {
  const talk = conversation("thread-agent");
  await talk.create({ metadata: { category: "support", workingMemory: ADA } });
  assert.deepEqual((await talk.handle.update({ metadata: { category: "sales" } })).metadata, { category: "sales", workingMemory: ADA });
  assert.deepEqual((await talk.handle.update({ metadata: { workingMemory: GRACE } })).metadata, { workingMemory: GRACE });
  assert.equal(await kept(talk), GRACE);
});

test("a missing thread is a 404 for writing", async () => {
  for (const agentId of ["thread-agent", "template-agent"]) await refused(write(conversation(agentId), ADA), 404);
});

test("a resource's memory cannot be written without naming the resource", async () => {
  const talk = await created("template-agent");
  assert.deepEqual(fields(await refused(write(talk, ADA, { resourceId: undefined }), 400)), ["resourceId"]);
});

test("a thread's memory is read and written without naming the owner", async () => {
  const talk = await created("thread-agent");
  await write(talk, ADA, { resourceId: undefined });
  assert.equal((await read(talk, { resourceId: undefined })).workingMemory, ADA);
});

test("another owner reads and writes nothing", async () => {
  for (const agentId of ["thread-agent", "template-agent", "schema-agent"]) {
    const talk = await created(agentId);
    await refused(read(talk, { resourceId: "user-mallory" }), 403);
    await refused(write(talk, ADA, { resourceId: "user-mallory" }), 403);
    assert.equal(await kept(talk), null);
  }
});

test("an agent without memory has nothing to read", async () => {
  const found = await read(conversation("plain-agent"));
  assert.deepEqual([found.workingMemory, found.source, found.workingMemoryTemplate], [null, "thread", null]);
});

test("users have a memory each, whatever owner they name", async () => {
  const [mine, hers] = [conversation("template-agent", { by: ada(), resource: "user-ada" }), conversation("template-agent", { by: eve(), resource: "user-eve" })];
  await Promise.all([mine.create(), hers.create()]);
  const text = `# User Profile\n- Name: ${newId("ada")}\n`;
  await ada().updateWorkingMemory({ ...of(mine), workingMemory: text });
  assert.equal((await ada().getWorkingMemory({ ...of(mine), resourceId: undefined })).workingMemory, text);
  assert.notEqual((await eve().getWorkingMemory({ ...of(hers), resourceId: "user-ada" })).workingMemory, text);
  await refused(eve().getWorkingMemory(of(mine)), 403);
  await refused(eve().updateWorkingMemory({ ...of(mine), workingMemory: "stolen" }), 403);
  assert.equal((await client.getWorkingMemory(of(mine))).workingMemory, text);
});

test("memory config tells each shape of working memory", async () => {
  const shape = async (agentId) => (await client.getMemoryConfig({ agentId })).config.workingMemory;
  const [template, thread, schema] = await Promise.all(["template-agent", "thread-agent", "schema-agent"].map(shape));
  assert.deepEqual([template.enabled, thread.enabled, schema.enabled, thread.scope], [true, true, true, "thread"]);
  assert.match(template.template, /# User Profile/);
  assert.deepEqual(Object.keys(schema.schema.properties), ["name", "location", "tags", "prefs"]);
});

test("a clone takes the thread's memory along", async () => {
  const talk = await created("thread-agent");
  await write(talk, ADA);
  const { thread } = await talk.handle.clone();
  const copy = { ...talk, thread: thread.id };
  assert.equal(await kept(copy), ADA);
  await write(copy, GRACE);
  assert.equal(await kept(talk), ADA);
});

test("the memory's version is told in ETag and guards a write", async () => {
  const talk = await created("template-agent");
  const path = `/api/memory/threads/${talk.thread}/working-memory?agentId=template-agent`;
  await write(talk, ADA);
  const body = JSON.stringify({ workingMemory: GRACE, resourceId: talk.resource });
  const stale = await raw("POST", path, { body, headers: { "if-match": '"0"' } });
  assert.deepEqual([stale.status, stale.body.version, await kept(talk)], [412, 1, ADA]);
  assert.equal((await raw("POST", path, { body, headers: { "if-match": '"1"' } })).status, 200);
  assert.equal(await kept(talk), GRACE);
});
