// What the checks of streams share.

import assert from "node:assert/strict";

/** Every chunk of a stream, with the time at which it came, once the stream has ended. */
export async function chunks(response) {
  const seen = [];
  await response.processDataStream({ onChunk: async (chunk) => void seen.push({ ...chunk, at: Date.now() }) });
  return seen;
}

export const types = (seen) => seen.map((chunk) => chunk.type);
export const of = (seen, type) => seen.filter((chunk) => chunk.type === type);
export const text = (seen) => of(seen, "text-delta").map((chunk) => chunk.payload.text).join("");

/** The reason for which a run finished. */
export const reason = (seen) => of(seen, "finish").at(-1)?.payload.stepResult.reason;

/** Fails unless these types come in this order; others may stand between them. */
export function assertOrder(seen, wanted) {
  const found = types(seen);
  let at = -1;
  for (const type of wanted) {
    const next = found.indexOf(type, at + 1);
    assert.ok(next >= 0, `${type} is not after ${found[at] ?? "the beginning"} in ${found.join(" ")}`);
    at = next;
  }
}

/** A subscription to a thread. `until(type, count)`: the chunks so far, once there are so many of that type. */
export async function subscribed(t, talk, by = talk.agent) {
  const subscription = await by.subscribeToThread({ threadId: talk.thread, resourceId: talk.resource });
  const seen = [];
  const ended = subscription.processDataStream({ onChunk: async (chunk) => void seen.push(chunk) }).catch(() => {});
  t.after(async () => (subscription.unsubscribe(), await ended));
  async function until(type, count = 1) {
    for (let waited = 0; of(seen, type).length < count; waited += 50) {
      assert.ok(waited < 15_000, `no ${type} in ${JSON.stringify(seen.map((chunk) => chunk.type))}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return seen;
  }
  return { until };
}

/** Sends a message to the thread of a conversation. */
export const send = (talk, message, more = {}) => talk.agent.sendMessage({ message, resourceId: talk.resource, threadId: talk.thread, ...more });
