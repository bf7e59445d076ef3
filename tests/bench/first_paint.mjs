// When Chromium paints pages for the first time; `hud_speed` runs it with the site and the paths.
// https://www.w3.org/TR/paint-timing/#first-contentful-paint
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";

const require = createRequire(new URL("../peers/package.json", import.meta.url));
const { chromium } = require("playwright-core");

const [site, ...paths] = process.argv.slice(2);
const ROUNDS = 5;
const browser = await chromium.launch({
  executablePath: execFileSync("sh", ["-c", "command -v chromium"]).toString().trim(),
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

const firstPaint = async (path) => {
  // Nothing is in its cache, as for a first visit.
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  await page.goto(site + path, { waitUntil: "load" });
  const painted = await page.evaluate(() => new Promise((done) => {
    const found = (entries) => entries.find(({ name }) => name === "first-contentful-paint");
    new PerformanceObserver((list) => { if (found(list.getEntries())) done(found(list.getEntries()).startTime); })
      .observe({ type: "paint", buffered: true });
  }));
  await context.close();
  return painted;
};

const medians = [];
for (const path of paths) {
  const times = [];
  const isPage = (await fetch(site + path)).headers.get("content-type").startsWith("text/html");
  for (let n = 0; n < ROUNDS && isPage; n++) times.push(await firstPaint(path));
  times.sort((a, b) => a - b);
  medians.push(times[Math.floor(ROUNDS / 2)] ?? null);
}
console.log(JSON.stringify(medians));
await browser.close();
