(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");

  // A link to an anchor opens every fold around its target.
  const openTarget = () => {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { return; }
    const target = id && document.getElementById(id);
    if (!target) return;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView();
  };

  // Colours in the figures are names of the page's variables, so that one figure serves light, dark and paper.
  const resolved = (value, css) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z-]+)\)$/.exec(value);
      return name ? css.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolved(item, css));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, css)]));
    return value;
  };

  const inflate = async (base64) => {
    const packed = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  // plotly.js brings a style sheet for its maps. The page's policy refuses it and no chart here needs it: left empty.
  const load = (source) => {
    const make = document.createElement;
    document.createElement = (tag, ...rest) => {
      const element = make.call(document, tag, ...rest);
      if (tag === "style") Object.defineProperty(element, "textContent", { set() {} });
      return element;
    };
    const script = make.call(document, "script");
    script.textContent = source;
    document.head.append(script);
    delete document.createElement;
  };

  const config = {
    displaylogo: false, responsive: true, doubleClick: "reset",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const narrow = matchMedia("(max-width: 40rem)");
  const draw = ({ id, figure }) => {
    const { data, layout } = resolved(figure, getComputedStyle(root));
    if (narrow.matches) { layout.margin.l = 44; layout.font.size = 11; }
    const plot = document.getElementById(id);
    plot.style.height = `${layout.height}px`;
    Plotly.react(plot, data, layout, config);
  };
  const breath = () => new Promise((resume) => { setTimeout(resume); });

  // Paper shows every fold.
  const folded = [];
  addEventListener("beforeprint", () => {
    folded.push(...document.querySelectorAll("details:not([open])"));
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of folded.splice(0)) fold.open = false; });

  const start = async () => {
    openTarget();
    addEventListener("hashchange", openTarget);
    const figures = document.getElementById("figures");
    const charts = figures ? JSON.parse(figures.textContent) : [];
    if (!charts.length) return;
    try {
      load(await inflate(document.getElementById("plotly").textContent.trim()));
      for (const chart of charts) { draw(chart); await breath(); }
    } catch (error) {
      for (const plot of document.querySelectorAll(".plot")) plot.classList.add("failed");
      console.error("charts not drawn:", error);
      return;
    }
    root.dataset.charts = "drawn";
    openTarget();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
    addEventListener("beforeprint", () => { root.classList.add("printing"); charts.forEach(draw); });
    addEventListener("afterprint", () => { root.classList.remove("printing"); charts.forEach(draw); });
  };
  start();
})();
