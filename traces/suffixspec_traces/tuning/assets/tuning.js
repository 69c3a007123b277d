"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent).concurrencies;
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const series = (i) => colour("s" + (i % 6));
  const symbols = ["circle", "square", "diamond"];
  const state = { at: 0 };

  const layout = (x, y, more) => {
    const axis = (title, extra) => Object.assign({
      title: { text: title, standoff: 8 }, gridcolor: colour("line"), linecolor: colour("line"),
      zeroline: false, automargin: true, fixedrange: true,
    }, extra);
    return {
      margin: { l: 48, r: 12, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
      hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") }, align: "left" },
      showlegend: Boolean(more.legend), legend: { orientation: "h", y: 1.12, x: 0, yanchor: "top" },
      xaxis: axis(x, more.x), yaxis: axis(y, more.y), shapes: more.shapes || [],
    };
  };
  const plot = (node, traces, lay) =>
    Plotly.react(node, traces, lay, { responsive: true, displayModeBar: false, displaylogo: false });

  const front = (one) => plot($("p-front"), [
    ...one.families.map((family, i) => ({
      name: family.name, x: family.trials.map((t) => t[0]), y: family.trials.map((t) => t[1]),
      customdata: family.trials.map((t) => [t[2], t[3]]), mode: "markers",
      marker: { color: series(i), size: 7, opacity: 0.65, symbol: symbols[i % 3] },
      hovertemplate: "%{y:.3f} ms per token, %{x:.2f} wasted<br>%{customdata[1]:.2f} tokens per step<br>%{customdata[0]}<extra></extra>",
    })),
    { name: "Pareto front", x: one.front.map((p) => p[0]), y: one.front.map((p) => p[1]), mode: "lines",
      line: { color: colour("ink"), width: 1.5, dash: "dot", shape: "hv" }, hoverinfo: "skip" },
  ], layout("wasted tokens per output token", "predicted ms per token", { legend: true, x: { rangemode: "tozero" } }));

  const speedups = (one) => {
    const rows = one.speedups.filter((r) => r[1] !== null);
    plot($("p-speedups"), [{
      x: rows.map((r) => r[1]), y: rows.map((r) => r[0]), mode: "markers",
      marker: { size: 9, color: rows.map((r) => (r[0] === "tuned" ? series(0) : colour("soft"))) },
      error_x: { type: "data", symmetric: false, color: colour("soft"), thickness: 1.5,
        array: rows.map((r) => (r[3] === null ? 0 : r[3] - r[1])), arrayminus: rows.map((r) => (r[2] === null ? 0 : r[1] - r[2])) },
      hovertemplate: "%{y}: %{x:.3f}×<extra></extra>",
    }], layout("predicted speed-up", "", {
      shapes: [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: 1, x1: 1, line: { color: colour("bad"), width: 1, dash: "dot" } }],
    }));
  };

  const sensitivity = (one) => {
    const box = $("sensitivity");
    box.querySelectorAll(".plot").forEach((node) => Plotly.purge(node));
    box.replaceChildren();
    if (!one.sensitivity.length) box.textContent = "Thresholds were not tried one by one.";
    // All figures stand before the first is drawn: each one more changes the width of the others.
    const nodes = one.sensitivity.map((row) => {
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      const title = document.createElement("h3");
      const node = document.createElement("div");
      title.textContent = row.threshold;
      node.className = "plot";
      caption.append(title);
      figure.append(caption, node);
      box.append(figure);
      return node;
    });
    one.sensitivity.forEach((row, i) => plot(nodes[i], [{
      x: row.values, y: row.ms, customdata: row.wasted, mode: "lines+markers",
      line: { color: series(0), width: 2 },
      marker: { size: 9, color: series(0), symbol: row.values.map((v) => (v === row.kept ? "circle" : "circle-open")) },
      hovertemplate: "%{x}: %{y:.3f} ms per token, %{customdata:.2f} wasted<extra></extra>",
    }], layout("", "ms per token", { x: { type: "category" } })));
  };

  const draw = () => {
    const one = data[state.at];
    [front, speedups, sensitivity].forEach((f) => f(one));
  };
  const setTheme = (name) => { root.dataset.theme = name; draw(); };

  const select = $("c-select");
  select.replaceChildren(...data.map((one, i) => {
    const option = document.createElement("option");
    option.textContent = one.title;
    option.value = String(i);
    return option;
  }));
  select.addEventListener("change", () => { state.at = Number(select.value); draw(); });
  dark.addEventListener("change", (e) => setTheme(e.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  document.querySelectorAll("button.copy").forEach((button) => button.addEventListener("click", async () => {
    const text = $(button.dataset.for);
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range); // where the clipboard is closed to pages, the text is at least selected
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));
  setTheme(dark.matches ? "dark" : "light");
})();
