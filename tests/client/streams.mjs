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
