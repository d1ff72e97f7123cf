// needs: POST /api/agents/{agentId}/approve-tool-call

import assert from "node:assert/strict";
import { test } from "node:test";

import { assertOrder, chunks, of, reason, text, types } from "./streams.mjs";
import { conversation } from "./support.mjs";

/** A stream that waits for an approval of `deleteFile`. */
async function waiting() {
  const talk = conversation();
  const seen = await chunks(await talk.agent.stream('@call deleteFile {"path":"/x"}\n@say decided', { memory: talk.memory }));
  const [{ runId, payload }] = of(seen, "tool-call-approval");
  return { talk, seen, pending: { runId, toolCallId: payload.toolCallId } };
}

test("a stream that needs approval asks for it and ends without finish", async () => {
  const { seen } = await waiting();
  assertOrder(seen, ["start", "tool-call", "tool-call-approval"]);
  assert.ok(!types(seen).includes("finish"));
  assert.deepEqual(of(seen, "tool-call-approval")[0].payload.args, { path: "/x" });
});

test("an approved call streams its result and the rest of the run", async () => {
  const { talk, pending } = await waiting();
  const seen = await chunks(await talk.agent.approveToolCall(pending));
  assertOrder(seen, ["tool-result", "text-delta", "finish"]);
  assert.deepEqual([of(seen, "tool-result")[0].payload.result, text(seen), reason(seen)], [{ deleted: "/x" }, "decided", "stop"]);
  assert.ok(!types(seen).includes("start"));
});

test("a declined call streams its refusal and the rest of the run", async () => {
  const { talk, pending } = await waiting();
  const seen = await chunks(await talk.agent.declineToolCall({ ...pending, reason: "no" }));
  assertOrder(seen, ["tool-output-denied", "text-delta", "finish"]);
  assert.deepEqual([of(seen, "tool-output-denied")[0].payload.approval.reason, text(seen)], ["no", "decided"]);
});
