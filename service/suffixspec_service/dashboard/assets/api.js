// Talking to the service. The key lives in this tab only and goes into a header, never into a URL.

const KEY = "suffixspec-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

const send = async (path, options = {}) => {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The service does not answer.");
  }
  if (answer.ok) return answer;
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).error.message;
  } catch { /* not our shape: a proxy's answer */ }
  throw new ApiError(answer.status, message);
};

export const get = async (path, options) => (await send(path, options)).json();
export const post = async (path, body, options) => (await send(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body ?? {}), ...options,
})).json();
export const remove = (path) => send(path, { method: "DELETE" });
export const uploadFile = async (file) => (await send(`/v1/speculation/traces?name=${encodeURIComponent(file.name)}`, {
  method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file,
})).json();

/** Save an answer as a file; a link could not carry the key. */
export const download = async (path, name) => {
  const blob = await (await send(path)).blob();
  const url = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

/** Server-sent events through fetch, because EventSource cannot send a key. */
export async function* events(path, signal) {
  const answer = await send(path, { signal, headers: { Accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    kept += value;
    const parts = kept.split("\n\n");
    kept = parts.pop();
    for (const part of parts) {
      const text = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (text === "[DONE]") return;
      if (text) yield JSON.parse(text);
    }
  }
}

/** Call `work` now and every `every()` milliseconds while the page can be seen, until aborted. */
export const poll = (work, every, signal) => {
  let timer;
  const round = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (!document.hidden) await work();
    if (!signal.aborted) timer = setTimeout(round, every());
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  round();
  return round;
};
