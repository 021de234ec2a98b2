// Adds "Download as SVG" to the tools of every chart: Streamlit's own save it as PNG alone.
// Charts come and go with the page, so that each change of it is looked at, once for each frame of the screen.
const ADDED = "ss-svg";

function save(chart) {
  const drawn = chart.querySelector("svg.marks").cloneNode(true);
  drawn.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  // Its words are light on a dark page: the page's colour goes along.
  const page = document.querySelector('[data-testid="stApp"]');
  drawn.style.background = getComputedStyle(page).backgroundColor;
  const file = new Blob([new XMLSerializer().serializeToString(drawn)], { type: "image/svg+xml" });
  const link = document.createElement("a");
  link.download = `${(chart.getAttribute("aria-label") ?? "chart").replace(/[^\w]+/g, "-").slice(0, 60)}.svg`;
  link.href = URL.createObjectURL(file);
  link.click();
  URL.revokeObjectURL(link.href);
}

function add() {
  for (const chart of document.querySelectorAll('[data-testid="stVegaLiteChart"]')) {
    const tools = chart.parentElement?.querySelector('[data-testid="stElementToolbarButtonContainer"]');
    const png = tools?.querySelector('button[aria-label^="Download as PNG"]');
    if (!png || tools.querySelector(`.${ADDED}`) || !chart.querySelector("svg.marks")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = ADDED;
    button.textContent = "SVG";
    button.setAttribute("aria-label", png.getAttribute("aria-label").replace("PNG", "SVG"));
    button.title = "Download as SVG";
    button.onclick = () => save(chart);
    tools.append(button);
  }
}

export default function () {
  let isDue = false;
  const look = () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      add();
    });
  };
  const watch = new MutationObserver(look);
  watch.observe(document.body, { childList: true, subtree: true });
  look();
  return () => watch.disconnect();
}
