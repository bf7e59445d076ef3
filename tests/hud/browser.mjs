// Looks at the pages in Chromium; `main.rs` runs it with one JSON argument and reads `answer: `.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { AURORA, DUNE, MAIN, PAGES } from "./pages.mjs";
import { QUESTIONS, START } from "./questions.mjs";

const require = createRequire(new URL("../peers/package.json", import.meta.url));
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const { task, sites, out, token } = JSON.parse(process.argv[2]);
const problems = [];
const expect = (holds, problem) => { if (!holds) problems.push(problem); };

// Milliseconds for what takes a few on an idle machine.
const PATIENCE = 180_000;
const browser = await chromium.launch({
  executablePath: execFileSync("sh", ["-c", "command -v chromium"]).toString().trim(),
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

// The sites' time, so that a page is the same whenever and wherever it is looked at.
const NOW = "2026-09-15T12:00:00Z";
const contextAt = async (options) => {
  const context = await browser.newContext({ timezoneId: "UTC", locale: "en-GB", ...options });
  await context.clock.setFixedTime(NOW);
  return context;
};

// A page that notes every request to another host, every message and every error. `refused` is the
// status that the page itself is expected to have.
const open = async (context, url, refused) => {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  const note = (what) => problems.push(`${url}: ${what}`);
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) note(`asks ${request.url()}`);
  });
  page.on("console", (message) => {
    const own = refused && message.text().includes(`status of ${refused}`) && message.location().url === url;
    if (!own) note(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => note(`error: ${error}`));
  page.on("dialog", (dialog) => { note(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  const answer = await page.goto(url, { waitUntil: "load" });
  const status = answer.status();
  if (status !== (refused ?? 200)) note(`answers ${status}`);
  return page;
};

// For people to look at, so not in CI.
const picture = async (page, name, options) => {
  if (!process.env.CI) await page.screenshot({ path: `${out}/${name}.png`, ...options });
};

// No finding of any severity.
const axe = async (page, name) => {
  await page.evaluate(`${AXE}; undefined`);
  // The size of targets is a rule of WCAG 2.2 that axe leaves out by itself.
  const found = await page.evaluate(() => axe.run({ resultTypes: ["violations"], rules: { "target-size": { enabled: true } } }));
  for (const { id, impact, nodes } of found.violations) {
    problems.push(`${name}: axe ${id} (${impact}), ${nodes.length} times: ${nodes[0].target} ${nodes[0].html.slice(0, 200)} ${nodes[0].failureSummary}`);
  }
};

// Presses the tab key until a link has the focus.
const tabTo = async (page, link, what) => {
  const wanted = await link.elementHandle();
  const isThere = () => wanted.evaluate((element) => element === document.activeElement);
  for (let n = 0; n < 500 && !(await isThere()); n++) await page.keyboard.press("Tab");
  expect(await isThere(), `${what}: the tab key doesn't lead to it`);
};

const logIn = async (page) => {
  await page.getByLabel("Admin token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Deliveries" }).waitFor();
};

const tasks = {
  async pages() {
    const aria = {};
    // All at once: a page spends most of its time waiting for another process.
    // axe takes most of the time, so it looks once at each scheme and at each layout.
    // 640 pixels are what 200 % of zoom leave of 1280. That and forced colours are looked at on the site that has
    // everything.
    const looks = [
      ["light", 1280, axe], ["light", 390, axe], ["dark", 1440, axe], ["dark", 390], ["light", 1920], ["light", 640],
      ["dark", 1280, null, "active"],
    ];
    await Promise.all(looks.map(async ([colorScheme, width, judge, forcedColors]) => {
      const viewport = { width, height: 900 };
      const context = await contextAt({ colorScheme, viewport, forcedColors });
      // A cookie is for a host, whatever the port: this logs in to all of them.
      const login = await open(context, `${sites.full}/crcr/login`);
      await logIn(login);
      await login.close();
      const pages = width === 640 || forcedColors ? PAGES.filter(([, site]) => site === "full") : PAGES;
      for (const [name, site, path, refused] of pages) {
        // The login shows only to those who haven't.
        const own = name === "login" ? await contextAt({ colorScheme, viewport }) : context;
        const page = await open(own, sites[site] + path, refused);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        expect(wide <= 0, `${name} at ${width}: ${wide} pixels too wide`);
        if (name.startsWith("hostile")) {
          const markup = await page.locator("main img, main script, main b").count();
          expect(markup === 0, `${name}: a name became markup`);
          const links = await page.locator('main a[href^="javascript"]').count();
          expect(links === 0, `${name}: a name became a link`);
          expect((await page.locator("main").innerText()).includes("<img src=x onerror=alert(1)>"), `${name}: the name isn't shown`);
        }
        if (forcedColors) {
          // What is chosen keeps a shape of its own.
          const chosen = await page.evaluate(() => [...document.querySelectorAll(".group a[aria-current]")].filter((one) => {
            const other = [...one.parentElement.children].find((link) => !link.hasAttribute("aria-current"));
            return other && getComputedStyle(one).backgroundColor === getComputedStyle(other).backgroundColor;
          }).map((one) => one.textContent));
          expect(chosen.length === 0, `${name} in forced colours: ${chosen} looks like what isn't chosen`);
        }
        await picture(page, `${name}-${forcedColors ? "forced" : colorScheme}-${width}`, { fullPage: true });
        await judge?.(page, `${name} at ${width}`);
        if (colorScheme === "light" && width === 1280 && !name.startsWith("wide")) {
          aria[name] = await page.locator("body").ariaSnapshot();
        }
        await page.close();
        if (own !== context) await own.close();
      }
      await context.close();
    }));
    return { aria };
  },

  async keyboard() {
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
    const page = await open(context, sites.full + DUNE);
    const cell = () => page.evaluate(() => {
      const cell = document.activeElement.closest(".matrix td, .matrix th");
      return cell && [cell.parentElement.rowIndex, cell.cellIndex];
    });
    // One stop for the matrix, reached by the tab key alone.
    for (let n = 0; n < 100 && !(await cell()); n++) await page.keyboard.press("Tab");
    const press = async (key, y, x) => {
      await page.keyboard.press(key);
      const at = await cell();
      expect(String(at) === String([y, x]), `${key} leads to ${at}, not to ${[y, x]}`);
    };
    expect(String(await cell()) === "1,0", `the tab key leads to ${await cell()}`);
    // The first cell has two links: the head and its commit.
    await press("ArrowRight", 1, 0);
    await press("ArrowRight", 1, 1);
    await press("ArrowDown", 2, 1);
    await press("ArrowDown", 3, 1);
    await press("End", 3, 4);
    await press("ArrowRight", 3, 4);
    await press("ArrowUp", 2, 4);
    await press("Home", 2, 0);
    await press("Control+Home", 1, 0);
    await press("ArrowUp", 1, 0);
    await press("ArrowDown", 2, 0);
    await page.keyboard.press("Tab");
    expect((await cell()) === null, "the matrix is one stop");
    await page.keyboard.press("Shift+Tab");
    expect(String(await cell()) === "2,0", `Shift+Tab leads back to ${await cell()}`);
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    expect(outline !== "none", "what has the focus can't be seen");
    const href = await page.evaluate(() => document.activeElement.getAttribute("href"));
    await page.keyboard.press("Enter");
    await page.waitForURL(sites.full + href);
    await page.close();

    // A refresh keeps focus, folds, scroll; what is typed is left alone.
    const fresh = await context.newPage();
    fresh.setDefaultTimeout(PATIENCE);
    await fresh.clock.install();
    await fresh.goto(sites.full + DUNE);
    await fresh.evaluate(() => { document.querySelector("summary").click(); scrollTo(0, 400); });
    await fresh.locator(".matrix tbody tr:nth-child(3) a").first().focus();
    const before = await fresh.evaluate(() => [scrollY, document.activeElement.textContent]);
    await fresh.evaluate(() => { document.querySelector("h1").textContent = "old"; });
    await fresh.clock.runFor(61_000);
    await fresh.waitForFunction(() => document.getElementById("refreshed").textContent.startsWith("Refreshed"));
    const after = await fresh.evaluate(() => [scrollY, document.activeElement.textContent]);
    expect(String(before) === String(after), `a refresh moves from ${before} to ${after}`);
    expect((await fresh.locator("h1").innerText()) !== "old", "the refresh brought nothing");
    expect(await fresh.locator("details").first().evaluate((fold) => fold.open), "the fold is closed");
    await fresh.keyboard.press("ArrowDown");
    const row = await fresh.evaluate(() => document.activeElement.closest("tr")?.rowIndex);
    expect(row === 4, `after a refresh ArrowDown leads to row ${row}`);
    await fresh.locator("input[name=from]").focus();
    await fresh.evaluate(() => { document.querySelector("h1").textContent = "old"; });
    await fresh.clock.runFor(61_000);
    expect((await fresh.locator("h1").innerText()) === "old", "a refresh disturbs who types");
    // What was in the background is refreshed as soon as it is looked at.
    await fresh.evaluate(() => {
      document.activeElement.blur();
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
    });
    await fresh.clock.runFor(200_000);
    expect((await fresh.locator("h1").innerText()) === "old", "a page that nobody sees is refreshed");
    await fresh.evaluate(() => { delete document.hidden; document.dispatchEvent(new Event("visibilitychange")); });
    await fresh.waitForFunction(() => document.querySelector("h1").textContent !== "old");
    // What is selected stays, so that it can be copied.
    await fresh.evaluate(() => { document.querySelector("h1").textContent = "old"; getSelection().selectAllChildren(document.querySelector("h1")); });
    await fresh.clock.runFor(61_000);
    expect((await fresh.evaluate(() => String(getSelection()))) === "old", "a refresh takes the selection away");
    await fresh.evaluate(() => getSelection().removeAllRanges());
    await fresh.evaluate(() => document.activeElement.blur());
    await fresh.route("**/*", (route) => route.abort());
    await fresh.clock.runFor(61_000);
    await fresh.getByText("Could not refresh").waitFor();
    await fresh.close();

    // A refresh leaves the rows of a grid where they are.
    const grid = await context.newPage();
    grid.setDefaultTimeout(PATIENCE);
    await grid.clock.install();
    await grid.goto(sites.wide + MAIN);
    await grid.evaluate(() => { document.querySelector(".grid").scrollTop = 300; document.querySelector("h1").textContent = "old"; });
    const top = () => grid.evaluate(() => document.querySelector(".grid").scrollTop);
    const scrolled = await top();
    expect(scrolled > 100, `the grid scrolls to ${scrolled} only`);
    await grid.clock.runFor(61_000);
    await grid.waitForFunction(() => document.querySelector("h1").textContent !== "old");
    expect((await top()) === scrolled, `a refresh moves the grid from ${scrolled} to ${await top()}`);
    await grid.close();

    // Who scrolls through a long table sees what its columns are.
    const small = await contextAt({ viewport: { width: 1280, height: 400 } });
    for (const path of [MAIN, `${AURORA}?window=30d&heads=all`, "/prs"]) {
      const long = await open(small, (path === "/prs" ? sites.full : sites.wide) + path);
      const [box, header, by] = await long.evaluate(() => {
        const box = document.querySelector(".scroll:has(> .matrix), .scroll:has(> .pulls)");
        box.scrollIntoView();
        box.scrollTop = 300;
        return [box, box.querySelector("thead th")].map((part) => part.getBoundingClientRect().top).concat(box.scrollTop);
      });
      expect(by > 100 && Math.abs(header - box) < 4, `${path}: the header is ${box - header} pixels above its table`);
      await long.close();
    }
    await small.close();

    // Whoever changes to the dark scheme, or measures contrast, sees a colour or the other, and none in between.
    const schemes = await open(context, sites.full + DUNE);
    const chosen = () => schemes.evaluate(() => getComputedStyle(document.querySelector(".group a[aria-current]")).backgroundColor);
    await schemes.emulateMedia({ colorScheme: "dark" });
    const atOnce = await chosen();
    await schemes.waitForTimeout(300);
    expect(atOnce === (await chosen()), `a colour goes from ${atOnce} to ${await chosen()}`);
    await schemes.close();

    // On paper a grid is whole, and nothing is folded.
    for (const path of [MAIN, "/pr/101050"]) {
      const paper = await open(context, (path === MAIN ? sites.wide : sites.full) + path);
      await paper.emulateMedia({ media: "print" });
      const cut = await paper.evaluate(() => Math.max(0, ...[...document.querySelectorAll("main .scroll, main pre, #job")].map((box) => box.scrollHeight - box.clientHeight)));
      expect(cut <= 2, `${path}: on paper ${cut} pixels of a box are missing`);
      await paper.evaluate(() => dispatchEvent(new Event("beforeprint")));
      const folded = () => paper.locator("main details:not([open])").count();
      expect((await folded()) === 0, `${path}: ${await folded()} folds are closed on paper`);
      await paper.evaluate(() => dispatchEvent(new Event("afterprint")));
      expect(path === MAIN || (await folded()) > 0, `${path}: the folds stay open`);
      await paper.close();
    }

    // What says UTC is UTC, wherever the reader is.
    const elsewhere = await contextAt({ timezoneId: "Asia/Kolkata" });
    for (const path of ["/trends", DUNE]) {
      const page = await open(elsewhere, sites.full + path);
      const zones = async () => [...new Set(await page.locator("main .zone").allInnerTexts())];
      expect(String(await zones()) === "local time", `${path}: local times are called ${await zones()}`);
      await page.getByLabel("Times").selectOption("utc");
      expect(String(await zones()) === "UTC", `${path}: UTC is called ${await zones()}`);
      await page.evaluate(() => localStorage.clear());
      await page.close();
    }
    await elsewhere.close();

    // On a phone the words of a cell are beside each other, and its label is beside them.
    const phone = await contextAt({ viewport: { width: 390, height: 900 } });
    const blocked = await open(phone, `${sites.full}/prs?show=blocked`);
    const tops = await blocked.locator("td[data-label='Blocked by']").first().evaluate((cell) => [...cell.children].map((part) => part.getBoundingClientRect().top));
    expect(tops.length > 1 && Math.max(...tops) - Math.min(...tops) < 12, `the parts of a cell begin at ${tops}`);
    await phone.close();

    // Everything is there without JavaScript.
    const plain = await browser.newContext({ javaScriptEnabled: false });
    const read = await open(plain, sites.full + DUNE);
    expect((await read.locator(".matrix a").count()) > 20, "without JavaScript the matrix has no links");
    await read.getByText("Other time span").click();
    await read.getByLabel("From (UTC)").fill("2026-09-10T00:00");
    await read.getByLabel("To (UTC)").fill("2026-09-11T00:00");
    await read.locator(".controls").getByRole("button", { name: "Show" }).click();
    await read.waitForURL("**from=2026-09-10**");
    expect((await read.locator(".controls").innerText()).includes("2026-09-10 00:00"), "the form's span isn't shown");
    return {};
  },

  // From the first page to the answer of each question: by mouse, by keyboard alone, and without JavaScript.
  async questions() {
    const clicks = {};
    for (const way of ["mouse", "keyboard", "plain"]) {
      const context = await contextAt({ viewport: { width: 1280, height: 900 }, javaScriptEnabled: way !== "plain" });
      for (const { question, site, clicks: path, answer } of QUESTIONS) {
        const page = await open(context, sites[site] + START);
        for (const { name, main } of path) {
          const link = main
            ? page.locator(`main ${main}`).first()
            : page.locator("header").getByRole("link", { name, exact: true });
          const wanted = new URL(await link.getAttribute("href"), page.url()).href;
          if (way === "keyboard") {
            await tabTo(page, link, `${question}: ${name ?? main}`);
            await page.keyboard.press("Enter");
          } else {
            await link.click();
          }
          await page.waitForURL(wanted);
        }
        expect(path.length <= 2, `${question}: ${path.length} clicks`);
        const said = (await page.locator("main").innerText()).replace(/\s+/g, " ");
        for (const word of answer) expect(word.test(said), `${question} (${way}): ${word} isn't in: ${said.slice(0, 3000)}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        expect(wide <= 0, `${question}: ${wide} pixels too wide`);
        clicks[question] = path.length;
        await page.close();
      }
      await context.close();
    }
    return { clicks };
  },

  async operator() {
    const context = await browser.newContext();
    const page = await open(context, `${sites.full}/crcr/login`);
    await page.getByLabel("Admin token").fill("guess");
    page.removeAllListeners("console"); // the 403 that follows is Chromium's to tell
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").waitFor();
    await logIn(page);
    const [cookie] = await context.cookies();
    expect(cookie.httpOnly && cookie.sameSite === "Strict", `the cookie is ${JSON.stringify(cookie)}`);
    expect(!JSON.stringify(cookie).includes(token), "the cookie holds the token");
    await page.getByRole("button", { name: "Redeliver" }).click();
    await page.getByText("1 back in the queue").waitFor();
    expect((await page.getByRole("button", { name: "Redeliver" }).count()) === 0, "it can be redelivered twice");
    await page.getByRole("button", { name: "Try again", exact: true }).click();
    await page.getByText("Nothing was given up").waitFor();
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("heading", { name: "Not found" }).waitFor();
    expect((await context.cookies()).length === 0, "the cookie is still there");
    return {};
  },

  async branch() {
    for (const [colorScheme, width] of [["light", 1280], ["light", 400], ["dark", 400]]) {
      const context = await browser.newContext({ colorScheme, viewport: { width, height: 900 } });
      const page = await open(context, sites.full + MAIN);
      // From the grid to one job and back.
      await page.locator(".matrix td.bad a").first().click();
      const panel = page.locator("#job");
      await panel.waitFor();
      const text = await panel.innerText();
      expect(text.includes("failed") && text.includes("Failed in step"), `the panel says ${text}`);
      const link = await panel.getByRole("link", { name: /Run it again/ }).getAttribute("href");
      expect(link.includes("/example/torch/actions/runs/"), `the job is at ${link}`);
      // The place isn't left: the cell is marked, and the grid is where it was.
      expect((await page.locator(".matrix td a[aria-current]").count()) === 1, "the cell isn't marked");
      expect((await page.evaluate(() => document.querySelector(".grid").getBoundingClientRect().top)) >= 0, "the grid has jumped");
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      expect(wide <= 0, `the panel at ${width}: ${wide} pixels too wide`);
      await picture(page, `job-${colorScheme}-${width}`);
      await panel.getByRole("link", { name: "Close" }).click();
      await panel.waitFor({ state: "hidden" });
      // Each group unfolds, and what is shown is in the address.
      const columns = () => page.locator(".matrix thead th:not(.backend)").count();
      const folded = await columns();
      await page.getByRole("link", { name: /Trunk \/ linux \/ test/ }).first().click();
      await page.waitForURL("**open=**");
      expect((await columns()) === folded + 3, `${folded} columns become ${await columns()}`);
      await page.getByLabel("Jobs with").fill("docs");
      await page.getByRole("button", { name: "Show" }).click();
      await page.waitForURL("**q=docs**");
      expect((await columns()) === 2, `a search for docs leaves ${await columns()} columns`);
      await context.close();
    }
    // Every page leads to the others, also without JavaScript.
    const plain = await browser.newContext({ javaScriptEnabled: false });
    const page = await open(plain, sites.full + DUNE);
    await page.getByRole("link", { name: "Branches", exact: true }).click();
    await page.getByRole("link", { name: "example/torch" }).click();
    await page.getByRole("link", { name: "main", exact: true }).click();
    await page.waitForURL(sites.full + MAIN);
    for (const [text, path] of [["#101057", "/pr/101057"], ["example/torch", "/hud/example/torch"]]) {
      await page.getByRole("searchbox", { name: /pull request/ }).fill(text);
      await page.keyboard.press("Enter");
      await page.waitForURL(sites.full + path);
    }
    await plain.close();
    return {};
  },

  async large() {
    const milliseconds = {};
    for (const [name, path] of [["repository", `${AURORA}?window=30d&heads=all`], ["branch", MAIN]]) {
      const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
      const url = sites.wide + path;
      await (await open(context, url)).close(); // style and script are cached, the server is warm
      const runs = [];
      for (let n = 0; n < 5; n++) {
        const page = await open(context, url);
        runs.push(await page.evaluate(() => new Promise((done) => {
          requestAnimationFrame(() => requestAnimationFrame(() => {
            const entry = performance.getEntriesByType("navigation")[0];
            const now = performance.now();
            done({ rendered: now - entry.responseStart, whole: now - entry.startTime });
          }));
        })));
        const [rows, columns] = await page.evaluate(() => {
          const matrix = document.querySelector(".matrix");
          return [matrix.tBodies[0].rows.length, matrix.rows[0].querySelectorAll("th.job:not(.backend)").length];
        });
        expect(rows === 50 && columns === 40, `the matrix of a ${name} is ${rows} × ${columns}`);
        await page.close();
      }
      runs.sort((a, b) => a.rendered - b.rendered);
      milliseconds[name] = runs[2];
      await context.close();
    }
    return { milliseconds };
  },
};

try {
  const seen = await tasks[task]();
  console.log(`answer: ${JSON.stringify({ ...seen, problems })}`);
} finally {
  await browser.close();
}
