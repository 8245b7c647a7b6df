(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const $ = (id) => document.getElementById(id);
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const say = (text) => { $("status").textContent = text; };

  // --- data in the page: gzipped, in base64 -------------------------------------------------------------------------

  const bytes = (base64) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
    const chars = atob(base64);
    const found = new Uint8Array(chars.length);
    for (let at = 0; at < chars.length; at += 1) found[at] = chars.charCodeAt(at);
    return found;
  };
  const inflate = async (id) => {
    const packed = bytes($(id).textContent);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  let whole;  // names that are cut where they stand
  const wholeNames = async () => { whole ??= JSON.parse(await inflate("names-data")); return whole; };

  // --- anchors ------------------------------------------------------------------------------------------------------

  // A link to an anchor opens every fold around its target.
  const openTarget = () => {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { return; }
    const target = id && $(id);
    if (!target) return;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView();
  };

  // --- time zones: labels change, data does not ---------------------------------------------------------------------

  let zone = "UTC";
  const formats = new Map();
  const parts = (ms) => {
    if (!formats.has(zone)) formats.set(zone, new Intl.DateTimeFormat("en-GB", {
      timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit",
    }));
    return Object.fromEntries(formats.get(zone).formatToParts(ms).map(({ type, value }) => [type, value]));
  };
  const day = (part) => `${part.year.padStart(4, "0")}-${part.month}-${part.day}`;
  const clock = (part) => `${part.hour}:${part.minute}${part.second === "00" ? "" : `:${part.second}`}`;
  const offset = (ms) => {  // of the zone from UTC, at an instant
    if (zone === "UTC") return 0;
    const part = parts(ms);
    const shown = Date.UTC(+part.year, +part.month - 1, +part.day, +part.hour, +part.minute, +part.second);
    return shown - Math.floor(ms / 1000) * 1000;
  };
  const millis = (iso) => Date.parse(/Z$/.test(iso) ? iso : `${iso.replace(" ", "T")}Z`);

  let times;
  const showTimes = () => {
    times ??= [...document.querySelectorAll("time[datetime]")].map((element) => (
      { element, utc: element.textContent, ms: millis(element.dateTime), clock: element.classList.contains("clock") }
    ));
    const first = times.length ? day(parts(times[0].ms)) : "";
    for (const { element, utc, ms, clock: brief } of times) {
      if (zone === "UTC") { element.textContent = utc; continue; }
      const part = parts(ms);
      const seconds = /\d\d:\d\d:\d\d$/.test(utc) ? `:${part.second}` : "";
      const at = `${part.hour}:${part.minute}${seconds}`;
      element.textContent = brief && day(part) === first ? at : `${day(part)} ${at}`;
    }
    for (const element of document.querySelectorAll(".zone")) element.textContent = zone;
    root.classList.toggle("other-zone", zone !== "UTC");
  };

  // Ticks of a time axis at round times of the zone.
  const STEPS = [1, 2, 5, 10, 15, 30].flatMap((n) => [n * 1e3, n * 6e4])
    .concat([1, 2, 3, 6, 12].map((n) => n * 36e5), [1, 2, 7, 14, 28, 91, 182, 365, 730].map((n) => n * 864e5))
    .sort((a, b) => a - b);
  const ticks = (low, high, most) => {
    const step = STEPS.find((one) => (high - low) / one <= most) ?? (high - low) / most;
    const values = [], texts = [];
    let before = "";
    for (let local = Math.ceil((low + offset(low)) / step) * step, count = 0; count < 50; local += step, count += 1) {
      let at = local - offset(local - offset(low));
      if (at > high) break;
      if (at < low) continue;
      const part = parts(at);
      values.push(new Date(at).toISOString().slice(0, 23).replace("T", " "));
      const date = day(part);
      const text = step >= 864e5 ? "" : clock(part);
      texts.push(date === before ? text : text ? `${text}<br>${date}` : date);
      before = date;
    }
    return { tickmode: "array", tickvals: values, ticktext: texts };
  };
  const timeAxis = (axis, range) => Object.assign(axis, ticks(millis(range[0]), millis(range[1]), narrow.matches ? 4 : 9), {
    title: { ...axis.title, text: axis.title.text.replace(/\([^()]*\)$/, `(${zone})`) },
    unifiedhovertitle: { text: "%{x|%Y-%m-%d %H:%M:%S} UTC" },  // Plotly formats it itself, and knows no zone
  });
  const stamped = (data) => {  // what a cell's hover says of its time
    const known = new Map();
    const stamp = (x) => {
      if (!known.has(x)) { const part = parts(millis(x)); known.set(x, `${day(part)} ${clock(part)} ${zone}`); }
      return known.get(x);
    };
    for (const trace of data) {
      if (trace.type !== "heatmap") continue;
      const labels = trace.x.map(stamp);
      trace.customdata = trace.z.map(() => labels);
    }
  };

  // --- charts -------------------------------------------------------------------------------------------------------

  // Colours in the figures are names of the page's variables, so that one figure serves light, dark and paper.
  const resolved = (value, css) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z-]+)\)$/.exec(value);
      return name ? css.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return typeof value.at(-1) === "number" ? value : value.map((item) => resolved(item, css));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, css)]));
    return value;
  };

  // The page's policy refuses style attributes that a script writes as text; the same declarations one by one may be set.
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function set(name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };

  // plotly.js brings a style sheet for its maps. The page's policy refuses it and no chart here needs it: left empty.
  const load = (source) => {
    const create = document.createElement;
    document.createElement = (tag, ...rest) => {
      const element = create.call(document, tag, ...rest);
      if (tag === "style") Object.defineProperty(element, "textContent", { set() {} });
      return element;
    };
    const script = create.call(document, "script");
    script.textContent = source;
    document.head.append(script);
    delete document.createElement;
  };

  const config = {
    displaylogo: false, responsive: true, doubleClick: "reset",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const narrow = matchMedia("(max-width: 40rem)");
  const brief = (text) => (text.length > 13 ? `${text.slice(0, 5)}…${text.slice(-6)}` : text);
  const fit = (data, layout) => {  // on a narrow screen: shorter labels, no numbers in cells, no colour bars
    layout.margin.l = Math.min(layout.margin.l, 44);
    layout.font.size = 11;
    for (const trace of data) if (trace.type === "heatmap") { delete trace.texttemplate; trace.showscale = false; }
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^[xy]axis/.test(key)) continue;
      if (axis.type === "category") {
        axis.tickvals = [...new Set(data.flatMap((trace) => trace[key[0]]))];
        axis.ticktext = axis.tickvals;
      }
      if (axis.ticktext) axis.ticktext = axis.ticktext.map(brief);
    }
  };
  const draw = ({ id, figure }) => {
    const plot = $(id);
    const { data, layout } = resolved(figure, getComputedStyle(root));
    if (narrow.matches) fit(data, layout);
    const timed = layout.xaxis?.type === "date";
    if (timed) { stamped(data); timeAxis(layout.xaxis, layout.xaxis.range); }
    plot.style.height = `${layout.height}px`;
    Plotly.react(plot, data, layout, config);
    if (timed && !plot.dataset.follows) {  // zoomed or panned: ticks that fit what is seen now
      plot.dataset.follows = "yes";
      let seen = "";
      plot.on("plotly_relayout", () => {
        const range = plot.layout.xaxis.range.map(String);
        if (range.join() === seen) return;
        seen = range.join();
        const { tickvals, ticktext } = ticks(millis(range[0]), millis(range[1]), narrow.matches ? 4 : 9);
        Plotly.relayout(plot, { "xaxis.tickvals": tickvals, "xaxis.ticktext": ticktext });
      });
    }
  };
  const breath = () => new Promise((resume) => { setTimeout(resume); });

  // --- saving and copying -------------------------------------------------------------------------------------------

  const save = (name, type, text) => {
    const url = URL.createObjectURL(new Blob([text], { type }));
    const link = make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    say(`Saved ${name}, if this place lets a page save files.`);
  };

  // A spreadsheet reads what begins so as a formula: an apostrophe makes it text. Numbers stay numbers.
  const cell = (text) => {
    const number = /^[-+]?[\d.,]*\d(?: ?%)?$/.test(text);
    const safe = !number && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const textOf = (element) => {
    const copy = element.cloneNode(true);
    for (const name of copy.querySelectorAll("[data-name]")) name.textContent = whole[+name.dataset.name];
    for (const hidden of copy.querySelectorAll("[aria-hidden]")) hidden.remove();
    for (const line of copy.querySelectorAll("br")) line.replaceWith(" ");
    return copy.textContent.replace(/\s+/g, " ").trim();
  };
  // Cells that span several columns or rows stand in each of them.
  const rowsOf = (table) => {
    const grid = [];
    [...table.rows].forEach((row, r) => {
      grid[r] ??= [];
      let c = 0;
      for (const one of row.cells) {
        while (grid[r][c] !== undefined) c += 1;
        const text = textOf(one);
        for (let i = 0; i < one.rowSpan; i += 1)
          for (let j = 0; j < one.colSpan; j += 1) (grid[r + i] ??= [])[c + j] = text;
        c += one.colSpan;
      }
    });
    const heads = table.tHead ? table.tHead.rows.length : 0;
    const columns = Math.max(0, ...grid.map((row) => row.length));
    const head = heads ? [Array.from({ length: columns }, (_, c) =>
      [...new Set(grid.slice(0, heads).map((row) => row[c] ?? ""))].filter(Boolean).join(" "))] : [];
    return [...head, ...grid.slice(heads)];
  };
  const csv = (table) => `${rowsOf(table).map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;

  const copy = async (text) => {
    const field = make("textarea", { readonly: "", class: "skip", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    let done = false;
    try { done = document.execCommand("copy"); } catch { /* tried otherwise below */ }
    field.remove();
    if (done || parent !== window) return done;  // a frame may not ask for the clipboard
    try { await navigator.clipboard.writeText(text); return true; } catch { return false; }
  };

  const button = (label, title, act) => {
    const element = make("button", { type: "button", title }, label);
    element.addEventListener("click", act);
    return element;
  };
  const fileName = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "table";

  const addButtons = () => {
    for (const frame of document.querySelectorAll(".scroll")) {
      const label = frame.getAttribute("aria-label");
      const get = button("CSV", `Save as CSV: ${label}`, async () => {
        await wholeNames();
        save(`${fileName(label)}.csv`, "text/csv;charset=utf-8", csv(frame.querySelector("table")));
      });
      get.setAttribute("aria-label", `Save as CSV: ${label}`);
      frame.after(make("div", { class: "under" }, get));
    }
    for (const line of document.querySelectorAll(".episode .link")) {
      const anchor = line.querySelector("a").getAttribute("href");
      line.append(" ", button("Copy link", "Copy a link to this episode", async () => {
        const link = `${location.href.split("#")[0]}${anchor}`;
        say((await copy(link)) ? "Link copied." : `Could not copy: ${link}`);
      }));
    }
  };

  const addTools = (redraw) => {
    const { part } = $("document").dataset;
    const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const known = Intl.supportedValuesOf ? Intl.supportedValuesOf("timeZone") : [];
    const select = make("select", { id: "zone" });
    for (const name of new Set(["UTC", ...(here ? [here] : []), ...known])) select.append(make("option", { value: name }, name));
    select.addEventListener("change", () => { zone = select.value; showTimes(); redraw(); say(`Times in ${zone}.`); });
    $("tools").append(
      make("label", { for: "zone" }, "Times in "), select,
      button(part ? `Save JSON ${part}` : "Save JSON", part ? "The whole stands in report.json beside this page" :
        "Save report.json, the numbers behind this page", async () => {
        save("report.json", "application/json", await inflate("document"));
      }),
    );
  };

  // --- paper --------------------------------------------------------------------------------------------------------

  const folded = [];
  addEventListener("beforeprint", () => {
    folded.push(...document.querySelectorAll("details:not([open])"));
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of folded.splice(0)) fold.open = false; });

  // This script stands behind the first chart: what follows in the page may still be missing.
  const wholePage = new Promise((resume) => { addEventListener("DOMContentLoaded", resume, { once: true }); });

  const start = async () => {
    let charts = [];
    const equipped = wholePage.then(() => {
      openTarget();
      addTools(() => charts.filter(({ figure }) => figure.layout.xaxis?.type === "date").forEach(draw));
      addEventListener("hashchange", openTarget);
    });
    if (!$("plotly")) { await equipped; addButtons(); return; }
    try {
      const [source, figures] = await Promise.all([inflate("plotly"), inflate("figures")]);
      load(source);
      charts = JSON.parse(figures);
      for (const chart of charts) {
        if (!$(chart.id)) await wholePage;
        draw(chart);
        if (!root.dataset.first) {
          performance.mark("first-chart");
          root.dataset.first = "drawn";
          await breath();
          await equipped;
          addButtons();
        }
        await breath();
      }
    } catch (error) {
      await equipped;
      if (!root.dataset.first) addButtons();
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
