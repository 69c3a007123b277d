// A tuning report, drawn: one concurrency at a time.

import { figure, whiskers } from "./charts.js";
import { copyButton, h, refill, table } from "./dom.js";
import { count, decimal, percent } from "./format.js";

const shown = (value) => (value === null ? "default" : typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(3))) : String(value));
const VERDICT = { pays: "ok", "does not pay": "bad", undecided: "soft" };

const front = (one) => {
  const node = figure("What was tried", "Each point is a setting on the tuning sessions: quick is low, frugal is left. The line is the Pareto front.");
  const families = [...new Set(one.trials.map((t) => t.family))];
  const best = one.trials.filter((t) => t.on_front).map((t) => [t.wasted_per_token, t.ms_per_token]).sort((a, b) => a[0] - b[0]);
  return [node, () => node.chart.update({ nearest: true, xFormat: (v) => decimal(v, 1), yFormat: (v) => decimal(v, 1), tipFormat: (v) => `${decimal(v)} wasted per token`, series: [
    ...families.map((family, i) => ({ name: family, colour: i % 6, mode: "points", points: one.trials.filter((t) => t.family === family)
      .map((t) => [t.wasted_per_token, t.ms_per_token, `${decimal(t.tokens_per_step)} tokens per step`]) })),
    { name: "Pareto front", colour: 6, mode: "line", dash: "2 4", points: best },
  ] })];
};

const sensitivity = (one) => one.sensitivity.length > 0 && [h("h3", {}, "How much each threshold matters"), table("Sensitivity of thresholds",
  ["Threshold", "Kept", "Fastest", "Slowest costs"],
  [...one.sensitivity].sort((a, b) => b.spread - a.spread).map((row) => [h("code", {}, row.threshold), shown(row.reference), shown(row.best), `+${percent(row.spread)}`]))];

const pastes = (one) => one.pastes.length > 0 && [h("h3", {}, "To paste"), h("div", { class: "pastes" }, one.pastes.map((p) => h("div", {},
  h("div", { class: "head" }, h("span", {}, h("strong", {}, p.title), " ", h("span", { class: "hint" }, p.where)), copyButton(p.text)),
  h("pre", { class: "code", tabindex: 0, "aria-label": p.title }, p.text))))];

const concurrency = (box, one) => {
  const [node, draw] = front(one);
  refill(box,
    h("p", {}, h("span", { class: `badge ${VERDICT[one.verdict]}` }, one.verdict), " ", one.sentence),
    h("h3", {}, "Predicted speed-up on held-out sessions"),
    h("div", { class: "panel" }, whiskers(one.rows.map((r) => ({ name: r.role, value: r.speedup.value, low: r.speedup.low, high: r.speedup.high, strong: r.role === one.recommended })), (v) => `${decimal(v)}×`)),
    h("div", { class: "charts" }, node),
    h("div", { class: "panel" }, table("Settings on held-out sessions", ["Setting", "Tokens per step", "Acceptance", "Wasted per token", "ms per token"],
      one.rows.map((r) => [r.role, decimal(r.tokens_per_step), percent(r.acceptance_rate), decimal(r.wasted_per_token), decimal(r.ms_per_token, 3)])),
    sensitivity(one)),
    pastes(one));
  draw();
};

export const tuningResult = (box, report) => {
  const view = h("div", {});
  const buttons = report.concurrencies.map((one, i) => h("button", { type: "button", "aria-pressed": String(i === 0), onclick: () => {
    buttons.forEach((b, k) => b.setAttribute("aria-pressed", String(k === i)));
    concurrency(view, one);
  } }, `${count(one.concurrency)} at a time`));
  refill(box, h("div", { class: "row" }, h("h2", {}, "Result"), buttons.length > 1 && h("div", { class: "segmented", role: "group", "aria-label": "Requests at a time" }, buttons)),
    report.run.ended !== "complete" && h("p", { class: "banner" }, `Partial: the search was ended (${report.run.ended}).`),
    h("p", { class: "lead" }, `${report.run.parts.map((p) => `${count(p.sessions)} sessions ${p.name}`).join(", ")}; cost model ${report.cost_model.name}.`), view);
  concurrency(view, report.concurrencies[0]);
};
