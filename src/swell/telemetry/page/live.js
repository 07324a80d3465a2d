// The live page: the same charts, fed by the dashboard's server while runs go on. The token is in the page's own address, and
// goes with every request in a header, which no other site can set.
"use strict";
Swell.live = true;
(() => {
  const { el, state } = Swell;
  const token = new URLSearchParams(location.search).get("token") || "";
  const headers = { "X-Swell-Token": token };
  let list = [], chosen = null, abort = null, waiting = 0, frame = false, logTimer = null, logKey = "";

  const say = (text, kind) => { const home = document.getElementById("connection"); home.textContent = text; home.className = kind; };

  async function connect() {
    if (abort) abort.abort();
    abort = new AbortController();
    const { signal } = abort;
    const query = new URLSearchParams((chosen || []).map((id) => ["run", id]));
    try {
      const response = await fetch(`/api/stream?${query}`, { headers, signal });
      if (!response.ok) { say(response.status === 403 ? "refused: open the link that swell dashboard printed" : `error ${response.status}`, "lost"); return; }
      say("● live", "live");
      waiting = 0;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) if (part.startsWith("data: ")) take(JSON.parse(part.slice(6)));
      }
    } catch (error) { if (signal.aborted) return; }
    say("○ not connected", "lost");
    waiting = Math.min(10, waiting + 1);
    setTimeout(connect, 1000 * waiting);
  }

  function take(message) {
    if (message.list) {
      list = message.list;
      if (chosen === null && list.length) { chosen = [list[0].id]; connect(); }
      showList();
    }
    if (message.run) {
      const known = state.runs.has(message.run.id) && state.shown.has(message.run.id);
      Swell.put(message.run);
      state.shown.add(message.run.id);
      known ? later(true) : Swell.show();
      logs();
    }
    if (message.rows) {
      const run = state.runs.get(message.id);
      const first = run && !run.columns.samples.length;
      Swell.append(message.id, message.rows, message.tail);
      if (run && run.columns.samples.length > 12000) connect();  // the server thins it again
      else later(first);
    } else if (message.tail) { Object.assign(state.runs.get(message.id) || {}, message.tail); later(false); }
  }

  function later(whole) {  // at most once a frame
    if (whole) { Swell.show(); return; }
    if (frame) return;
    frame = true;
    requestAnimationFrame(() => { frame = false; if (!busy()) Swell.words(); Swell.redraw(); });
  }
  const busy = () => { const active = document.activeElement; return active && active.closest && active.closest(".control"); };

  function choose(id, alone) {
    const set = new Set(chosen || []);
    if (alone) { set.clear(); set.add(id); } else set.has(id) ? set.delete(id) : set.add(id);
    chosen = [...set];
    for (const known of [...state.runs.keys()]) if (!set.has(known)) { state.runs.delete(known); state.shown.delete(known); }
    state.zoom = null;
    Swell.show(); showList(); logs(); connect();
  }

  function showList() {
    const home = document.getElementById("list");
    if (!list.length) { home.replaceChildren(el("p", { class: "note" }, "There is no run here yet. This page shows the first one when it starts.")); return; }
    const cell = (text, kind) => el("td", kind ? { class: kind } : {}, text);
    home.replaceChildren(el("div", { class: "scroll" }, el("table", { id: "runlist" },
      el("thead", {}, el("tr", {}, el("th", {}, ""), el("th", {}, "run"), el("th", {}, "state"), el("th", { class: "n" }, "done"), el("th", { class: "n" }, "steps"), el("th", { class: "n" }, "workers"), el("th", { class: "n" }, "result"))),
      el("tbody", {}, ...list.map((row) => {
        const box = el("input", { type: "checkbox", "aria-label": `compare ${row.name}`, onchange: () => choose(row.id, false) });
        box.checked = (chosen || []).includes(row.id);
        const name = el("button", { type: "button", onclick: () => choose(row.id, true) }, row.name);
        const metrics = Object.entries(row.metrics).slice(0, 1).map(([key, value]) => `${key} ${Swell.number(value)}`);
        const result = metrics.length ? metrics[0] : row.loss === null ? "" : `loss ${Swell.number(row.loss)}`;
        return el("tr", { "data-run": row.id }, el("td", {}, box), el("td", {}, name), el("td", {}, el("span", { class: `state ${row.state}` }, row.state)),
          cell(row.done === null ? "" : `${Math.round(100 * row.done)} %`, "n"), cell(row.steps.toLocaleString("en-US"), "n"), cell(String(row.workers || ""), "n"), cell(result, "n"));
      })))));
  }

  Swell.controls = (run) => {
    if (!run.supervised) { controls.delete(run.id); return null; }
    if (!controls.has(run.id)) controls.set(run.id, control(run));
    return controls.get(run.id);
  };
  const controls = new Map();  // kept while the rest of the page is written again, with what is typed in them

  const control = (run) => {
    const count = el("input", { type: "number", min: 1, value: run.workers || 1, "aria-label": "workers" }), answer = el("span", { class: "key", role: "status" });
    const ask = async (what, body) => {
      answer.textContent = "…";
      try {
        const response = await fetch(`/api/${what}`, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify({ run: run.id, ...body }) });
        const reply = await response.json();
        answer.textContent = response.ok ? reply.message : reply.error;
      } catch { answer.textContent = "the dashboard does not answer"; }
    };
    return el("div", { class: "control" }, count,
      el("button", { type: "button", class: "resize", onclick: (event) => { event.target.blur(); ask("resize", { workers: Number(count.value) }); } }, "resize"),
      el("button", { type: "button", class: "danger stop", onclick: (event) => {
        const button = event.target;
        button.blur();
        if (button.dataset.sure) ask("stop", {}); else { button.dataset.sure = "1"; button.textContent = "save and stop?"; setTimeout(() => { delete button.dataset.sure; button.textContent = "stop"; }, 4000); }
      } }, "stop"), answer);
  };

  async function logs() {
    try { await showLogs(); } catch { logKey = ""; }  // the server is gone; the stream says so, and comes back
  }
  async function showLogs() {
    const home = document.getElementById("logs"), one = chosen && chosen.length === 1 ? chosen[0] : null;
    clearInterval(logTimer);
    if (one === null) { home.replaceChildren(); logKey = ""; return; }
    const response = await fetch(`/api/logs?${new URLSearchParams({ run: one })}`, { headers });
    const names = response.ok ? (await response.json()).logs : [], key = [one, ...names].join("\n");
    if (!names.length) { home.replaceChildren(); logKey = ""; } else if (logKey !== key) {  // another run, or a new worker
      logKey = key;
      const pick = el("select", { id: "worker", onchange: logs }, ...names.map((name) => el("option", { value: name }, name)));
      home.replaceChildren(el("section", { class: "logs" }, el("h2", {}, "Output of the workers ", pick), el("pre", { id: "output" })));
    }
    await read();
    clearInterval(logTimer);
    logTimer = setInterval(logs, 2500);
  }
  async function read() {
    const pick = document.getElementById("worker"), output = document.getElementById("output");
    if (!pick || !output || document.hidden || !chosen || chosen.length !== 1) return;
    const response = await fetch(`/api/logs?${new URLSearchParams({ run: chosen[0], log: pick.value })}`, { headers });
    if (!response.ok) return;
    const { text } = await response.json(), end = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
    if (output.textContent !== text) { output.textContent = text; if (end) output.scrollTop = output.scrollHeight; }
  }

  addEventListener("load", connect);
})();
