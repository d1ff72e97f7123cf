// needs: POST /api/agents/{agentId}/send-tool-approval

import assert from "node:assert/strict";
import { test } from "node:test";

import { of, send, subscribed, text } from "./streams.mjs";
import { conversation } from "./support.mjs";

test("a tool that needs approval is approved through the thread", async (t) => {
  const talk = conversation();
  const { until } = await subscribed(t, talk);
  await send(talk, '@call deleteFile {"path":"/x"}\n@say deleted');
  const { toolCallId } = of(await until("tool-call-approval"), "tool-call-approval")[0].payload;
  const reply = await talk.agent.sendToolApproval({ resourceId: talk.resource, threadId: talk.thread, toolCallId, approved: true });
  assert.deepEqual([reply.accepted, reply.toolCallId], [true, toolCallId]);
  const seen = await until("finish");
  assert.deepEqual([of(seen, "tool-result")[0].payload.result, text(seen)], [{ deleted: "/x" }, "deleted"]);
});
