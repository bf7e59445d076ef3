// Fetches the page again every minute and swaps its content, keeping scroll, focus and open folds.
(() => {
  const PERIOD = 60000;
  const status = document.getElementById("refreshed");
  const pathTo = (node, root) => {
    const path = [];
    for (; node && node !== root; node = node.parentElement) {
      path.unshift([...node.parentElement.children].indexOf(node));
    }
    return node ? path : null;
  };
  const at = (root, path) => path.reduce((node, n) => node && node.children[n], root);
  const refresh = async () => {
    if (document.hidden) return;
    const main = document.getElementById("main");
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      const focus = pathTo(document.activeElement, main);
      const open = [...main.querySelectorAll("details")].map((fold) => fold.open);
      const scrolled = [...main.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      main.replaceChildren(...fresh.childNodes);
      [...main.querySelectorAll("details")].forEach((fold, n) => { fold.open = open[n] || false; });
      [...main.querySelectorAll(".scroll")].forEach((box, n) => { box.scrollLeft = scrolled[n] || 0; });
      if (focus && focus.length) at(main, focus)?.focus({ preventScroll: true });
      status.textContent = "Refreshed " + new Date().toISOString().slice(11, 16) + " UTC";
    } catch {
      status.textContent = "Could not refresh; what you see may be old";
    }
  };
  setInterval(refresh, PERIOD);
})();
