// The programs of a guide: its named blocks, written into a folder in which they run.

import { mkdtempSync, readFileSync, rmSync, symlinkSync, mkdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

const HERE = import.meta.dirname;
const NAMED = /^`([\w./[\]-]+\.\w+)`:\n\n```\w+\n(.*?)^```$/gms;

/** What a page of `docs` shows of each file that it names: a line with the name in backticks, then a block. */
export function files(page) {
  const text = readFileSync(join(HERE, "../../docs", page), "utf8");
  return Object.fromEntries([...text.matchAll(NAMED)].map(([, name, code]) => [name, code]));
}

/** A folder with the files of a page, beside the packages of these checks; `instead` replaces some. */
export function project(t, page, instead = {}) {
  const folder = mkdtempSync(join(tmpdir(), "guide-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  symlinkSync(join(HERE, "node_modules"), join(folder, "node_modules"));
  for (const [name, code] of Object.entries({ ...files(page), ...instead })) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), code);
  }
  return folder;
}

/** The versions that a page tells its readers to install, by package: in commands and in its `package.json`. */
export function pinned(page) {
  const text = readFileSync(join(HERE, "../../docs", page), "utf8");
  const commands = [...text.matchAll(/^npm install (.+)$/gm)].flatMap(([, words]) => words.split(" "));
  const { dependencies = {}, devDependencies = {} } = JSON.parse(files(page)["package.json"] ?? "{}");
  const told = commands.map((word) => [word.slice(0, word.lastIndexOf("@")), word.slice(word.lastIndexOf("@") + 1)]);
  return { ...Object.fromEntries(told), ...dependencies, ...devDependencies };
}

/** The versions that these checks run with. */
export const installed = JSON.parse(readFileSync(join(HERE, "package.json"), "utf8")).dependencies;
