// Numbers and times as people read them.

const NONE = "–";
const has = (x) => x !== null && x !== undefined && Number.isFinite(x);

export const count = (x) => (has(x) ? Math.round(x).toLocaleString("en-US") : NONE);
export const decimal = (x, digits = 2) => (has(x) ? x.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : NONE);
export const percent = (x, digits = 1) => (has(x) ? `${(100 * x).toFixed(digits)} %` : NONE);

/** 1,234 -> 1.2 k; for axes and cards. */
export const short = (x) => {
  if (!has(x)) return NONE;
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(x) >= size) return `${Number((x / (unit === " k" ? 1e3 : size)).toPrecision(3))}${unit}`;
  }
  return Number.isInteger(x) ? x.toLocaleString("en-US") : String(Number(x.toPrecision(3)));
};

export const bytes = (x) => {
  if (!has(x)) return NONE;
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (x >= size) return `${(x / size).toFixed(x / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${x} B`;
};

export const seconds = (x) => {
  if (!has(x)) return NONE;
  if (x < 1) return `${Number((1000 * x).toPrecision(3))} ms`;
  if (x < 120) return `${x.toFixed(1)} s`;
  if (x < 7200) return `${Math.round(x / 60)} min`;
  if (x < 48 * 3600) return `${(x / 3600).toFixed(1)} h`;
  return `${Math.round(x / 86400)} days`;
};

const clock = (at, options) => new Date(at * 1000).toLocaleTimeString("en-GB", options);
export const time = (at) => clock(at, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const minute = (at) => clock(at, { hour: "2-digit", minute: "2-digit" });
export const date = (at) => `${new Date(at * 1000).toLocaleDateString("en-CA")} ${minute(at)}`;

export const ratio = (part, whole) => (whole ? part / whole : null);
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || `${one}s`}`;

const SOURCES = {
  none: "the model", session: "the own session", global: "other sessions", ngram: "n-grams",
  prediction: "a predicted output", draft_model: "a draft model", eagle: "EAGLE", mtp: "MTP", forced: "the grammar",
};
/** A source in words. */
export const sourceName = (label) => SOURCES[label] || label;
/** The colour class of a source, the same in every chart and in the session view. */
export const sourceColour = (label) => ({ session: 0, global: 1, ngram: 2 }[label] ?? { prediction: 3, draft_model: 4, forced: 5 }[label] ?? 7);
/** The token class of a source, as in the reports. */
export const sourceKind = (label) => (label === "none" ? "" : ["session", "global", "ngram"].includes(label) ? label : "other");
