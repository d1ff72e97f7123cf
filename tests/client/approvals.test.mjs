// needs: POST /api/agents/{agentId}/approve-tool-call-generate

import assert from "node:assert/strict";
import { test } from "node:test";

import { ada, client, clientWith, conversation, eve, newId, prompt, refused } from "./support.mjs";

const ASK = '@call deleteFile {"path":"/x"}\n@dump';
const invocations = (messages) =>
  messages.flatMap((message) => message.content.parts).filter((part) => part.type === "tool-invocation").map((part) => part.toolInvocation);

/** A conversation whose run waits for an approval of `deleteFile`. */
async function waiting(more = {}) {
  const talk = conversation("template-agent", more);
  const reply = await talk.say(ASK);
  return { talk, reply, pending: { runId: reply.runId, toolCallId: reply.suspendPayload?.toolCallId } };
}

test("a tool that needs approval suspends the run and tells what for", async () => {
  const { reply } = await waiting();
  assert.equal(reply.finishReason, "suspended");
  assert.deepEqual([reply.suspendPayload.toolName, reply.suspendPayload.args], ["deleteFile", { path: "/x" }]);
  assert.deepEqual(JSON.parse(reply.resumeSchema).required, ["approved"]);
});

test("an approved call is run and the model goes on", async () => {
  const { talk, pending } = await waiting();
  const reply = await talk.agent.approveToolCallGenerate(pending);
  assert.equal(reply.finishReason, "stop");
  assert.match(prompt(reply).messages.at(-1).content, /"deleted": ?"\/x"/);
  assert.deepEqual(invocations(await talk.messages()).map(({ state, result }) => [state, result]), [["result", { deleted: "/x" }]]);
});

test("a declined call is not run and the model is told why", async () => {
  const { talk, pending } = await waiting();
  const reply = await talk.agent.declineToolCallGenerate({ ...pending, reason: "too dangerous" });
  assert.match(prompt(reply).messages.at(-1).content, /too dangerous/);
  const [call] = invocations(await talk.messages());
  assert.deepEqual([call.state, call.approval.approved, call.approval.reason], ["output-denied", false, "too dangerous"]);
});

test("requireToolApproval asks for every tool", async () => {
  const reply = await conversation().say('@call getWeather {"city":"Oslo"}\n@say ok', { requireToolApproval: true });
  assert.deepEqual([reply.finishReason, reply.suspendPayload.toolName], ["suspended", "getWeather"]);
});

test("a call is decided once, a second decision runs nothing", async () => {
  const { talk, pending } = await waiting();
  await talk.agent.approveToolCallGenerate(pending);
  await talk.agent.declineToolCallGenerate(pending).catch((error) => assert.ok(error.status < 500, String(error)));
  assert.deepEqual(invocations(await talk.messages()).map((call) => call.state), ["result"]);
});

test("an unknown run cannot be approved, and is asked for once", async () => {
  let asked = 0;
  const counting = clientWith({ fetch: (...request) => (asked++, fetch(...request)) });
  const unknown = { runId: newId("run"), toolCallId: "call-1" };
  await refused(counting.getAgent("template-agent").approveToolCallGenerate(unknown), 404);
  assert.equal(asked, 1);
});

test("another user cannot approve", async () => {
  const { talk, pending } = await waiting({ by: ada(), resource: "user-ada" });
  const error = await eve().getAgent("template-agent").approveToolCallGenerate(pending).catch((error) => error);
  assert.ok([403, 404].includes(error.status), String(error));
  assert.equal((await talk.agent.approveToolCallGenerate(pending)).finishReason, "stop");
});

test("suspended runs are listed until they are decided", async () => {
  const { talk, pending } = await waiting();
  const list = () => client.getAgent("template-agent").listSuspendedRuns({ threadId: talk.thread, resourceId: talk.resource });
  const { runs, total } = await list();
  assert.deepEqual([total, runs[0].runId, runs[0].status, runs[0].toolCalls[0].toolCallId], [1, pending.runId, "suspended", pending.toolCallId]);
  await talk.agent.approveToolCallGenerate(pending);
  assert.equal((await list()).total, 0);
});
