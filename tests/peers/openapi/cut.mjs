// Cuts GitHub's OpenAPI description down to the calls that crcr makes, with what they refer to.
//
// usage: node cut.mjs DESCRIPTION.json OUT.json
import { readFileSync, writeFileSync } from "node:fs";

const [from, to] = process.argv.slice(2);
const full = JSON.parse(readFileSync(from, "utf8"));

// `contents/{path}` is left out: prism can't route a path with slashes in a parameter.
const calls = {
  "/app": ["get"],
  "/app/hook/deliveries": ["get"],
  "/app/hook/deliveries/{delivery_id}/attempts": ["post"],
  "/app/installations/{installation_id}/access_tokens": ["post"],
  "/repos/{owner}/{repo}/installation": ["get"],
  "/repos/{owner}/{repo}/dispatches": ["post"],
  "/repos/{owner}/{repo}/git/commits/{commit_sha}": ["get"],
  "/repos/{owner}/{repo}/compare/{basehead}": ["get"],
  "/repos/{owner}/{repo}/issues/{issue_number}/comments": ["get", "post"],
  "/repos/{owner}/{repo}/issues/{issue_number}/labels": ["get"],
  "/repos/{owner}/{repo}/check-runs": ["post"],
  "/repos/{owner}/{repo}/check-runs/{check_run_id}": ["patch"],
  "/repos/{owner}/{repo}/check-suites/{check_suite_id}/check-runs": ["get"],
  "/repos/{owner}/{repo}/commits/{ref}/check-runs": ["get"],
  "/repos/{owner}/{repo}/actions/runs": ["get"],
  "/repos/{owner}/{repo}/actions/runs/{run_id}": ["get"],
  "/repos/{owner}/{repo}/actions/runs/{run_id}/rerun": ["post"],
  "/repos/{owner}/{repo}/actions/runs/{run_id}/rerun-failed-jobs": ["post"],
};

const paths = {};
for (const [path, methods] of Object.entries(calls)) {
  if (!full.paths[path]) throw new Error(`GitHub's description has no ${path}`);
  paths[path] = {};
  for (const method of methods) {
    const operation = full.paths[path][method];
    if (!operation) throw new Error(`GitHub's description has no ${method} ${path}`);
    // What the stand-in answers isn't GitHub's to promise: only what crcr sends is checked.
    const responses = Object.fromEntries(
      Object.keys(operation.responses).map((status) => [status, { description: "" }]),
    );
    paths[path][method] = { ...operation, responses };
    // Its description is a range in GitHub's search syntax; only its declared format is wrong.
    for (const parameter of operation.parameters ?? [])
      if (parameter.$ref === "#/components/parameters/created")
        delete full.components.parameters.created.schema.format;
  }
}

const components = {};
const visit = (node) => {
  if (Array.isArray(node)) return node.forEach(visit);
  if (node === null || typeof node !== "object") return;
  if (typeof node.$ref === "string") {
    const [kind, name] = node.$ref.replace("#/components/", "").split("/");
    components[kind] ??= {};
    if (!components[kind][name]) {
      components[kind][name] = full.components[kind][name];
      visit(components[kind][name]);
    }
  }
  Object.entries(node).forEach(([key, value]) => key !== "examples" && visit(value));
};
visit(paths);
writeFileSync(to, JSON.stringify({ openapi: full.openapi, info: full.info, paths, components }));
