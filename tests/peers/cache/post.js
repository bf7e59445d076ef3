const fs = require("node:fs");
const path = require("node:path");
const { folder, key, own } = require("./cache.js");

const entry = path.join(own, key);
if (fs.existsSync(folder) && !fs.existsSync(entry)) {
  fs.cpSync(folder, entry, { recursive: true });
  console.log(`Cache saved with key: ${key}`);
}
