// The board's table: shows and hides rows, follows links without loading the page anew, hands a sort to Python.
// A link is followed as the browser's own Back and Forward are: the board's address stays in the history with every
// filter in it (a page that Python switches to writes its parameters over the address of the page that is left).
// What is open is kept across redraws, and handed to Python so that the address says it.

// Draws each chart once where nobody sees it, one whenever nobody waits: what draws them is slow at its first use alone.
async function tryCharts(host, script, charts, idle) {
  const { embed, expressionInterpreter } = await (await import(script)).t();
  for (const chart of charts) {
    await new Promise((resolve) => idle(resolve));
    const { finalize, view } = await embed(document.createElement("div"), chart, {
      ast: true, expr: expressionInterpreter, actions: false, renderer: "svg",
    });
    await view.resize().runAsync();
    finalize();
  }
  host.tried = charts.length;
}

export default function ({ data, parentElement, setTriggerValue, setStateValue }) {
  let host = parentElement.querySelector(".ss-host");
  if (!host) {
    host = document.createElement("div");
    host.className = "ss-host";
    parentElement.appendChild(host);
    host.open = new Set(data.open);
  }
  const bodies = () => host.querySelectorAll("tbody[data-endpoint]");
  const draw = () => {
    for (const body of bodies()) {
      const isOpen = host.open.has(body.dataset.endpoint) || data.opened.includes(body.dataset.endpoint);
      for (const row of body.querySelectorAll(".ss-child")) row.hidden = !isOpen;
      const button = body.querySelector(".ss-toggle");
      button.setAttribute("aria-expanded", String(isOpen));
      button.textContent = isOpen ? "\u25be" : "\u25b8";
    }
  };
  if (host.drawn !== data.html) {
    const focused = host.contains(document.activeElement) && document.activeElement.getAttribute("aria-controls");
    host.innerHTML = data.html;
    host.drawn = data.html;
    if (focused) host.querySelector(`[aria-controls="${focused}"]`)?.focus();
  }
  draw();
  if (!host.ahead) {
    host.ahead = data.ahead.slice();
    // The next page's own scripts are most of a second of its first visit: they are fetched while nobody waits.
    const folder = document.querySelector('script[type="module"][src*="/static/js/"]')?.src;
    const idle = window.requestIdleCallback || ((work) => setTimeout(work, 500));
    const next = () => {
      const name = host.ahead.shift();
      if (name && folder) import(new URL(name, folder).href).catch(() => {}).then(() => idle(next));
      else if (folder && data.charts) tryCharts(host, new URL(data.charts, folder).href, data.trials, idle);
    };
    idle(next);
  }
  host.onclick = (event) => {
    const toggle = event.target.closest(".ss-toggle");
    if (toggle) {
      const name = toggle.closest("tbody").dataset.endpoint;
      if (!host.open.delete(name)) host.open.add(name);
      draw();
      setStateValue("open", [...host.open].sort());
      return;
    }
    const sort = event.target.closest(".ss-sort");
    if (sort) {
      setTriggerValue("sort", sort.dataset.sort);
      return;
    }
    const link = event.target.closest(".ss-go");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      window.history.pushState({}, "", link.href);
      window.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
    }
  };
}
