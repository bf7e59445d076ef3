// The panel beside a grid, the values of charts, and lines of a log. Without JavaScript the panel is a part of the page,
// the values are in tables, and a line's link names its page.
(() => {
  const status = document.getElementById("refreshed");
  const jobOf = (address) => new URL(address, location.href).searchParams.get("job");
  const grid = () => document.querySelector(".matrix[data-panel]");
  const panel = () => document.getElementById("job");

  const mark = (job) => {
    for (const link of grid().querySelectorAll("td a")) {
      if (jobOf(link.href) === job) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  const close = (address) => {
    panel().hidden = true;
    panel().parentElement.classList.remove("open");
    mark(null);
    if (address) history.pushState(null, "", address);
  };
  const show = async (address, push) => {
    const job = jobOf(address);
    try {
      const answer = await fetch(grid().dataset.panel + job, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const without = new URL(address, location.href);
      without.searchParams.delete("job");
      const link = Object.assign(document.createElement("a"), { className: "close", href: without.href, textContent: "Close" });
      panel().replaceChildren(...page.body.childNodes);
      document.dispatchEvent(new Event("crcr:times"));
      panel().querySelector(".title").append(link);
      panel().hidden = false;
      panel().scrollTop = 0;
      panel().parentElement.classList.add("open");
      mark(job);
      if (push) history.pushState(null, "", address);
      status.textContent = "Beside the grid: " + panel().querySelector("h2").textContent;
    } catch {
      location.href = address;
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a");
    if (!link || !grid() || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.closest("td") && grid().contains(link) && jobOf(link.href)) {
      event.preventDefault();
      const there = new URL(location.href);
      there.searchParams.set("job", jobOf(link.href));
      show(there.href, true);
    } else if (link.classList.contains("close")) {
      event.preventDefault();
      const cell = grid().querySelector("td a[aria-current]");
      close(link.href);
      cell?.focus({ preventScroll: true });
    }
  });
  document.addEventListener("keydown", (event) => {
    const link = event.key === "Escape" && grid() && !panel().hidden && panel().querySelector("a.close");
    if (link) link.click();
  });
  addEventListener("popstate", () => {
    if (!grid()) return;
    if (jobOf(location.href)) show(location.href, false);
    else close(null);
  });

  // The browser scrolls to the row in its box, and not to the box.
  const row = document.querySelector(".grid tr:target");
  if (row) scrollTo(0, row.closest(".scroll").getBoundingClientRect().top + scrollY - 16);

  // The headers of a cell as its tooltip.
  document.addEventListener("mouseover", (event) => {
    const cell = event.target.closest?.(".grid tbody td");
    const header = cell && !cell.title && cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
    if (!header || cell.colSpan > 1) return;
    const word = cell.querySelector("a")?.getAttribute("aria-label") || "did not run";
    cell.title = `${header.title || header.textContent}: ${word}`;
  });

  // A chart says the values of the time under the pointer, or that the arrow keys have chosen.
  const tell = (chart, time) => {
    for (const other of chart.querySelectorAll(".time.chosen")) other.classList.remove("chosen");
    const text = chart.closest("figure").querySelector("output.at");
    text.hidden = !time;
    time?.classList.add("chosen");
    text.textContent = time ? time.querySelector("title").textContent : "";
  };
  document.addEventListener("mouseover", (event) => {
    const time = event.target.closest?.("svg.plot .time");
    if (time) tell(time.closest("svg"), time);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches?.("svg.plot")) tell(event.target, null);
  });
  const choose = (chart, step) => {
    const times = [...chart.querySelectorAll(".time")];
    const now = times.findIndex((time) => time.classList.contains("chosen"));
    const next = now < 0 ? times.length - 1 : Math.min(Math.max(now + step, 0), times.length - 1);
    tell(chart, times[next]);
  };
  document.addEventListener("focusin", (event) => {
    if (event.target.matches?.("svg.plot")) choose(event.target, 0);
  });
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !event.target.matches?.("svg.plot")) return;
    event.preventDefault();
    choose(event.target, step);
  });

  // A line of another page of the log.
  const line = /^#L(\d+)$/.exec(location.hash);
  if (line && document.querySelector(".stored") && !document.getElementById(location.hash.slice(1))) {
    const there = new URL(location.href);
    if (there.searchParams.get("from") !== line[1]) {
      there.searchParams.set("from", line[1]);
      location.replace(there.href);
    }
  }
})();
