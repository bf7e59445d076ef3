// Two comforts that every page reads without: arrow keys in the matrix, and a page that fetches
// itself again every minute and keeps scroll, focus, open folds and what is being typed.
(() => {
  const main = document.getElementById("main");

  // One stop of the tab key for the whole matrix; arrows, Home and End move within it, and Enter
  // follows the link as everywhere.
  const cellsOf = (row) => [...row.children].map((cell) => cell.querySelector("a, .outcome, summary") || cell);
  const enhance = (matrix) => {
    matrix.setAttribute("role", "grid");
    for (const row of matrix.tBodies[0].rows) {
      for (const cell of [...cellsOf(row), ...row.querySelectorAll("a")]) cell.tabIndex = -1;
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
    switch (event.key) {
      case "ArrowLeft": x -= 1; break;
      case "ArrowRight": x += 1; break;
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

  const pathTo = (node, root) => {
    const path = [];
    for (; node && node !== root; node = node.parentElement) {
      path.unshift([...node.parentElement.children].indexOf(node));
    }
    return node ? path : null;
  };
  const at = (root, path) => path.reduce((node, n) => node && node.children[n], root);
  const status = document.getElementById("refreshed");
  const refresh = async () => {
    if (document.hidden || main.querySelector("form :focus")) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      const focus = pathTo(document.activeElement, main);
      const open = [...main.querySelectorAll("details")].map((fold) => fold.open);
      const scrolled = [...main.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      main.replaceChildren(...fresh.childNodes);
      enhanceAll();
      [...main.querySelectorAll("details")].forEach((fold, n) => { fold.open = open[n] ?? fold.open; });
      [...main.querySelectorAll(".scroll")].forEach((box, n) => { box.scrollLeft = scrolled[n] || 0; });
      const focused = focus?.length && at(main, focus);
      if (focused) {
        const matrix = focused.closest(".matrix");
        if (matrix && focused.tabIndex === -1) stop(matrix, focused);
        focused.focus({ preventScroll: true });
      }
      status.textContent = "Refreshed " + new Date().toISOString().slice(11, 16) + " UTC";
    } catch {
      status.textContent = "Could not refresh; what you see may be old";
    }
  };
  enhanceAll();
  if (main.dataset.refresh) setInterval(refresh, 1000 * Number(main.dataset.refresh));
})();
