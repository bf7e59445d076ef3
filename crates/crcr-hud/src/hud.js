// Comforts that every page reads without: arrow keys in the matrix, times that say how long ago, and a page that
// fetches itself again every minute and keeps scroll, focus, open folds and what is being typed.
(() => {
  const main = document.getElementById("main");

  // One stop of the tab key for the whole matrix; arrows, Home and End move within it, and Enter
  // follows the link as everywhere.
  const cellsOf = (row) => [...row.children].map((cell) => cell.querySelector("a, .outcome, summary") || cell);
  // A cell with several links has a stop for each; those of a closed fold aren't shown.
  const stopsOf = (row) => [...row.children].flatMap((cell) => {
    const links = [...cell.querySelectorAll("a, summary")].filter((link) => link.checkVisibility());
    return links.length ? links : [cell.querySelector(".outcome") || cell];
  });
  const enhance = (matrix) => {
    matrix.setAttribute("role", "grid");
    for (const row of matrix.tBodies[0].rows) {
      for (const cell of cellsOf(row)) cell.tabIndex = -1;
      for (const link of row.querySelectorAll("a, summary")) link.tabIndex = -1;
    }
    cellsOf(matrix.tBodies[0].rows[0])[0].tabIndex = 0;
    // The cells can be reached, so the box around them need not be.
    matrix.parentElement.removeAttribute("tabindex");
  };
  const enhanceAll = () => document.querySelectorAll(".matrix").forEach(enhance);
  const stop = (matrix, cell) => {
    const old = matrix.querySelector('tbody [tabindex="0"]');
    if (old) old.tabIndex = -1;
    cell.tabIndex = 0;
  };
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.(".matrix tbody td, .matrix tbody th");
    if (!cell || event.altKey || event.metaKey) return;
    const [row, matrix] = [cell.parentElement, cell.closest(".matrix")];
    const rows = matrix.tBodies[0].rows;
    let [y, x] = [[...rows].indexOf(row), cell.cellIndex];
    const end = row.cells.length - 1;
    const stops = stopsOf(row);
    const beside = (step) => {
      const next = stops[stops.indexOf(event.target) + step];
      if (!next) return;
      event.preventDefault();
      stop(matrix, next);
      next.focus();
    };
    switch (event.key) {
      case "ArrowLeft": return beside(-1);
      case "ArrowRight": return beside(1);
      case "ArrowUp": y -= 1; break;
      case "ArrowDown": y += 1; break;
      case "Home": x = 0; if (event.ctrlKey) y = 0; break;
      case "End": x = end; if (event.ctrlKey) y = rows.length - 1; break;
      default: return;
    }
    event.preventDefault();
    y = Math.min(Math.max(y, 0), rows.length - 1);
    x = Math.min(Math.max(x, 0), end);
    const cells = cellsOf(rows[y]);
    const next = cells[Math.min(x, cells.length - 1)];
    stop(matrix, next);
    next.focus();
  });

  // `null` outside of `root`, such as for the whole page, which has the focus when nothing else does.
  const pathTo = (node, root) => {
    if (!root.contains(node)) return null;
    const path = [];
    for (; node !== root; node = node.parentElement) {
      path.unshift([...node.parentElement.children].indexOf(node));
    }
    return path;
  };
  const at = (root, path) => path.reduce((node, n) => node && node.children[n], root);
  // One switch for all times; it and that of the refresh are remembered.
  const settings = { times: "relative", refresh: "on" };
  for (const name in settings) try { settings[name] = localStorage.getItem(name) || settings[name]; } catch { /* no storage */ }
  const change = (name, value) => {
    settings[name] = value;
    try { localStorage.setItem(name, value); } catch { /* for this page only, then */ }
  };
  const UNITS = [["y", 365 * 86400], ["d", 86400], ["h", 3600], ["min", 60]];
  const since = (date) => {
    const seconds = (Date.now() - date) / 1000;
    const [unit, size] = UNITS.find(([unit, size]) => Math.abs(seconds) >= (unit === "d" ? 3 : 1) * size) || ["s", 1];
    const count = Math.round(Math.abs(seconds) / size);
    if (unit === "s") return "just now";
    return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
  };
  const two = (number) => String(number).padStart(2, "0");
  const local = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
  const utc = (date) => `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
  const zone = (date) => { const at = -date.getTimezoneOffset(); return at === 0 ? "UTC" : `UTC${at < 0 ? "−" : "+"}${Math.floor(Math.abs(at) / 60)}${at % 60 ? ":" + two(Math.abs(at) % 60) : ""}`; };
  const zoneText = document.getElementById("zone");
  const showTimes = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const date = new Date(time.dateTime);
      if (Number.isNaN(date.getTime())) continue;
      const exact = settings.times === "utc" ? utc(date) : `${local(date)} ${zone(date)}`;
      time.textContent = time.classList.contains("ago") && settings.times === "relative" ? since(date)
        : settings.times === "utc" ? utc(date).slice(0, 16) : local(date);
      time.title = exact;
    }
    // The hour is the first words of a chart's text.
    for (const place of document.querySelectorAll("[data-hour]")) {
      const date = new Date(place.dataset.hour);
      const [, ...values] = place.textContent.split(": ");
      place.textContent = [settings.times === "utc" ? `${utc(date).slice(5, 16)} UTC` : local(date).slice(5), ...values].join(": ");
    }
    for (const mark of document.querySelectorAll(".zone")) mark.textContent = settings.times === "utc" ? "UTC" : "local time";
    zoneText.textContent = settings.times === "utc" ? "Times are UTC." : `Times are yours, ${zone(new Date())}.`;
  };
  const control = (label, name, options, changed) => {
    const box = document.createElement("label");
    const list = document.createElement("select");
    for (const [value, text] of options) list.add(new Option(text, value, false, value === settings[name]));
    list.addEventListener("change", () => { change(name, list.value); changed(); });
    box.append(label + " ", list);
    document.getElementById("settings").append(box);
  };
  control("Times", "times", [["relative", "how long ago"], ["local", "local"], ["utc", "UTC"]], showTimes);
  const status = document.getElementById("refreshed");
  // What somebody has selected would be gone before it is copied.
  const isSelecting = () => { const chosen = getSelection(); return !chosen.isCollapsed && main.contains(chosen.anchorNode); };
  let tried = Date.now();
  const refresh = async () => {
    if (document.hidden || settings.refresh === "off" || main.querySelector("form :focus") || isSelecting()) return;
    tried = Date.now();
    try {
      // An answer that never comes must not look like one that says the same.
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, signal: AbortSignal.timeout(30_000) });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      const focus = pathTo(document.activeElement, main);
      const open = [...main.querySelectorAll("details")].map((fold) => fold.open);
      const boxes = () => [...main.querySelectorAll(".scroll, aside")];
      const scrolled = boxes().map((box) => [box.scrollLeft, box.scrollTop]);
      main.replaceChildren(...fresh.childNodes);
      showTimes();
      enhanceAll();
      [...main.querySelectorAll("details")].forEach((fold, n) => { fold.open = open[n] ?? fold.open; });
      boxes().forEach((box, n) => { [box.scrollLeft, box.scrollTop] = scrolled[n] || [0, 0]; });
      const focused = focus?.length && at(main, focus);
      if (focused) {
        const matrix = focused.closest(".matrix");
        if (matrix && focused.tabIndex === -1) stop(matrix, focused);
        focused.focus({ preventScroll: true });
      }
      const now = new Date();
      status.textContent = "Refreshed " + (settings.times === "utc" ? now.toISOString().slice(11, 16) + " UTC" : local(now).slice(11));
    } catch {
      status.textContent = "Could not refresh; what you see may be old";
    }
  };
  enhanceAll();
  showTimes();
  // What another script put into the page has the server's times.
  document.addEventListener("crcr:times", showTimes);
  if (main.dataset.refresh) {
    control("Refresh", "refresh", [["on", "every minute"], ["off", "off"]], () => {});
    const every = 1000 * Number(main.dataset.refresh);
    setInterval(refresh, every);
    // A page that was in the background is as old as that.
    document.addEventListener("visibilitychange", () => { if (Date.now() - tried >= every) refresh(); });
  }
  // "3 min ago" is true for a minute only, also where nothing is refreshed.
  setInterval(() => { if (!isSelecting()) showTimes(); }, 60_000);
  // Paper can't be unfolded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...main.querySelectorAll("details:not([open])")];
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of folded) fold.open = false; });
})();
