// Looks at the pages in Firefox, over WebDriver BiDi; `main.rs` runs it with one JSON argument and reads `answer: `.
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";

import { PAGES } from "./pages.mjs";
import { QUESTIONS, START } from "./questions.mjs";

const require = createRequire(new URL("../peers/package.json", import.meta.url));
const puppeteer = require("puppeteer-core");

const { sites, out, token } = JSON.parse(process.argv[2]);
const problems = [];

// Milliseconds for what takes a few on an idle machine.
const PATIENCE = 180_000;
const launch = (isDark) => puppeteer.launch({
  browser: "firefox",
  executablePath: execFileSync("sh", ["-c", "command -v firefox-esr"]).toString().trim(),
  headless: true,
  protocolTimeout: PATIENCE,
  // 0 is dark, 1 is light, whatever the machine prefers.
  extraPrefsFirefox: { "layout.css.prefers-color-scheme.content-override": isDark ? 0 : 1 },
});

const open = async (browser, url, width, refused) => {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.setViewport({ width, height: 900 });
  page.on("pageerror", (error) => problems.push(`${url}: error: ${error}`));
  page.on("request", (request) => {
    // Firefox loads a font of its own for fields with a date.
    const isOwn = request.url().startsWith("data:font/");
    if (!isOwn && new URL(request.url()).origin !== new URL(url).origin) problems.push(`${url}: asks ${request.url()}`);
  });
  const answer = await page.goto(url, { waitUntil: "load" });
  if (![refused ?? 200, 304].includes(answer.status())) problems.push(`${url}: answers ${answer.status()}`);
  return page;
};

const judge = async (page, name, width) => {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) problems.push(`${name} at ${width}: ${wide} pixels too wide`);
  const cut = await page.evaluate(() => {
    const grid = document.querySelector(".scroll.grid");
    const hasRoom = grid && grid.offsetWidth < grid.parentElement.clientWidth - 1;
    return hasRoom ? grid.scrollWidth - grid.clientWidth : 0;
  });
  if (cut > 0) problems.push(`${name} at ${width}: ${cut} pixels of the last column are under the scrollbar`);
};

for (const [isDark, width] of [[false, 1280], [true, 390]]) {
  const browser = await launch(isDark);
  const own = await browser.createBrowserContext();
  const login = await open(browser, `${sites.full}/crcr/login`, width);
  await login.type("input[type=password]", token);
  await Promise.all([login.waitForNavigation(), login.click("main button")]);
  await login.close();
  // Chromium has looked at all of them in every width already.
  const chosen = PAGES.filter(([name]) => width > 390 || name.startsWith("full"));
  for (const [name, site, path, refused] of chosen) {
    const page = await open(name === "login" ? own : browser, sites[site] + path, width, refused);
    await judge(page, name, width);
    const scheme = isDark ? "dark" : "light";
    if (!process.env.CI) await page.screenshot({ path: `${out}/${name}-${scheme}-${width}.png`, fullPage: true });
    await page.close();
  }
  await browser.close();
}

const browser = await launch(false);
for (const { question, site, clicks, answer } of QUESTIONS) {
  const page = await open(browser, sites[site] + START, 1280);
  for (const { name, main } of clicks) {
    // `:has-text()` is Playwright's; the text is looked for here.
    const [, css, text] = (main ?? "").match(/^(.*?)(?::has-text\('(.*)'\))?$/);
    const wanted = await page.evaluateHandle((css, text, name) => {
      const links = [...document.querySelectorAll(name ? "header a" : css.split(",").map((one) => `main ${one}`).join(","))];
      return links.find((link) => (name ? link.textContent.trim() === name : !text || link.textContent.includes(text)));
    }, css, text, name);
    if (!wanted.asElement()) {
      problems.push(`${question}: no link ${name ?? main}`);
      continue;
    }
    await wanted.evaluate((link) => link.scrollIntoView());
    await Promise.all([page.waitForNavigation(), wanted.click()]);
  }
  const said = (await page.evaluate(() => document.querySelector("main").innerText)).replace(/\s+/g, " ");
  for (const word of answer) if (!word.test(said)) problems.push(`${question}: ${word} isn't in: ${said.slice(0, 2000)}`);
  await page.close();
}
await browser.close();
console.log(`answer: ${JSON.stringify({ problems })}`);
