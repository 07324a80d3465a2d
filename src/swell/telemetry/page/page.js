// The page of one or several runs: charts, where the time went, what was decided and why. swell.report puts the runs into the
// page; the dashboard sends them while they grow (see live.js). Nothing here loads anything from elsewhere.
"use strict";
const Swell = (() => {
  const COLOURS = { light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#3F8FBF", "#555555"],
                    dark: ["#56B4E9", "#E8853A", "#2FBF93", "#DE9BC0", "#E6B422", "#8CC6EE", "#BBBBBB"] };
  const SPENT = { training: "#0072B2", statistics: "#CC79A7", data: "#E69F00", saving: "#009E73", resizing: "#D55E00", repeated: "#8B4513", other: "#8A979E" };
  const AXES = { samples: "samples", step: "steps", progress: "progress, in base steps", time: "time" };
  const MARKS = { start: "started or resumed", resize: "workers changed", end: "ended or stopped", notice: "asked to stop", fault: "fault", skip: "step not taken" };
  const state = { runs: new Map(), shown: new Set(), x: "samples", theme: null, charts: [], zoom: null };

  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };
  const number = (value) => {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e9) return trimmed(value / 1e9) + "G";
    if (size >= 1e6) return trimmed(value / 1e6) + "M";
    if (size >= 1e4) return trimmed(value / 1e3) + "k";
    return trimmed(value);
  };
  const trimmed = (value) => value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(3).replace(/\.?0*e/, "e") : String(Number(value.toPrecision(4)));
  const duration = (seconds) => {
    if (seconds < 60) return `${trimmed(Math.round(seconds * 10) / 10)} s`;
    const minutes = Math.floor(Math.round(seconds) / 60), rest = Math.round(seconds) % 60;
    if (minutes < 60) return `${minutes}:${String(rest).padStart(2, "0")} min`;
    return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
  };
  const place = (value) => state.x === "time" ? duration(value) : number(value);
  const theme = () => document.documentElement.dataset.theme;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const runColour = (index) => COLOURS[theme()][index % COLOURS.light.length];
  const faint = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const visible = () => [...state.runs.values()].filter((run) => state.shown.has(run.id));

  // Each panel: the columns to draw of every run, and how.
  const PANELS = [
    { id: "workers", title: "workers", height: 120, lines: [{ of: "workers", stepped: true, fill: true }], zero: true, whole: true, room: 1.35 },
    { id: "batch", title: "global batch, in samples", height: 130, lines: [{ of: "batch", stepped: true }], octaves: true },
    { id: "loss", title: "loss", height: 190, lines: [{ of: "loss", thin: true }, { of: "smooth", main: true }], decades: 30 },
    { id: "factor", title: "learning rate factor", height: 120, lines: [{ of: "factor", stepped: true }], zero: true },
    { id: "gain", title: "gain: base steps a step is worth", height: 120, lines: [{ of: "gain", stepped: true }], zero: true },
    { id: "noise", title: "noise scale, in samples, with its 95 % interval", height: 140, lines: [{ of: "low", bound: true }, { of: "high", bound: true }, { of: "noise", main: true }], band: [1, 0], decades: 8 },
    { id: "speed", title: "samples a second; dashed: predicted when the batch was chosen", height: 140, lines: [{ of: "speed", main: true }, { of: "predicted", dashed: true, stepped: true }], zero: true },
  ];

  const has = (run, name) => run.columns[name] && run.columns[name].some((value) => value !== null);

  function table(panel, runs) {
    const tables = runs.map((run) => [run.columns[state.x], ...panel.lines.map((line) => run.columns[line.of] || [])]);
    for (const [x, ...columns] of tables) for (const column of columns) while (column.length < x.length) column.push(null);
    const distinct = tables.map(([x, ...columns]) => {  // an x that stands still (time of two steps) would fold the line
      const keep = x.map((value, index) => value !== null && (index === 0 || value > x[index - 1]));
      return [x, ...columns].map((column) => column.filter((_, index) => keep[index]));
    });
    if (distinct.length === 1) return distinct[0];
    return uPlot.join(distinct, distinct.map((columns) => columns.map(() => 1)));
  }

  function range(panel, runs) {
    let low = Infinity, high = -Infinity;
    const values = [];
    for (const run of runs) for (const line of panel.lines) {
      if (line.bound) continue;
      for (const value of run.columns[line.of] || []) if (value !== null) { values.push(value); if (value < low) low = value; if (value > high) high = value; }
    }
    if (!values.length) return null;
    if (panel.id === "loss" || panel.id === "speed") { values.sort((a, b) => a - b); high = Math.max(values[Math.floor(0.995 * (values.length - 1))], low); }
    return [low, high];
  }

  function scale(panel, runs) {
    const found = range(panel, runs);
    if (found === null) return {};
    const [low, high] = found;
    const log = low > 0 && (panel.octaves ? high >= 8 * low : panel.decades ? high > panel.decades * low : false);
    if (log) {
      const base = panel.octaves ? 2 : 10, power = (value, round) => base ** round(Math.log(value) / Math.log(base));
      return { distr: 3, log: base, range: () => [power(low * 0.999, Math.floor), power(high * 1.001, Math.ceil)] };
    }
    if (panel.zero || (panel.id === "loss" && low >= 0) || panel.octaves || panel.id === "noise")
      return { range: () => [0, (high || 1) * (panel.room || 1.08)] };
    return { range: () => [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)] };
  }

  const marksPlugin = (panel) => ({ hooks: { drawClear: [(u) => {
    const { ctx } = u, { left, top, width, height } = u.bbox, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
    let lastText = -Infinity, row = 0;
    for (const run of visible()) for (const mark of run.marks) {
      if (!(mark.kind in MARKS)) continue;
      const x = Math.round(u.valToPos(mark[state.x], "x", true)) + 0.5;
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = mark.kind === "fault" || mark.kind === "skip" ? colour("--bad") : colour("--soft");
      ctx.globalAlpha = panel.id === "workers" ? 0.8 : 0.28;
      ctx.setLineDash(mark.kind === "resize" ? [] : [4 * ratio, 3 * ratio]);
      ctx.lineWidth = ratio;
      ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
      if (panel.id !== "workers" || visible().length > 1) continue;
      const words = mark.kind === "resize" ? mark.text.replace(/^From /, "").replace(/( workers?).*/, "").replace(" to ", "→") : { start: mark.step ? "resumed" : "", end: "ended", notice: "asked to stop", fault: "fault", skip: "again" }[mark.kind];
      if (!words) continue;
      ctx.globalAlpha = 1; ctx.fillStyle = colour("--soft"); ctx.font = `${11 * ratio}px system-ui, sans-serif`; ctx.textBaseline = "top";
      const size = ctx.measureText(words).width;
      row = x - lastText < 0 ? row + 1 : 0;
      if (row > 2) continue;
      ctx.fillText(words, Math.min(x + 4 * ratio, left + width - size), top + (2 + 13 * row) * ratio);
      lastText = x + size + 10 * ratio;
    }
    ctx.restore();
  }] } });

  // On a logarithmic axis only the powers get lines and numbers.
  const powers = (panel) => (u, splits) => {
    if (u.scales.y.distr !== 3) return splits;
    const base = panel.octaves ? 2 : 10, low = Math.log(u.scales.y.min) / Math.log(base), high = Math.log(u.scales.y.max) / Math.log(base);
    const every = Math.max(1, Math.ceil((high - low) / 6));
    return splits.map((split) => {
      const power = Math.log(split) / Math.log(base);
      return Math.abs(power - Math.round(power)) < 1e-6 && Math.round(power) % every === 0 ? split : null;
    });
  };

  function options(panel, runs, width) {
    const several = runs.length > 1, series = [{}], bands = [];
    runs.forEach((run, index) => {
      const base = series.length, tone = several ? runColour([...state.runs.keys()].indexOf(run.id)) : runColour(PANELS.indexOf(panel) % 6);
      for (const line of panel.lines) series.push({
        label: run.name, stroke: line.bound ? "transparent" : line.thin ? faint(tone, several ? 0.18 : 0.35) : tone,
        width: (line.thin ? 1 : line.dashed ? 1.2 : 1.8), dash: line.dashed ? [5, 4] : undefined,
        paths: line.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
        fill: line.fill && !several ? faint(tone, 0.14) : undefined, points: { show: run.columns.samples.length < 3 }, spanGaps: false,
      });
      if (panel.band) bands.push({ series: [base + panel.band[0], base + panel.band[1]], fill: faint(tone, 0.18) });
    });
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    return {
      width, height: panel.height, series, bands, legend: { show: false }, plugins: [marksPlugin(panel)], padding: [6, 10, 0, 0],
      cursor: { sync: { key: "swell" }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: false, range: (u, low, high) => state.zoom || [low, high === low ? low + 1 : high] }, y: scale(panel, runs) },
      axes: [{ ...axis, size: 24, gap: 3, values: (u, ticks) => ticks.map((tick) => tick === null ? "" : place(tick)), space: 70 },
             { ...axis, grid: { ...axis.grid, filter: powers(panel) }, filter: powers(panel), size: 52, gap: 4, space: 26, values: (u, ticks) => ticks.map((tick) => tick === null || (panel.whole && tick % 1) ? "" : number(tick)) }],
      hooks: { setCursor: [(u) => values(panel, runs, u)], setSelect: [(u) => {
        if (u.select.width < 4) return;
        state.zoom = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
        redraw();
      }] },
    };
  }

  function values(panel, runs, u) {
    const target = document.getElementById(`values-${panel.id}`), index = u.cursor.idx;
    if (!target) return;
    if (index === null || index === undefined) { target.textContent = ""; return; }
    const main = Math.max(0, panel.lines.findIndex((line) => line.main || (!line.thin && !line.bound)));
    const parts = runs.map((run, number_) => {
      const column = u.data[1 + number_ * panel.lines.length + main];
      let at = index;
      while (at > 0 && (column[at] === undefined || column[at] === null)) at -= 1;
      return (runs.length > 1 ? `${run.name} ` : "") + number(column[at]);
    });
    target.textContent = `${place(u.data[0][index])}: ${parts.join(" · ")}`;
  }

  function draw() {
    const home = document.getElementById("charts"), runs = visible().filter((run) => run.columns.samples.length);
    for (const chart of state.charts) chart.u.destroy();
    state.charts = [];
    home.replaceChildren();
    if (!runs.length) { home.append(el("p", { class: "key" }, state.runs.size ? "No step was taken yet." : Swell.live ? "Choose a run in the list." : "")); return; }
    for (const panel of PANELS) {
      if (!runs.some((run) => panel.lines.some((line) => has(run, line.of)))) continue;
      const box = el("div", { class: "chart", id: `chart-${panel.id}` },
        el("div", { class: "head" }, el("b", {}, panel.title), el("span", { class: "values", id: `values-${panel.id}` })));
      home.append(box);
      const u = new uPlot(options(panel, runs, home.clientWidth), table(panel, runs), box);
      u.over.addEventListener("dblclick", () => { state.zoom = null; redraw(); });
      state.charts.push({ panel, u });
    }
    const kinds = new Set(runs.flatMap((run) => run.marks.map((mark) => mark.kind)));
    home.append(el("p", { class: "key" }, ...Object.entries(MARKS).filter(([kind]) => kinds.has(kind)).map(([kind, words]) => el("span", {}, `${kind === "resize" ? "│" : "┆"} ${words}`)),
      el("span", {}, "Drag to zoom, double-click to see all.")));
  }

  function redraw() {  // new data or another zoom in the same charts
    const runs = visible().filter((run) => run.columns.samples.length);
    for (const { panel, u } of state.charts) {
      const fresh = scale(panel, runs);
      if (fresh.range && (fresh.distr || 1) === u.scales.y.distr) u.scales.y.range = fresh.range;
      u.setData(table(panel, runs));
    }
  }

  function cards() {
    document.getElementById("runs").replaceChildren(...visible().map((run) => {
      const index = [...state.runs.keys()].indexOf(run.id), dot = el("span", { class: "dot" });
      dot.style.background = runColour(index);
      const bar = el("div", { class: "bar", role: "progressbar", "aria-valuenow": Math.round(100 * (run.done || 0)) }), inner = el("div");
      inner.style.width = `${100 * (run.done || 0)}%`;
      bar.append(inner);
      return el("section", { class: "run", "data-run": run.id },
        el("h3", {}, visible().length > 1 ? dot : null, run.name, el("span", { class: `state ${run.state}` }, run.state)),
        run.problem ? el("p", { class: "note" }, run.problem) : null,
        run.done === null || run.done === undefined ? null : bar,
        run.facts.length ? el("dl", { class: "facts" }, ...run.facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))) : el("p", { class: "key" }, "No step was taken yet."),
        Swell.controls ? Swell.controls(run) : null);
    }));
  }

  function accounts() {
    const home = document.getElementById("account");
    home.replaceChildren(...visible().filter((run) => run.account.some((part) => part.seconds > 0)).flatMap((run) => {
      const total = run.account.reduce((sum, part) => sum + part.seconds, 0), parts = run.account.filter((part) => part.seconds > 0);
      const stack = el("div", { class: "stack", role: "img", "aria-label": parts.map((part) => `${part.words} ${Math.round(100 * part.seconds / total)} %`).join(", ") },
        ...parts.map((part) => { const piece = el("div", { title: part.words }); piece.style.width = `${100 * part.seconds / total}%`; piece.style.background = SPENT[part.kind]; return piece; }));
      const legend = el("ul", { class: "legend" }, ...parts.map((part) => {
        const dot = el("span", { class: "dot" }); dot.style.background = SPENT[part.kind];
        const share = 100 * part.seconds / total;
        return el("li", {}, dot, `${part.words} ${duration(part.seconds)}, ${share < 0.1 ? "under 0.1" : share.toFixed(share < 10 ? 1 : 0)} %`);
      }));
      return [visible().length > 1 ? el("h3", {}, run.name) : null, stack, legend].filter(Boolean);
    }));
  }

  function decisions() {
    const rows = visible().flatMap((run) => run.decisions.map((row) => ({ run, ...row }))), several = visible().length > 1;
    if (several) rows.sort((a, b) => a[state.x] - b[state.x]);
    const kinds = document.getElementById("kinds"), wanted = kinds ? kinds.value : "why";
    const shown = rows.filter((row) => wanted === "all" || row.reasons.length || ["resize", "start", "end", "notice", "fault", "skip", "warning"].includes(row.kind));
    document.getElementById("decisions").replaceChildren(shown.length ? el("table", { class: "log" },
      el("thead", {}, el("tr", {}, several ? el("th", {}, "run") : null, el("th", { class: "n" }, "step"), el("th", { class: "n" }, "time"), el("th", {}, "what and why"))),
      el("tbody", {}, ...shown.map((row) => el("tr", { class: row.kind }, several ? el("td", {}, row.run.name) : null, el("td", { class: "n" }, row.step.toLocaleString("en-US")), el("td", { class: "n" }, duration(row.time)),
        el("td", {}, row.text, row.reasons.length ? el("ul", {}, ...row.reasons.map((reason) => el("li", {}, reason))) : null)))))
      : el("p", { class: "key" }, "Nothing was changed."));
  }

  function details() {
    document.getElementById("details").replaceChildren(...visible().flatMap((run) => [["settings", run.settings], ["machine and versions", run.machine]].filter(([, pairs]) => pairs.length).map(([title, pairs]) =>
      el("div", {}, el("h3", {}, visible().length > 1 ? `${run.name}: ${title}` : title), el("table", {}, el("tbody", {}, ...pairs.map(([label, value]) => el("tr", {}, el("td", {}, label), el("td", {}, value)))))))));
  }

  function words() { cards(); accounts(); decisions(); details(); }
  function show() { draw(); words(); }

  function setTheme(name) {
    document.documentElement.dataset.theme = name || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  }

  // Runs come and grow.
  function put(run) {
    const before = state.runs.get(run.id);
    if (before === undefined || run.columns) {
      run.columns = run.columns || { samples: [], step: [], progress: [], time: [] };
      state.runs.set(run.id, before === undefined ? run : Object.assign(before, run));
    } else Object.assign(before, run);
  }
  function append(id, rows, tail) {
    const run = state.runs.get(id);
    if (!run) return;
    const columns = run.columns, last = (name) => columns[name].length ? columns[name][columns[name].length - 1] : null;
    rows.samples.forEach((samples, index) => {
      const size = samples - (last("samples") || 0), loss = rows.loss[index];
      let mean = last("smooth");
      const decay = Math.exp(-size / run.over);
      if (loss !== null) mean = mean === null || mean === undefined ? loss : decay * mean + (1 - decay) * loss;
      for (const name of Object.keys(rows)) (columns[name] = columns[name] || []).push(rows[name][index]);
      (columns.smooth = columns.smooth || []).push(mean);
      (columns.predicted = columns.predicted || []).push(last("predicted"));
    });
    Object.assign(run, tail);
  }

  function begin() {
    setTheme(null);
    const axis = document.getElementById("axis");
    for (const [value, title] of Object.entries(AXES)) axis.append(el("option", { value }, title));
    axis.addEventListener("change", () => { state.x = axis.value; state.zoom = null; draw(); decisions(); });
    document.getElementById("theme").addEventListener("click", () => { setTheme(theme() === "dark" ? "light" : "dark"); show(); });
    document.getElementById("kinds").addEventListener("change", decisions);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(null); show(); });
    let before = null;
    addEventListener("beforeprint", () => { before = theme(); setTheme("light"); show(); for (const { panel, u } of state.charts) u.setSize({ width: Math.min(700, u.width), height: panel.height }); });
    addEventListener("afterprint", () => { setTheme(before); show(); });
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return;
      width = entry.contentRect.width;
      for (const { panel, u } of state.charts) u.setSize({ width: Math.round(width), height: panel.height });
    }).observe(document.getElementById("charts"));
    const data = JSON.parse(document.getElementById("data").textContent);
    for (const run of data.runs) { put(run); state.shown.add(run.id); }
    picker();
    show();
  }

  function picker() {
    const home = document.getElementById("picker");
    if (!home || state.runs.size < 2 || Swell.live) return;
    home.replaceChildren(...[...state.runs.values()].map((run) => {
      const box = el("input", { type: "checkbox", onchange: () => { box.checked ? state.shown.add(run.id) : state.shown.delete(run.id); show(); } });
      box.checked = true;
      return el("label", {}, box, ` ${run.name} `);
    }));
  }

  return { begin, put, append, show, draw, redraw, words, state, el, number, duration };
})();
