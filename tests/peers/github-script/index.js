// Runs the input `script` as actions/github-script does, without its network.
//
// A real runner gives JavaScript actions variables that `run:` steps don't get. act gives every step
// the same, so the test puts poison there and names a JSON file that holds the real ones, which are
// set for this script alone.
const fs = require("node:fs");
const core = require("@actions/core");

const real = JSON.parse(fs.readFileSync(process.env.STANDIN_RUNNER_VARIABLES, "utf8"));
Object.assign(process.env, real);
const { context, getOctokit } = require("@actions/github");

// Most tests give no token.
const token = core.getInput("github-token") || "none";
const inScope = { core, context, github: getOctokit(token), require };
const AsyncFunction = Object.getPrototypeOf(async () => {}).constructor;
const script = core.getInput("script", { required: true });
new AsyncFunction(...Object.keys(inScope), script)(...Object.values(inScope)).catch((error) =>
  core.setFailed(String(error)),
);
