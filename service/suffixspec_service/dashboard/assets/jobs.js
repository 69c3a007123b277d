// Replay and tuning: a form, the jobs and how far they are, their results.

import { download, events, get, post, remove, uploadFile } from "./api.js";
import { announce, empty, h, refill } from "./dom.js";
import { bytes, count, date, seconds } from "./format.js";
import { replayResult } from "./replay_result.js";
import { tuningResult } from "./tuning_result.js";

const URL_ = "/v1/speculation/jobs";
const BADGE = { queued: "soft", running: "busy", completed: "ok", failed: "bad", cancelled: "soft" };

const field = (label, control, hint) => {
  control.id ||= `f-${Math.random().toString(36).slice(2, 9)}`;
  return h("div", {}, h("label", { class: "label", for: control.id }, label), control, hint && h("p", { class: "hint" }, hint));
};
const check = (name, value, checked) => h("label", {}, h("input", { type: "checkbox", name, value, checked }), value);
const choose = (names, chosen) => {
  const select = h("select", {}, names.map((name) => h("option", { value: name }, name)));
  select.value = chosen;
  return select;
};
const number = (value, attributes) => h("input", { type: "number", value, ...attributes });

/** What both kinds of job are asked: what to read, and what a step costs. */
const sources = (options) => {
  const files = h("input", { type: "file", multiple: true });
  const samples = options.samples.map((name) => check("sample", name, true));
  files.addEventListener("change", () => { // own traces instead of the samples, unless both are wanted
    if (files.files.length) samples.forEach((label) => { label.querySelector("input").checked = false; });
  });
  const cost = choose(options.cost_models, options.default_cost_model);
  const tokenizer = choose(options.tokenizers, options.tokenizers.includes("smollm2") ? "smollm2" : options.tokenizers[0]);
  const limit = number("", { min: 1, placeholder: "all" });
  return {
    nodes: [
      samples.length && h("fieldset", {}, h("legend", {}, "Sample sessions"), h("div", { class: "choices" }, samples)),
      field("Own traces", files, `Files as they were recorded: OpenAI, Anthropic, LangSmith, Claude Code and more; gzip and zstd too. At most ${bytes(options.upload_bytes)}.`),
      h("div", { class: "fields" }, field("Cost model", cost, "What a verify step costs on your machine."), field("Tokenizer", tokenizer), field("Sessions at most", limit)),
    ],
    read: async (say) => {
      const traces = [];
      for (const file of files.files) {
        say(`Sending ${file.name} …`);
        traces.push((await uploadFile(file)).id);
      }
      const named = samples.map((label) => label.querySelector("input")).filter((box) => box.checked).map((box) => box.value);
      if (!named.length && !traces.length) throw new Error("Choose sample sessions, or give trace files of your own.");
      return { samples: named, traces, cost_model: cost.value, tokenizer: tokenizer.value, limit_sessions: limit.value ? Number(limit.value) : null };
    },
  };
};

const replayForm = (options) => {
  const methods = options.methods.map((name) => check("method", name, !["prediction", "hybrid"].includes(name)));
  const own = h("textarea", { rows: 2, spellcheck: "false", placeholder: '{"method": "suffix", "suffix_decoding_max_spec_factor": 2.0}' });
  const concurrency = number("", { min: 1, max: 256, placeholder: "as recorded" });
  return {
    nodes: [
      h("fieldset", {}, h("legend", {}, "Methods, side by side"), h("div", { class: "choices" }, methods)),
      field("One configuration more", own, "JSON, as vLLM's --speculative-config takes it."),
      h("div", { class: "fields" }, field("Sessions at once", concurrency)),
    ],
    read: () => {
      const chosen = methods.map((label) => label.querySelector("input")).filter((box) => box.checked).map((box) => box.value);
      if (own.value.trim()) {
        try {
          chosen.push(JSON.parse(own.value));
        } catch (error) {
          throw new Error(`The configuration is not valid JSON: ${error.message}`);
        }
      }
      if (!chosen.length) throw new Error("Choose at least one method.");
      return { kind: "replay", methods: chosen, concurrency: concurrency.value ? Number(concurrency.value) : null };
    },
  };
};

const tuningForm = () => {
  const concurrency = h("input", { value: "1, 8", inputmode: "numeric" });
  const trials = number(40, { min: 20, max: 500 });
  const each = h("input", { type: "checkbox", checked: true });
  const minutes = number("", { min: 1, max: 1440, placeholder: "none" });
  return {
    nodes: [h("div", { class: "fields" },
      field("Requests at a time", concurrency, "Numbers; each gets settings of its own."),
      field("Trials for each", trials), field("Minutes at most", minutes, "What was found until then is judged.")),
    h("div", { class: "choices" }, h("label", {}, each, "Try the thresholds of the best one by one"))],
    read: () => ({
      kind: "tuning", concurrency: concurrency.value.split(/[\s,]+/).filter(Boolean).map(Number), trials: Number(trials.value), sensitivity: each.checked,
      timeout_s: minutes.value ? 60 * Number(minutes.value) : null,
    }),
  };
};

const form = (kind, options, started) => {
  const common = sources(options);
  const own = kind === "replay" ? replayForm(options) : tuningForm();
  const said = h("p", { class: "hint", role: "status" });
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const button = h("button", { class: "primary" }, kind === "replay" ? "Start replay" : "Start tuning");
  return h("form", { class: "panel", "aria-label": `New ${kind}`, onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    wrong.hidden = true;
    try {
      const spec = { ...own.read(), ...await common.read((text) => { said.textContent = text; }) };
      started(await post(URL_, spec));
      announce(`${kind} started`);
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
    } finally {
      said.textContent = "";
      button.disabled = false;
    }
  } }, common.nodes, own.nodes, wrong, said, h("div", {}, button));
};

const read = (job) => [...job.spec.samples, job.spec.traces.length && `${count(job.spec.traces.length)} own`].filter(Boolean).join(", ");

class JobItem {
  constructor(job, page) {
    this.page = page;
    this.node = h("li", { class: "item" });
    this.update(job);
  }

  update(job) {
    this.job = job;
    const { stage, done, total } = job.progress;
    const ended = ["completed", "failed", "cancelled"].includes(job.state);
    const share = total ? Math.min(1, done / total) : null;
    const progress = h("progress", { max: 1, value: share ?? undefined, "aria-label": stage || "waiting" });
    refill(this.node,
      h("span", { class: "top" }, h("span", { class: "name" }, read(job)), h("span", { class: `badge ${BADGE[job.state]}` }, job.state)),
      h("span", { class: "about" }, h("span", {}, date(job.created_at)),
        job.ended_at && job.started_at && h("span", {}, `took ${seconds(job.ended_at - job.started_at)}`),
        job.state === "running" && h("span", {}, `${stage || "starting"}${total ? `, ${count(done)} of ${count(total)}` : ""}`)),
      job.state === "running" && progress,
      job.error && h("p", { class: "wrong" }, job.error),
      h("span", { class: "buttons" },
        job.has_result && this.button("show", "Show result", () => this.page.open(job.id), "primary"),
        job.has_result && this.button("page", "Full report (HTML)", () => download(`${URL_}/${job.id}/report`, `suffixspec-${job.spec.kind}.html`)),
        job.has_result && this.button("json", "JSON", () => download(`${URL_}/${job.id}/result`, `suffixspec-${job.spec.kind}.json`)),
        !ended && this.button("cancel", "Cancel", () => post(`${URL_}/${job.id}/cancel`)),
        ended && this.button("delete", "Delete", async () => { await remove(`${URL_}/${job.id}`); this.page.drop(job.id); })));
  }

  button(name, text, action, look) {
    return h("button", { type: "button", class: look, "data-key": `${this.job.id}-${name}`, onclick: async () => {
      try { await action(); } catch (error) { this.page.complain(error); }
    } }, text);
  }
}

class JobsPage {
  constructor(kind, context) {
    Object.assign(this, { kind, ...context });
    this.items = new Map();
    this.list = h("ul", { class: "list", "aria-label": "Jobs" });
    this.wrong = h("p", { class: "wrong", role: "alert" });
    this.result = h("div", {});
  }

  async show(title, lead) {
    const [options, jobs] = await Promise.all([get(`${URL_}/options`, { signal: this.signal }), get(URL_, { signal: this.signal })]);
    this.main.replaceChildren(h("h1", {}, title), h("p", { class: "lead" }, lead),
      h("div", { class: "two" }, h("div", {}, form(this.kind, options, (job) => this.add(job, true)), this.wrong, this.list), this.result));
    this.clear();
    for (const job of jobs.data.filter((j) => j.spec.kind === this.kind).reverse()) this.add(job);
    const latest = jobs.data.find((j) => j.spec.kind === this.kind && j.has_result);
    if (latest) await this.open(latest.id);
  }

  clear() {
    this.opened = null;
    refill(this.result, empty("No result yet", h("p", {}, this.kind === "replay"
      ? "A replay decodes recorded sessions with each method, and says how many tokens a step would have gained and what that is worth on your machine. With the samples it takes half a minute."
      : "Tuning tries settings on the earlier sessions and judges them on the later ones. With the samples it takes a few minutes.")));
  }

  complain(error) { this.wrong.textContent = error.message; }

  add(job, fresh) {
    this.wrong.textContent = "";
    const item = new JobItem(job, this);
    this.items.set(job.id, item);
    this.list.prepend(item.node);
    if (!["completed", "failed", "cancelled"].includes(job.state)) this.follow(item, fresh);
  }

  async follow(item, fresh) {
    try {
      for await (const job of events(`${URL_}/${item.job.id}/events`, this.signal)) item.update(job);
    } catch (error) {
      if (this.signal.aborted) return;
      await new Promise((resolve) => setTimeout(resolve, 2000)); // the connection broke: look again
      try { item.update(await get(`${URL_}/${item.job.id}`, { signal: this.signal })); } catch (gone) { this.complain(gone); return; }
      if (!["completed", "failed", "cancelled"].includes(item.job.state)) return void this.follow(item, fresh);
    }
    announce(`${this.kind} ${item.job.state}`);
    if (item.job.has_result && fresh && !this.signal.aborted) await this.open(item.job.id);
  }

  async open(id) {
    const data = await get(`${URL_}/${id}/result`, { signal: this.signal });
    this.opened = id;
    (this.kind === "replay" ? replayResult : tuningResult)(this.result, data);
  }

  drop(id) {
    this.items.get(id).node.remove();
    this.items.delete(id);
    if (this.opened === id) this.clear();
  }
}

export const replay = (context) => new JobsPage("replay", context).show("Replay", "What speculation would have gained on recorded sessions. The recording plays the model, so no GPU is needed, and serving is not disturbed.");
export const tuning = (context) => new JobsPage("tuning", context).show("Tuning", "The thresholds that suit your own traces, judged on sessions that the search never saw.");
