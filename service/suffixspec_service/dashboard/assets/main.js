// The frame around the pages: which page is shown, the key, the theme.

import { ApiError, get, key } from "./api.js";
import { announce, h } from "./dom.js";
import { seconds } from "./format.js";
import { overview } from "./overview.js";
import { replay, tuning } from "./jobs.js";
import { sessions } from "./sessions.js";

const PAGES = {
  "": { title: "Overview", show: overview },
  sessions: { title: "Sessions", show: sessions },
  replay: { title: "Replay", show: replay },
  tuning: { title: "Tuning", show: tuning },
};

const main = document.getElementById("main");
let shown = null; // AbortController of the page that is shown
let me = null;

const route = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: PAGES[path] ? path : "", query: new URLSearchParams(query || "") };
};

const describeService = () => {
  const parts = [me.model ? `${me.model}, method ${me.method}` : `drafting for other engines, method ${me.method}`, `version ${me.version}`];
  if (me.needs_key) parts.push(`tenant ${me.tenant}${me.admin ? " (administrator)" : ""}`);
  parts.push(`up for ${seconds(Date.now() / 1000 - me.started_at)}`);
  document.getElementById("service").textContent = parts.join(" · ");
  document.getElementById("forget-key").hidden = !key.get();
};

const askForKey = (message) => {
  const field = h("input", { type: "password", id: "key", autocomplete: "off", required: true, size: 44, "aria-describedby": "key-hint" });
  const form = h("form", { class: "panel", onsubmit: (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    start();
  } },
    message && h("p", { class: "wrong", role: "alert" }, message),
    h("label", { class: "label", for: "key" }, "API key"), field,
    h("p", { class: "hint", id: "key-hint" }, "Kept in this tab only, until it is closed. An administrator's key shows all tenants, any other its own. Make one with ",
      h("code", {}, "suffixspec keys add TENANT"), "."),
    h("div", {}, h("button", { class: "primary" }, "Open")));
  main.replaceChildren(h("h1", {}, "This service wants a key"), form);
  document.getElementById("service").textContent = "Locked";
  field.focus();
};

/** Show what went wrong, where the page would stand. */
export const failed = (error, retry) => {
  if (error.name === "AbortError") return;
  if (error instanceof ApiError && error.status === 401) {
    const wrong = Boolean(key.get());
    key.forget();
    askForKey(wrong ? "This key is not valid." : "");
    return;
  }
  main.replaceChildren(h("h1", {}, "That did not work"), h("p", { class: "wrong", role: "alert" }, error.message),
    h("p", {}, h("button", { type: "button", onclick: retry || show }, "Try again")));
};

const show = async () => {
  shown?.abort();
  shown = new AbortController();
  const { name, query } = route();
  const page = PAGES[name];
  document.title = `${page.title} · suffixspec`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren();
  try {
    await page.show({ main, query, signal: shown.signal, me, failed });
  } catch (error) {
    failed(error);
  }
};

const start = async () => {
  try {
    me = await get("/dashboard/api/me");
  } catch (error) {
    failed(error, start);
    return;
  }
  describeService();
  await show();
};

document.getElementById("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("suffixspec-theme", name); } catch { /* private windows may refuse */ }
});
document.getElementById("forget-key").addEventListener("click", () => {
  key.forget();
  shown?.abort();
  askForKey("");
  document.getElementById("forget-key").hidden = true;
});
addEventListener("hashchange", () => {
  if (!me) return;
  show();
  announce(`${PAGES[route().name].title} page`);
});
setInterval(() => { if (me && !document.hidden) describeService(); }, 30000);
start();
