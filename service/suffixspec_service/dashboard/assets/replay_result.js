// A replay report, drawn.

import { figure } from "./charts.js";
import { h, refill, table } from "./dom.js";
import { count, decimal, percent, sourceName } from "./format.js";

const range = (i, f) => (i.low === null ? "" : `${f(i.low)} to ${f(i.high)}`);

const card = (m, i) => {
  const node = h("article", { class: `card c${i % 6}` }, h("h3", {}, m.label, m.partial && h("span", { class: "tag" }, "partial")),
    h("p", { class: "big" }, decimal(m.totals.tokens_per_step), h("span", {}, " tokens per step")),
    h("p", { class: "ci" }, range(m.tokens_per_step, decimal) || "\u00a0"),
    h("dl", {}, [["Predicted speed-up", `${decimal(m.speedup.value)}×`], ["Acceptance rate", percent(m.totals.acceptance_rate)],
      ["Drafted / accepted / wasted", `${count(m.totals.drafted)} / ${count(m.totals.accepted)} / ${count(m.totals.wasted)}`],
      ["Proposing, median / p99", [m.timing.propose_ns_p50, m.timing.propose_ns_p99].map((ns) => (ns === null ? "–" : `${decimal(ns / 1000, 1)} µs`)).join(" / ")]]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
  node.style.setProperty("--series", `var(--s${i % 6})`);
  return node;
};

const charts = (methods) => {
  const all = (make, mode) => methods.map((m, i) => ({ name: m.label, colour: i % 6, mode, points: make(m) }));
  const warm = figure("Cold to warm", "Tokens per step over everything so far, as sessions go by.");
  const position = figure("Acceptance by draft position", "Of the drafts that came so far, how many had this token right.");
  const speedup = figure("Predicted speed-up by concurrency", "Requests decoded together; below 1, speculation costs time.");
  const match = figure("By match length", "Tokens per step by how many last tokens of the context were found.");
  const labels = methods[0].by_match_length.map((row) => row.group);
  return [[warm, position, match, speedup], () => {
    warm.chart.update({ yMin: 1, yFormat: decimal, xFormat: count, tipFormat: (v) => `first ${count(v)} sessions`, series: all((m) => m.cold_to_warm.map((p) => [p.last_session, p.cumulative_tokens_per_step])) });
    position.chart.update({ yMin: 0, yMax: 1, yFormat: (v) => percent(v, 0), xFormat: count, tipFormat: (v) => `position ${v}`, nothing: "No draft tokens.", series: all((m) => m.by_position.filter((p) => p.reached).map((p) => [p.position, p.conditional_acceptance]), "both") });
    match.chart.update({ yMin: 0, yFormat: decimal, xFormat: (v) => labels[v] ?? "", xTicks: labels.map((_, i) => i), series: all((m) => m.by_match_length.map((row) => [labels.indexOf(row.group), row.counts.tokens_per_step]).filter((p) => p[0] >= 0), "both") });
    const steps = methods[0].predicted.map((p) => p.concurrency);
    speedup.chart.update({ xKind: "log", xTicks: steps, rule: 1, yMin: 0, yFormat: (v) => `${decimal(v, 1)}×`, xFormat: count, tipFormat: (v) => `${v} at a time`,
      series: methods.map((m, i) => ({ name: m.label, colour: i % 6, mode: "both", points: m.predicted.map((p) => [p.concurrency, p.speedup]), hollow: m.predicted.map((p) => p.extrapolated) })) });
  }];
};

export const replayResult = (box, report) => {
  const { run, methods } = report;
  const [figures, draw] = charts(methods);
  const sources = methods.flatMap((m) => m.by_source.map((r) => [m.label, sourceName(r.source), count(r.drafted), count(r.accepted), percent(r.acceptance_rate), percent(r.output_share)]));
  refill(box,
    h("h2", {}, "Result"),
    h("p", { class: "lead" }, `${count(run.sessions)} sessions, ${count(run.turns)} generated turns, ${count(run.output_tokens)} output tokens of ${run.paths.join(", ")}; ${run.order}; cost model ${report.cost_model.name}.`),
    run.skipped.length > 0 && h("p", { class: "banner" }, `${count(run.skipped.length)} unreadable lines were skipped.`),
    h("div", { class: "cards small" }, methods.map(card)),
    h("div", { class: "charts" }, figures),
    sources.length > 0 && h("h2", {}, "By source"),
    sources.length > 0 && h("div", { class: "panel" }, table("Draft tokens by method and source", ["Method", "Source", "Drafted", "Accepted", "Acceptance", "Share of output"], sources)),
    h("p", { class: "note" }, report.cost_model.provenance));
  draw();
};
