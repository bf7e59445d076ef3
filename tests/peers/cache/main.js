const fs = require("node:fs");
const path = require("node:path");
const { folder, key, prefixes, readable } = require("./cache.js");

const entries = (scope) => {
  const names = fs.existsSync(scope) ? fs.readdirSync(scope) : [];
  const age = (name) => fs.statSync(path.join(scope, name)).mtimeMs;
  return names.sort((a, b) => age(b) - age(a));
};
const found = readable
  .flatMap((scope) => {
    const matches = (prefix) => entries(scope).filter((name) => name.startsWith(prefix));
    const exact = entries(scope).filter((name) => name === key);
    return [...exact, ...prefixes.flatMap(matches)].map((name) => path.join(scope, name));
  })
  .at(0);
if (found) fs.cpSync(found, folder, { recursive: true });
console.log(found ? `Cache restored from key: ${path.basename(found)}` : "Cache not found");
