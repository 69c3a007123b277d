// Line and point charts as SVG: small, themed by the page's own colours, usable by keyboard.

import { h, s, refill } from "./dom.js";
import { short } from "./format.js";

const HEIGHT = 210;
const PAD = { left: 46, right: 14, top: 10, bottom: 26 };
const DASHES = ["", "7 4", "2 4", "9 3 2 3", "12 5", "1 5"];
const SHAPES = ["circle", "square", "diamond"];

const fine = (v) => v !== null && v !== undefined && Number.isFinite(v);

/** About `wanted` round numbers that cover [low, high]. */
export const ticks = (low, high, wanted) => {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const found = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-6; t += step) found.push(Number(t.toPrecision(12)));
  return found;
};

const timeTicks = (low, high, wanted) => {
  const steps = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
  const step = steps.find((m) => (high - low) / m <= wanted) || 86400;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
  return found;
};

const shape = (name, x, y, r, attributes) => {
  if (name === "square") return s("rect", { x: x - r * 0.9, y: y - r * 0.9, width: 1.8 * r, height: 1.8 * r, ...attributes });
  if (name === "diamond") return s("path", { d: `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z`, ...attributes });
  return s("circle", { cx: x, cy: y, r, ...attributes });
};

/**
 * A chart inside a figure.
 *
 * `spec`: `x` (shared values) or points per series; `series`: `{ name, colour: 0..7, values | points:
 * [[x, y, detail?]], mode: "line" | "points" | "both", dash, hollow: [..], span }` (`span`: the line goes
 * on over gaps, as for ratios of which nothing is known for a while); `xKind`: "time" | "log" |
 * "linear"; `xFormat`, `yFormat`, `yMin`, `yMax`, `rule` (a horizontal line), `marks` (`{ at, label }`
 * on a time axis), `nothing` (what to say without data), `label` (what the chart is, in words).
 */
export class Chart {
  constructor(label) {
    this.keys = h("ul", { class: "keys" });
    this.svg = s("svg", { role: "img", tabindex: 0 });
    this.tip = h("div", { class: "tip", hidden: true });
    this.box = h("div", { class: "chart" }, this.svg, this.tip);
    this.node = h("div", {}, this.keys, this.box);
    this.label = label;
    this.at = null;
    this.svg.addEventListener("pointermove", (e) => this.point(e.clientX - this.svg.getBoundingClientRect().left, e.clientY - this.svg.getBoundingClientRect().top));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (e) => this.key(e));
    this.watch = new ResizeObserver(() => { if (this.spec && this.box.clientWidth !== this.width) this.draw(); });
    this.watch.observe(this.box);
  }

  update(spec) {
    this.spec = spec;
    this.series = spec.series.map((one, i) => ({
      mode: "line", colour: i % 6, ...one,
      points: (one.points || one.values.map((v, k) => [spec.x[k], v])).map((p) => p),
    }));
    this.draw();
  }

  draw() {
    const { spec } = this;
    this.width = this.box.clientWidth || 400;
    const known = this.series.flatMap((one) => one.points.filter((p) => fine(p[1])));
    const legend = this.series.length > 1 ? this.series.filter((one) => one.points.some((p) => fine(p[1]))) : [];
    refill(this.keys, legend.map((one) => this.legendItem(one)));
    this.keys.hidden = !legend.length;
    this.svg.setAttribute("aria-label", this.words());
    this.box.querySelector(".nothing")?.remove();
    this.svg.style.display = known.length ? "" : "none";
    if (!known.length) {
      this.tip.hidden = true;
      this.box.append(h("p", { class: "nothing" }, spec.nothing || "Nothing to show yet."));
      return;
    }
    this.scale(known);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.replaceChildren(...this.axes(), ...this.series.flatMap((one, i) => this.drawn(one, i)), ...this.marks(), this.cursor = s("g", {}));
    if (this.at !== null) this.show(Math.min(this.at, this.stops.length - 1));
  }

  scale(known) {
    const { spec } = this;
    const xs = spec.x && spec.xKind === "time" ? [spec.x[0], spec.x[spec.x.length - 1]] : known.map((p) => p[0]);
    const log = spec.xKind === "log";
    const fx = log ? Math.log : (v) => v;
    let [x0, x1] = [Math.min(...xs.map(fx)), Math.max(...xs.map(fx))];
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    const ys = known.map((p) => p[1]);
    const y0 = spec.yMin ?? Math.min(...ys, spec.rule ?? Infinity);
    let y1 = spec.yMax ?? Math.max(...ys, spec.rule ?? -Infinity);
    if (y1 <= y0) y1 = y0 + 1;
    this.yTicks = ticks(y0, y1, 4);
    if (spec.yMax === undefined) {
      const step = this.yTicks.length > 1 ? this.yTicks[1] - this.yTicks[0] : y1 - y0;
      const top = Math.ceil(y1 / step - 1e-9) * step;
      if (top > y1) this.yTicks.push(top);
      y1 = Math.max(y1, top);
    }
    const [w, hgt] = [this.width - PAD.left - PAD.right, HEIGHT - PAD.top - PAD.bottom];
    this.px = (v) => PAD.left + (w * (fx(v) - x0)) / (x1 - x0);
    this.py = (v) => PAD.top + hgt * (1 - (v - y0) / (y1 - y0));
    const fit = Math.max(2, Math.floor(w / 80));
    if (spec.xTicks) this.xTicks = spec.xTicks;
    else if (spec.xKind === "time") this.xTicks = timeTicks(x0, x1, fit);
    else this.xTicks = ticks(x0, x1, fit);
    this.stops = [...new Set(known.map((p) => p[0]))].sort((a, b) => a - b);
  }

  axes() {
    const { spec } = this;
    const yf = spec.yFormat || short, xf = spec.xFormat || short;
    const bottom = HEIGHT - PAD.bottom;
    const parts = this.yTicks.flatMap((t) => [
      s("line", { class: "grid", x1: PAD.left, x2: this.width - PAD.right, y1: this.py(t), y2: this.py(t) }),
      s("text", { x: PAD.left - 7, y: this.py(t) + 4, "text-anchor": "end" }, yf(t)),
    ]);
    for (const t of this.xTicks) {
      const x = this.px(t);
      const anchor = x > this.width - 30 ? "end" : "middle";
      parts.push(s("text", { x: Math.min(x, this.width - 2), y: bottom + 18, "text-anchor": anchor }, xf(t)));
    }
    if (spec.rule !== undefined) parts.push(s("line", { class: "rule", x1: PAD.left, x2: this.width - PAD.right, y1: this.py(spec.rule), y2: this.py(spec.rule) }));
    return parts;
  }

  drawn(one, i) {
    const parts = [];
    let run = [];
    const flush = () => {
      if (run.length > 1) parts.push(s("path", { class: `line stroke c${one.colour}`, "stroke-dasharray": one.dash ?? DASHES[i % 6], d: `M${run.join("L")}` }));
      else if (run.length) parts.push(s("circle", { class: `fill c${one.colour}`, cx: run[0].split(" ")[0], cy: run[0].split(" ")[1], r: 2.5 }));
      run = [];
    };
    if (one.mode !== "points") {
      for (const [x, y] of one.points) {
        if (fine(y)) run.push(`${this.px(x).toFixed(1)} ${this.py(y).toFixed(1)}`);
        else if (!one.span) flush();
      }
      flush();
    }
    if (one.mode !== "line") {
      one.points.forEach(([x, y], k) => {
        if (!fine(y)) return;
        const look = one.hollow?.[k] ? "hollow" : "fill";
        parts.push(shape(SHAPES[i % 3], this.px(x), this.py(y), one.mode === "both" ? 4 : 3.5, { class: `${look} c${one.colour}`, "fill-opacity": one.mode === "points" ? 0.7 : 1 }));
      });
    }
    return parts;
  }

  marks() {
    const { spec } = this;
    const inside = (spec.marks || []).filter((m) => m.at >= spec.x[0] && m.at <= spec.x[spec.x.length - 1]);
    return inside.flatMap((m) => {
      const x = this.px(m.at);
      return [
        s("line", { class: "mark", x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom, "stroke-dasharray": m.end ? "3 3" : "" }, s("title", {}, m.label)),
        s("path", { class: "mark-flag", d: `M${x} ${PAD.top}l8 4l-8 4z` }, s("title", {}, m.label)),
      ];
    });
  }

  legendItem(one) {
    const i = this.series.indexOf(one);
    return h("li", {}, s("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" },
      one.mode !== "points" && s("path", { class: `line stroke c${one.colour}`, "stroke-dasharray": one.dash ?? DASHES[i % 6], d: "M1 5H25" }),
      one.mode !== "line" && shape(SHAPES[i % 3], 13, 5, 3.5, { class: `fill c${one.colour}` })), one.name);
  }

  words() {
    const latest = this.series.map((one) => {
      const last = one.points.filter((p) => fine(p[1])).at(-1);
      return last && `${one.name} ${(this.spec.yFormat || short)(last[1])}`;
    }).filter(Boolean).slice(0, 8);
    return `${this.label}. ${latest.length ? `Latest: ${latest.join(", ")}. The arrow keys move through the values.` : "No values."}`;
  }

  point(x, y) {
    if (!this.stops) return;
    let best = 0;
    this.stops.forEach((stop, i) => { if (Math.abs(this.px(stop) - x) < Math.abs(this.px(this.stops[best]) - x)) best = i; });
    this.show(best, y);
  }

  key(event) {
    const last = this.stops ? this.stops.length - 1 : -1;
    const at = this.at ?? last + 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.leave();
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.show(Math.max(0, Math.min(last, to)));
  }

  show(at, y) {
    this.at = at;
    const { spec } = this;
    const stop = this.stops[at];
    const x = this.px(stop);
    const yf = spec.yFormat || short;
    const hits = this.series.flatMap((one) => one.points.filter((p) => p[0] === stop && fine(p[1])).map((p) => ({ one, p })));
    if (y !== undefined && spec.nearest) hits.sort((a, b) => Math.abs(this.py(a.p[1]) - y) - Math.abs(this.py(b.p[1]) - y)).splice(1);
    this.tip.textContent = [(spec.tipFormat || spec.xFormat || short)(stop), ...hits.slice(0, 12).map(({ one, p }) => `${one.name}: ${yf(p[1])}${p[2] ? `\n${p[2]}` : ""}`)].join("\n");
    this.tip.hidden = false;
    const room = this.width - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x < this.width / 2 ? x + 12 : x - 12 - this.tip.offsetWidth))}px`;
    this.cursor.replaceChildren(
      s("line", { class: "rule", x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom }),
      ...hits.map(({ one, p }) => s("circle", { class: `hollow c${one.colour}`, cx: x, cy: this.py(p[1]), r: 4 })));
    if (document.activeElement === this.svg) document.getElementById("announce").textContent = this.tip.textContent;
  }

  leave() {
    this.at = null;
    this.tip.hidden = true;
    this.cursor?.replaceChildren();
  }
}

/** A chart with its caption; returns the figure, with the chart as `.chart`. */
export const figure = (title, text, level = "h3") => {
  const chart = new Chart(title);
  const node = h("figure", {}, h("figcaption", {}, h(level, {}, title), text && h("p", {}, text)), chart.node);
  node.chart = chart;
  return node;
};

/** Values with intervals, one per line, around a rule at 1. */
export const whiskers = (rows, format) => {
  const all = rows.flatMap((r) => [r.value, r.low, r.high]).filter(fine);
  const [low, high] = [Math.min(1, ...all), Math.max(1, ...all)];
  const x = (v) => 2 + (96 * (v - low)) / (high - low || 1);
  return h("div", { class: "whiskers" }, rows.flatMap((r, i) => [
    h("span", {}, r.name),
    s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("line", { class: "rule stroke c7", x1: x(1), x2: x(1), y1: 0, y2: 10, "vector-effect": "non-scaling-stroke" }),
      fine(r.low) && s("line", { class: `stroke c${r.strong ? 0 : 7}`, x1: x(r.low), x2: x(r.high), y1: 5, y2: 5, "stroke-width": 2, "vector-effect": "non-scaling-stroke" }),
      fine(r.value) && s("line", { class: `stroke c${r.strong ? 0 : 7}`, x1: x(r.value), x2: x(r.value), y1: 1, y2: 9, "stroke-width": 4, "vector-effect": "non-scaling-stroke" })),
    h("span", { "data-row": i }, fine(r.low) ? `${format(r.value)} (${format(r.low)} to ${format(r.high)})` : format(r.value)),
  ]));
};
