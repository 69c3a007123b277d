// What is running: cards, charts over time, sources, tenants, indexes, alerts.

import { get, poll } from "./api.js";
import { figure } from "./charts.js";
import { empty, h, refill, table } from "./dom.js";
import { bytes, count, date, decimal, minute, percent, plural, ratio, seconds, short, sourceColour, sourceName, time } from "./format.js";

const RANGES = [["5m", "5 minutes"], ["1h", "1 hour"], ["24h", "24 hours"]];
const REFRESH_MS = { "5m": 2000, "1h": 5000, "24h": 15000 };

const sum = (values) => values.reduce((a, b) => a + b, 0);
const quotients = (part, whole) => part.map((p, i) => ratio(p, whole[i]));

/** When each column ends up on the time axis: in its middle. */
const times = (window) => window.total.requests.map((_, i) => window.start + (i + 0.5) * window.seconds);
const perSecond = (window, values) => values.map((v) => v / window.seconds);

const card = (title, value, unit, under) => h("article", { class: "card" }, h("h2", {}, title),
  h("p", { class: "big" }, value, unit && h("span", {}, ` ${unit}`)), h("p", { class: "under" }, under || "\u00a0"));

const cards = (data, rangeName) => {
  const total = Object.fromEntries(Object.entries(data.window.total).map(([name, values]) => [name, sum(values)]));
  const span = Math.max(1, data.window.total.requests.length * data.window.seconds);
  const size = sum(data.namespaces.map((n) => n.index?.bytes || 0));
  const gauges = data.engine;
  return [
    card("Tokens per step", decimal(ratio(total.output_tokens, total.steps)), "", `${short(total.output_tokens)} tokens in ${short(total.steps)} steps`),
    card("Acceptance", percent(ratio(total.accepted, total.drafted)), "", `${short(total.accepted)} of ${short(total.drafted)} drafted`),
    card("Output", short(total.output_tokens / span), "tokens/s", `mean of the last ${rangeName}`),
    card("Requests", count(total.requests), "", total.failed ? `${count(total.failed)} failed or cancelled` : "none of them failed"),
    gauges && card("Running", count(gauges.running), "", `${count(gauges.waiting)} waiting`),
    card("Index memory", bytes(size), "", plural(data.namespaces.length, "namespace")),
  ];
};

const alarms = (data) => data.namespaces.filter((n) => n.acceptance?.alarmed_since).map((n) => h("div", { class: "banner bad", role: "alert" },
  h("p", {}, h("strong", {}, "Acceptance has fallen. "), `In `, h("code", {}, n.namespace), ` it is ${percent(n.acceptance.recent)}, and was ${percent(n.acceptance.baseline)} before, since ${date(n.acceptance.alarmed_since)}. `,
    "Look at the sessions: another prompt, template, tokenizer or model is the usual reason. If this is the new normal, the alarm ends by itself.")));

const MARKS = { raised: "acceptance fell", cleared: "acceptance came back", adopted: "new normal" };

const draw = (charts, data) => {
  const { window } = data;
  const { total, sources, tenants, gauges } = window;
  const named = Object.entries(sources);
  const x = { x: times(window), xKind: "time", xFormat: minute, tipFormat: time, marks: data.alerts.map((a) => ({ at: a.at, label: `${MARKS[a.kind]}: ${a.namespace}`, end: a.kind !== "raised" })) };
  const nothing = "Nothing was drafted in this time.";
  charts.acceptance.chart.update({ ...x, nothing, yFormat: (v) => percent(v, 0), yMin: 0, yMax: 1, series: [
    { name: "all", colour: 6, dash: "", span: true, values: quotients(total.accepted, total.drafted) },
    ...named.map(([label, one]) => ({ name: sourceName(label), colour: sourceColour(label), span: true, values: quotients(one.accepted, one.drafted) })),
  ] });
  charts.steps.chart.update({ ...x, nothing: "No request ended in this time.", yFormat: (v) => decimal(v, 2), yMin: 1, series: [
    { name: "tokens per step", colour: 0, span: true, values: quotients(total.output_tokens, total.steps) },
  ] });
  const model = perSecond(window, total.output_tokens.map((v, i) => v - total.accepted[i]));
  charts.sources.chart.update({ ...x, nothing, yMin: 0, series: [
    { name: sourceName("none"), colour: 7, dash: "", values: model },
    ...named.map(([label, one]) => ({ name: sourceName(label), colour: sourceColour(label), values: perSecond(window, one.accepted) })),
  ] });
  charts.tenants.chart.update({ ...x, nothing: "No request ended in this time.", yMin: 0, series: busiest(tenants).map(([name, one], i) => (
    { name: name === "_other" ? "others" : name, colour: i, values: perSecond(window, one.output_tokens) })) });
  charts.queue.hidden = !gauges.running;
  if (gauges.running) {
    charts.queue.chart.update({ ...x, marks: [], yMin: 0, series: [
      { name: "running", colour: 0, values: gauges.running }, { name: "waiting", colour: 1, values: gauges.waiting }] });
  }
  charts.memory.hidden = !gauges.index_bytes?.some((v) => v > 0);
  if (!charts.memory.hidden) {
    charts.memory.chart.update({ ...x, marks: [], yMin: 0, yFormat: bytes, series: [{ name: "bytes", colour: 2, values: filled(gauges.index_bytes) }] });
  }
};

/** Sizes are looked at less often than the finest bucket: a gap means as before. */
const filled = (values) => {
  let last = null;
  return values.map((v) => (last = v ?? last));
};

const busiest = (tenants) => Object.entries(tenants)
  .sort((a, b) => sum(b[1].output_tokens) - sum(a[1].output_tokens)).slice(0, 6);

const counts = (data) => {
  const { sources, tenants, total } = data.window;
  const output = sum(total.output_tokens);
  const bySource = Object.entries(sources).map(([label, one]) => [label, sum(one.drafted), sum(one.accepted)]).sort((a, b) => b[2] - a[2]);
  const byTenant = Object.entries(tenants).map(([name, one]) => [name, Object.fromEntries(Object.entries(one).map(([k, v]) => [k, sum(v)]))]).sort((a, b) => b[1].output_tokens - a[1].output_tokens);
  return [
    bySource.length && h("div", { class: "panel" }, h("h3", {}, "By source"), table("Drafted tokens by source",
      ["Source", "Drafted", "Accepted", "Acceptance", "Share of output"],
      bySource.map(([label, drafted, accepted]) => [sourceName(label), count(drafted), count(accepted), percent(ratio(accepted, drafted)), percent(ratio(accepted, output))]))),
    byTenant.length && h("div", { class: "panel" }, h("h3", {}, "By tenant"), table("Requests by tenant",
      ["Tenant", "Requests", "Output tokens", "Tokens per step", "Acceptance"],
      byTenant.map(([name, one]) => [name === "_other" ? "others" : name, count(one.requests), count(one.output_tokens), decimal(ratio(one.output_tokens, one.steps)), percent(ratio(one.accepted, one.drafted))]))),
  ];
};

const state = (acceptance) => {
  if (!acceptance) return h("span", { class: "badge soft" }, "no drafts yet");
  if (acceptance.alarmed_since) return h("span", { class: "badge bad" }, "fallen");
  if (acceptance.baseline === null) return h("span", { class: "badge soft" }, "learning");
  return h("span", { class: "badge ok" }, "as usual");
};

const budget = (index) => {
  if (!index.max_bytes) return bytes(index.bytes);
  const share = Math.min(1, index.bytes / index.max_bytes);
  const bar = h("i", {});
  bar.style.width = `${(100 * share).toFixed(1)}%`;
  return [`${bytes(index.bytes)} of ${bytes(index.max_bytes)}`, h("span", { class: "meter", "aria-hidden": "true" }, bar)];
};

const indexes = (data) => (data.namespaces.length
  ? h("div", { class: "panel" }, table("Namespaces: index and acceptance",
    ["Namespace", "Acceptance now", "before", "", "Sequences", "Tokens", "Nodes", "Sessions", "Memory", "Forgotten"],
    data.namespaces.map((n) => [h("code", {}, n.namespace), percent(n.acceptance?.recent), percent(n.acceptance?.baseline), state(n.acceptance),
      ...(n.index ? [count(n.index.sequences), count(n.index.tokens), count(n.index.nodes), count(n.index.sessions), budget(n.index), count(n.index.evicted_sequences)]
        : ["–", "–", "–", "–", "–", "–"])])))
  : empty("No namespace yet", h("p", {}, "A namespace is made by its first request: tenant, model and tokenizer together. Its index fills with what the model says.")));

const first = (me) => empty("No request has ended yet",
  h("p", {}, me.model ? "Send one, and its figures appear here within two seconds:" : "This service drafts for other engines. Open a drafting session over gRPC or HTTP, and its figures appear here."),
  me.model && h("pre", { class: "code", tabindex: 0 }, `curl ${location.origin}/v1/chat/completions${me.needs_key ? " -H 'Authorization: Bearer KEY'" : ""} -H 'Content-Type: application/json' \\\n  -d '{"model": "${me.model}", "messages": [{"role": "user", "content": "Count from one to ten."}]}'`),
  h("p", {}, "Or ", h("a", { href: "#/replay" }, "replay recorded sessions"), ": no traffic is needed for that."));

const history = (data) => data.alerts.length > 0 && [h("h2", {}, "What acceptance did"), h("div", { class: "panel" }, table("Alerts, latest first",
  ["Namespace", "What", "When", "Before", "Then"],
  data.alerts.map((a) => [h("code", {}, a.namespace), h("span", { class: `badge ${{ raised: "bad", cleared: "ok", adopted: "soft" }[a.kind]}` }, MARKS[a.kind]), date(a.at), percent(a.baseline), percent(a.recent)])))];

const sharing = (data) => data.sharing.length > 0 && [h("h2", {}, "Sharing"), h("div", { class: "panel" }, table("Sharing with other processes",
  ["Namespace", "Behind", "Not read yet", "Not sent yet"],
  data.sharing.map((one) => [h("code", {}, one.namespace), seconds(one.lag_seconds), count(one.behind_sequences), count(one.unsent_sequences)])))];

export const overview = async ({ main, signal, me, failed }) => {
  let range = "5m";
  const charts = {
    acceptance: figure("Acceptance", "Accepted of drafted tokens, by where drafts came from."),
    steps: figure("Tokens per step", "Output tokens per forward pass; steps without a draft count too."),
    sources: figure("Output by source", "Tokens per second, by who wrote them first."),
    tenants: figure("Output by tenant", "Tokens per second."),
    queue: figure("Queue", "Requests that run and that wait; the most in each stretch."),
    memory: figure("Index memory", "All namespaces together."),
  };
  const buttons = RANGES.map(([name, words]) => h("button", { type: "button", "data-range": name, onclick: () => { range = name; press(); again(); } }, words));
  const press = () => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.range === range)));
  const places = Object.fromEntries(["banner", "cards", "empty", "counts", "namespaces", "after"].map((name) => [name, h("div", {})]));
  places.cards.className = "cards small";
  places.counts.className = "charts";
  const chartBox = h("div", { class: "charts" }, Object.values(charts));
  press();
  main.replaceChildren(
    places.banner,
    h("div", { class: "row" }, h("h1", {}, "What is running"), h("div", { class: "segmented", role: "group", "aria-label": "Time range" }, buttons)),
    places.cards, places.empty, chartBox, places.counts, h("h2", {}, "Indexes"), places.namespaces, places.after);
  let wrong = false;
  const again = poll(async () => {
    let data;
    try {
      data = await get(`/dashboard/api/overview?range=${range}`, { signal });
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      if (error.status === 401) { failed(error); return; }
      wrong = true;
      refill(places.banner, h("p", { class: "banner bad", role: "alert" }, `${error.message} What you see is the last that was known; trying again.`));
      return;
    }
    if (signal.aborted) return;
    const quiet = sum(data.window.total.requests) === 0;
    const never = quiet && range === "24h";
    if (wrong || places.banner.childElementCount || alarms(data).length) refill(places.banner, alarms(data),
      data.state !== "ready" && h("p", { class: "banner" }, `The service is ${data.state}.`));
    wrong = false;
    refill(places.cards, cards(data, RANGES.find((r) => r[0] === range)[1]));
    refill(places.empty, (never || (quiet && !data.namespaces.some((n) => n.acceptance))) && first(me));
    draw(charts, data);
    refill(places.counts, counts(data));
    refill(places.namespaces, indexes(data));
    refill(places.after, history(data), sharing(data));
  }, () => REFRESH_MS[range], signal);
};
