// Stands for GitHub's cache service: a folder for each ref. A run reads those of its own ref, of a pull
// request's base and of the default branch, in this order, and writes only its own:
// https://docs.github.com/en/actions/reference/workflows-and-actions/dependency-caching
const path = require("node:path");

const input = (name) => process.env[`INPUT_${name.toUpperCase()}`] ?? "";
const { STANDIN_CACHES, GITHUB_REF, GITHUB_BASE_REF, GITHUB_WORKSPACE } = process.env;
const scope = (ref) => path.join(STANDIN_CACHES, encodeURIComponent(ref));

exports.folder = path.resolve(GITHUB_WORKSPACE, input("path"));
exports.key = input("key");
exports.prefixes = input("restore-keys").split("\n").filter((line) => line.trim());
exports.own = scope(GITHUB_REF);
const refs = [GITHUB_REF, GITHUB_BASE_REF && `refs/heads/${GITHUB_BASE_REF}`, "refs/heads/main"];
exports.readable = [...new Set(refs.filter(Boolean))].map(scope);
