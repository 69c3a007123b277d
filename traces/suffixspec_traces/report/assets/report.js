"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;

  // ---- theme ---------------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = (name) => { root.dataset.theme = name; draw(); };
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  // ---- charts --------------------------------------------------------------------------------
  const series = (i) => colour("s" + (i % 6));
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const symbols = ["circle", "square", "diamond", "triangle-up", "x", "cross"];

  const layout = (x, y, more) => {
    const axis = (title, extra) => Object.assign({
      title: { text: title, standoff: 8 }, gridcolor: colour("line"), linecolor: colour("line"),
      zeroline: false, automargin: true, fixedrange: true,
    }, extra);
    return {
      margin: { l: 48, r: 12, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
      hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } },
      showlegend: data.methods.length > 1, legend: { orientation: "h", y: 1.16, x: 0, yanchor: "top" },
      xaxis: axis(x, more.x), yaxis: axis(y, more.y), barmode: more.barmode || "group", bargap: 0.25,
      shapes: more.shapes || [],
    };
  };

  const plot = (id, traces, lay) => {
    if (traces.every((t) => !(t.x && t.x.length))) {
      $(id).textContent = "Nothing to show: no draft tokens.";
      return;
    }
    Plotly.react(id, traces, lay, { responsive: true, displayModeBar: false, displaylogo: false });
  };

  // Method labels come from the caller; plotly reads a few tags in text, so none may get through.
  const plain = (s) => s.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const traces = (make) => data.methods.flatMap((m, i) =>
    make(m, i).map((t) => Object.assign({ name: plain(m.label), legendgroup: String(i) }, t)));

  const warm = () => plot("p-warm", traces((m, i) => [
    { x: m.warm.map((p) => p[0]), y: m.warm.map((p) => p[1]), mode: "markers", showlegend: false,
      marker: { color: series(i), size: 6, opacity: 0.45, symbol: symbols[i % 6] },
      hovertemplate: "sessions to %{x}: %{y:.2f}<extra></extra>" },
    { x: m.warm.map((p) => p[0]), y: m.warm.map((p) => p[2]), mode: "lines",
      line: { color: series(i), width: 2.5, dash: dashes[i % 6] },
      hovertemplate: "first %{x} sessions: %{y:.2f}<extra></extra>" },
  ]), layout("sessions started", "tokens per step", { y: { rangemode: "tozero" } }));

  const positions = () => plot("p-position", traces((m, i) => [
    { x: m.positions.map((p) => p[0]), y: m.positions.map((p) => p[1]), customdata: m.positions.map((p) => p[2]),
      mode: "lines+markers", line: { color: series(i), width: 2, dash: dashes[i % 6] },
      marker: { size: 5, symbol: symbols[i % 6] },
      hovertemplate: "position %{x}: %{y:.1%} of %{customdata:,}<extra></extra>" },
  ]), layout("draft position", "accepted, given reached", { y: { range: [0, 1.02], tickformat: ".0%" } }));

  const matches = () => plot("p-match", traces((m, i) => [
    { x: m.matches.map((p) => p[0]), y: m.matches.map((p) => p[1]), customdata: m.matches.map((p) => p[2]),
      type: "bar", marker: { color: series(i) },
      hovertemplate: "match %{x}: %{y:.2f} tokens per step<br>%{customdata:,} steps<extra></extra>" },
  ]), layout("match length", "tokens per step", {
    x: { type: "category", categoryorder: "array", categoryarray: data.match_labels }, y: { rangemode: "tozero" } }));

  const sessions = () => plot("p-sessions", traces((m, i) => [
    { x: m.sessions, type: "histogram", nbinsx: 30, opacity: data.methods.length > 1 ? 0.6 : 0.9,
      marker: { color: series(i) }, hovertemplate: "%{x}: %{y} sessions<extra></extra>" },
  ]), layout("tokens per step of a session", "sessions", { barmode: "overlay" }));

  const speedups = () => plot("p-speedup", traces((m, i) => [
    { x: m.speedups.map((p) => p[0]), y: m.speedups.map((p) => p[1]), mode: "lines+markers",
      line: { color: series(i), width: 2, dash: dashes[i % 6] },
      marker: { size: 8, symbol: m.speedups.map((p) => symbols[i % 6] + (p[2] ? "-open" : "")) },
      hovertemplate: "%{x} at a time: %{y:.2f}×<extra></extra>" },
  ]), layout("requests at a time", "speed-up", {
    x: { type: "log", tickvals: data.concurrencies, ticktext: data.concurrencies.map(String) },
    y: { rangemode: "tozero" },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: colour("soft"), width: 1, dash: "dot" } }],
  }));

  const calibration = () => plot("p-calibration", traces((m, i) => [
    { x: m.calibration.map((p) => p[0]), y: m.calibration.map((p) => p[1]), customdata: m.calibration.map((p) => p[2]),
      mode: "lines+markers", line: { color: series(i), width: 2, dash: dashes[i % 6] },
      marker: { size: 7, symbol: symbols[i % 6] },
      hovertemplate: "said %{x:.2f}, accepted %{y:.2f}<br>%{customdata:,} tokens<extra></extra>" },
    { x: m.before.map((p) => p[0]), y: m.before.map((p) => p[1]), customdata: m.before.map((p) => p[2]),
      mode: "lines+markers", opacity: 0.5, line: { color: series(i), width: 1, dash: "dot" },
      marker: { size: 7, symbol: symbols[i % 6] + "-open" },
      hovertemplate: "before learning: said %{x:.2f}, accepted %{y:.2f}<br>%{customdata:,} tokens<extra></extra>" },
  ]), layout("probability given", "accepted", {
    x: { range: [0, 1.02] }, y: { range: [0, 1.02] },
    shapes: [{ type: "line", x0: 0, x1: 1, y0: 0, y1: 1, line: { color: colour("soft"), width: 1, dash: "dot" } }],
  }));

  const draw = () => [warm, positions, matches, sessions, speedups, calibration].forEach((f) => f());

  // ---- token view ----------------------------------------------------------------------------
  const view = data.view;
  const kinds = data.source_kinds; // source code -> css class
  const names = data.source_names; // source code -> words
  const state = { session: 0, turn: 0, method: 0, focus: 0 };
  const number = (x) => x.toLocaleString("en-US");

  const element = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text; // never as HTML: trace text is not trusted
    return node;
  };

  const fill = (select, labels, chosen) => {
    select.replaceChildren(...labels.map((label, i) => {
      const option = element("option", "", label);
      option.value = String(i);
      return option;
    }));
    select.value = String(chosen);
  };

  const turns = () => view.sessions[state.session].turns;

  const fillTurns = () => fill($("v-turn"), turns().map((t) => {
    const what = [t.after_tool && "after " + t.after_tool, t.tool && "calls " + t.tool].filter(Boolean).join(", ");
    return t.number + (what ? " · " + what : "") + " · " + number(t.output_tokens) + " tokens";
  }), state.turn);

  const write = (node, text) => { // newlines are shown and kept
    text.split("\n").forEach((part, i) => {
      if (i) { node.append(element("span", "nl", "↵"), "\n"); }
      node.append(part);
    });
  };

  const describe = (turn, method, token, at, step) => {
    const shown = JSON.stringify(turn.texts[token] || "(part of a character)");
    const source = method.sources[token];
    const [gained, drafted, accepted, match, rejected] = method.steps[step];
    const last = at === gained - 1 && source === 0;
    const lines = [shown + ": " + (source ? "drafted from " + names[source] + ", accepted"
      : drafted ? (last ? "written by the model after the accepted part of the draft" : "written by the model")
        : "written by the model, nothing was drafted")];
    lines.push("step " + (step + 1) + " of " + method.steps.length + ": drafted " + drafted + ", accepted " + accepted +
      ", match length " + match);
    if (rejected.length) lines.push("rejected: " + rejected.map((r) => JSON.stringify(r)).join("   "));
    return lines.join("\n");
  };

  const show = () => {
    const turn = turns()[state.turn];
    const method = turn.methods[state.method];
    const box = $("v-text");
    const inline = $("v-rejected").checked;
    const parts = [];
    const spans = [];
    let token = 0;
    method.steps.forEach((step, s) => {
      const [gained, drafted, accepted, , rejected] = step;
      for (let at = 0; at < gained && token < turn.texts.length; at++, token++) {
        const source = method.sources[token] || 0;
        const span = element("span", "t" + (source ? " " + kinds[source] : ""));
        write(span, turn.texts[token]);
        if (!source && drafted > accepted) {
          span.classList.add("after");
          if (inline) rejected.forEach((r) => parts.push(element("del", "r", r)));
        }
        span.tabIndex = -1;
        const index = token, place = at;
        span.dataset.i = String(index);
        span.dataset.s = String(s);
        span.describe = () => describe(turn, method, index, place, s);
        spans.push(span);
        parts.push(span);
      }
    });
    box.replaceChildren(...parts);
    if (turn.texts.length < turn.output_tokens) {
      box.append(element("span", "note", "\n… " + number(turn.output_tokens - turn.texts.length) + " further tokens are not in this page"));
    }
    state.focus = 0;
    if (spans[0]) spans[0].tabIndex = 0;
    box.spans = spans;
    $("v-context").textContent = "…" + turn.context;
    $("v-info").textContent = "Point at a token, or move through the text with the arrow keys.";
  };

  const inspect = (span) => {
    const box = $("v-text");
    if (box.active) box.active.forEach((s) => s.classList.remove("on"));
    box.active = box.spans.filter((s) => s.dataset.s === span.dataset.s);
    box.active.forEach((s) => s.classList.add("on"));
    $("v-info").textContent = span.describe();
  };

  const move = (to) => {
    const spans = $("v-text").spans;
    const next = spans[Math.max(0, Math.min(spans.length - 1, to))];
    if (!next) return;
    spans[state.focus].tabIndex = -1;
    state.focus = Number(next.dataset.i);
    next.tabIndex = 0;
    next.focus();
  };

  const stepEdge = (from, direction) => {
    const spans = $("v-text").spans;
    const step = Number(spans[from].dataset.s) + direction;
    const found = spans.findIndex((s) => Number(s.dataset.s) === step);
    return found < 0 ? from : found;
  };

  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.dataset.i) return;
    const at = state.focus;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: Infinity,
      ArrowDown: stepEdge(at, 1), ArrowUp: stepEdge(at, -1) }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  };

  const legend = () => {
    const used = [...new Set(view.sessions.flatMap((s) => s.turns.flatMap((t) => t.methods.flatMap((m) => m.sources))))].sort((a, b) => a - b);
    $("v-legend").replaceChildren(...[0, ...used.filter((u) => u)].map((source) => {
      const item = element("li");
      item.append(element("span", "t " + (source ? kinds[source] : ""), "token"), " ", source ? names[source] : "written by the model");
      return item;
    }));
    const item = element("li");
    item.append(element("span", "t after", "token"), " a draft was rejected here");
    $("v-legend").append(item);
  };

  const start = () => {
    // Begin where there is something to see: the median session, its turn with most accepted.
    state.session = Math.max(0, view.sessions.findIndex((s) => s.reasons.includes("median")));
    const accepted = turns().map((t) => t.methods[0].steps.reduce((sum, s) => sum + s[2], 0));
    state.turn = accepted.indexOf(Math.max(...accepted));
    const more = view.sessions_total - view.sessions.length;
    $("view-note").textContent = "Shown: " + number(view.sessions.length) + " of " + number(view.sessions_total) +
      " sessions" + (more ? " (first, best, median and worst by tokens per step of " + view.methods[0] + ", and some evenly spaced ones)" : "") +
      ", each up to " + number(view.tokens_per_session) + " output tokens. Left and right go from token to token, up and down from step to step.";
    fill($("v-session"), view.sessions.map((s) => s.id + " (" + s.reasons.join(", ") + ")" + (s.source ? " · " + s.source : "")), state.session);
    fill($("v-method"), view.methods, 0);
    fillTurns();
    legend();
    $("v-session").addEventListener("change", (e) => { state.session = Number(e.target.value); state.turn = 0; fillTurns(); show(); });
    $("v-turn").addEventListener("change", (e) => { state.turn = Number(e.target.value); show(); });
    $("v-method").addEventListener("change", (e) => { state.method = Number(e.target.value); show(); });
    $("v-rejected").addEventListener("change", show);
    const box = $("v-text");
    box.addEventListener("keydown", keys);
    const at = (event) => { const span = event.target.closest(".t"); if (span && span.describe) inspect(span); };
    box.addEventListener("mouseover", at);
    box.addEventListener("focusin", (event) => { const span = event.target.closest(".t"); if (span) { state.focus = Number(span.dataset.i); at(event); } });
    box.addEventListener("click", (event) => { const span = event.target.closest(".t"); if (span) move(Number(span.dataset.i)); });
    show();
  };

  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (e) => setTheme(e.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
  if (view && view.sessions.length) start();
})();
