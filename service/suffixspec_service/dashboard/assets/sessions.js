// Recent sessions, and one of them token by token: who drafted it, and what was rejected.

import { get, poll } from "./api.js";
import { empty, h, refill } from "./dom.js";
import { count, date, decimal, percent, plural, ratio, seconds, sourceKind, sourceName } from "./format.js";

const REFRESH_MS = 3000;

const link = (one) => `#/sessions?${new URLSearchParams({ tenant: one.tenant, id: one.session_id })}`;

const item = (one, me) => h("li", {}, h("a", { class: "item", href: link(one), "data-key": `${one.tenant}/${one.session_id}` },
  h("span", { class: "top" }, h("span", { class: "name" }, one.label), h("span", {}, `${decimal(ratio(one.output_tokens, one.steps))} tokens per step`)),
  h("span", { class: "about" },
    me.admin && me.needs_key && h("span", {}, one.tenant), h("span", {}, one.model), h("span", {}, plural(one.requests, "request")),
    h("span", {}, `${count(one.output_tokens)} tokens`), h("span", {}, `${percent(ratio(one.accepted, one.drafted))} accepted`),
    h("span", {}, date(one.updated_at)), !one.has_text && h("span", {}, "no text kept"))));

const noText = (keeps) => h("p", { class: "note" }, keeps ? "" : "The text of sessions is not kept here, only figures. It is kept by default where the service listens on this machine only and there are no keys; elsewhere, the setting ",
  !keeps && h("code", {}, "service.keep_text = true"), !keeps && " keeps that of the latest sessions in memory.");

const list = async ({ main, signal, me, failed }) => {
  const box = h("div", {});
  main.replaceChildren(h("h1", {}, "Recent sessions"), h("p", { class: "lead" }, "A session is one conversation of an agent. Open one to see which tokens were drafted, by whom, and what the model rejected."), box);
  poll(async () => {
    try {
      const { data, keeps_text: keeps } = await get("/dashboard/api/sessions", { signal });
      if (signal.aborted) return;
      refill(box, !keeps && noText(keeps), data.length ? h("ul", { class: "list" }, data.map((one) => item(one, me)))
        : empty("No session yet", h("p", {}, "Sessions appear here when their first request has ended. Name one with the header ", h("code", {}, "X-Session-Id"), ", or let the service recognise it by what it said before.")));
    } catch (error) {
      failed(error);
    }
  }, () => REFRESH_MS, signal);
};

/** Pieces as rows of one text: tokens, and between them what was drafted there and rejected. */
const describe = (piece, request) => {
  const [text, source, accepted, match, step] = piece;
  const shown = JSON.stringify(text || "(part of a character)");
  let what;
  if (!accepted) what = `drafted from ${sourceName(source)}, rejected by the model`;
  else if (source === "none") what = "written by the model";
  else what = `drafted from ${sourceName(source)}, accepted`;
  const lines = [`${shown}: ${what}`];
  if (step >= 0) {
    const mine = request.pieces.filter((p) => p[4] === step);
    const drafted = mine.filter((p) => p[1] !== "none").length;
    const kept = mine.filter((p) => p[1] !== "none" && p[2]).length;
    lines.push(`step ${step + 1} of ${request.steps}: drafted ${drafted}, accepted ${kept}${match ? `, match length ${match}` : ""}`);
  } else if (match) lines.push(`match length ${match}`);
  return lines.join("\n");
};

/** Newlines are shown; they break the line too where they belong to the text. */
const write = (node, text, breaks) => {
  text.split("\n").forEach((part, i) => {
    if (i) node.append(h("span", { class: "nl" }, "↵"), breaks ? "\n" : "");
    node.append(part);
  });
  return node;
};

class TokenText {
  constructor() {
    this.text = h("div", { class: "tokens", role: "group", "aria-label": "Tokens of the output; move with the arrow keys" });
    this.info = h("div", { class: "info", role: "status", "aria-live": "polite" });
    this.legend = h("ul", { class: "legend", "aria-label": "Legend" });
    this.spans = [];
    this.focus = 0;
    this.text.addEventListener("keydown", (e) => this.key(e));
    this.text.addEventListener("pointerover", (e) => { const span = e.target.closest?.(".t, .r"); if (span) this.inspect(span); });
    this.text.addEventListener("focusin", (e) => { const span = e.target.closest?.(".t, .r"); if (span) { this.settle(this.spans.indexOf(span)); this.inspect(span); } });
  }

  show(request, withRejected) {
    this.request = request;
    const pieces = request.pieces.filter((p) => withRejected || p[2]);
    let rejected = false;
    this.spans = [];
    for (const piece of request.pieces) {
      if (!piece[2]) { rejected = true; if (!withRejected) continue; }
      const kind = sourceKind(piece[1]);
      const span = piece[2] ? h("span", { class: `t ${kind}${rejected && piece[1] === "none" ? " after" : ""}`.trim(), tabindex: -1 }) : h("del", { class: "r", tabindex: -1 });
      if (piece[2]) rejected = false;
      write(span, piece[0], piece[2]);
      span.piece = piece;
      this.spans.push(span);
    }
    this.text.replaceChildren(...this.spans);
    if (request.pieces_total > request.pieces.length) {
      this.text.append(h("span", { class: "note" }, `\n… ${plural(request.pieces_total - request.pieces.length, "further token")} not kept`));
    }
    const used = [...new Set(pieces.filter((p) => p[2]).map((p) => p[1]))];
    refill(this.legend, used.map((source) => h("li", {}, h("span", { class: `t ${sourceKind(source)}` }, source === "none" ? "text" : "text"), ` from ${sourceName(source)}`)),
      h("li", {}, h("span", { class: "t after" }, "text"), " the model disagreed with a draft here"));
    this.focus = 0;
    if (this.spans[0]) this.spans[0].tabIndex = 0;
    this.info.textContent = "Point at a token, or move through the text with the arrow keys.";
  }

  settle(to) {
    if (this.spans[this.focus]) this.spans[this.focus].tabIndex = -1;
    this.focus = to;
    this.spans[to].tabIndex = 0;
  }

  inspect(span) {
    this.text.querySelectorAll(".on").forEach((one) => one.classList.remove("on"));
    const step = span.piece[4];
    for (const one of this.spans) if (one === span || (step >= 0 && one.piece[4] === step)) one.classList.add("on");
    this.info.textContent = describe(span.piece, this.request);
  }

  /** The token above or below: nearest by place. */
  vertical(down) {
    const here = this.spans[this.focus].getClientRects()[0];
    let best = null, distance = Infinity;
    this.spans.forEach((span, i) => {
      const box = span.getClientRects()[0];
      if (!box || (down ? box.top <= here.top + 4 : box.top >= here.top - 4)) return;
      const d = 4 * Math.abs(box.top - here.top) + Math.abs(box.left - here.left);
      if (d < distance) [best, distance] = [i, d];
    });
    return best ?? this.focus;
  }

  key(event) {
    if (!this.spans.length) return;
    const to = { ArrowLeft: () => this.focus - 1, ArrowRight: () => this.focus + 1, Home: () => 0, End: () => this.spans.length - 1,
      ArrowUp: () => this.vertical(false), ArrowDown: () => this.vertical(true) }[event.key]?.();
    if (to === undefined) return;
    event.preventDefault();
    this.spans[Math.max(0, Math.min(this.spans.length - 1, to))].focus();
  }
}

const facts = (request) => [
  ["Status", request.status], ["Tokens", `${count(request.prompt_tokens)} prompt (${count(request.cached_tokens)} cached), ${count(request.output_tokens)} output`],
  ["Tokens per step", `${decimal(ratio(request.output_tokens, request.steps))} (${count(request.steps)} steps, ${count(request.steps_with_draft)} with a draft)`],
  ["Acceptance", `${percent(ratio(request.accepted, request.drafted))} (${count(request.accepted)} of ${count(request.drafted)})`],
  ...Object.entries(request.by_source).map(([source, [drafted, accepted]]) => [`from ${sourceName(source)}`, `${count(accepted)} of ${count(drafted)} drafted`]),
  ["First token after", seconds(request.ttft_s)], ["Took", seconds(request.duration_s)], ["Started", date(request.started_at)],
];

const one = async ({ main, query, signal, me }) => {
  const named = new URLSearchParams({ id: query.get("id") });
  if (me.admin && query.get("tenant")) named.set("tenant", query.get("tenant"));
  const session = await get(`/dashboard/api/session?${named}`, { signal });
  const requests = session.kept_requests;
  const text = new TokenText();
  const select = h("select", {}, requests.map((r, i) => h("option", { value: i },
    `${i + 1 + session.requests - requests.length} · ${date(r.started_at)} · ${r.api} · ${plural(r.output_tokens, "token")}`)));
  const rejected = h("input", { type: "checkbox", checked: true });
  const about = h("dl", { class: "facts panel" });
  const view = h("div", {});
  const show = () => {
    const request = requests[Number(select.value)];
    refill(about, facts(request).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    if (request.pieces) {
      refill(view, text.legend, text.info, text.text);
      text.show(request, rejected.checked);
    } else {
      refill(view, empty("The text of this request is not kept", noText(false)));
    }
  };
  select.value = String(requests.length - 1);
  select.addEventListener("change", show);
  rejected.addEventListener("change", show);
  main.replaceChildren(
    h("p", { class: "note" }, h("a", { href: "#/sessions" }, "← All sessions")),
    h("h1", {}, session.label),
    h("p", { class: "lead" }, [me.admin && me.needs_key && session.tenant, session.model, plural(session.requests, "request")].filter(Boolean).join(" · ")),
    h("div", { class: "controls" }, h("label", {}, "Request ", select), h("label", {}, rejected, " Show rejected drafts in the text")),
    view, h("h2", {}, "Figures of this request"), about);
  show();
};

export const sessions = (context) => (context.query.get("id") ? one(context) : list(context));
