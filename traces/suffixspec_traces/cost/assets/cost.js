"use strict";
(() => {
  const points = JSON.parse(document.getElementById("data").textContent).points;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
    const style = getComputedStyle(document.documentElement);
    const colour = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
    const line = { color: colour("--s0", "#3b6fb6"), width: 2 };
    const grid = { color: colour("--soft", "#777") };
    const axes = (y) => ({
      margin: { l: 56, r: 12, t: 8, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink", grid.color), size: 12 }, showlegend: false,
      xaxis: { title: { text: "tokens in the step" }, type: "log", tickvals: points.map((p) => p[0]), ticktext: points.map((p) => String(p[0])) },
      yaxis: { title: { text: y }, rangemode: "tozero" },
    });
    const plot = (id, ys, lay, unit) => Plotly.react(id, [{
      x: points.map((p) => p[0]), y: ys, mode: "lines+markers", line, marker: { size: 7 },
      hovertemplate: `%{x} tokens: %{y:.2f} ${unit}<extra></extra>`,
    }], lay, { responsive: true, displayModeBar: false, displaylogo: false });
    plot("p-step", points.map((p) => p[1]), axes("milliseconds"), "ms");
    plot("p-token", points.map((p) => p[1] / p[0]), Object.assign(axes("milliseconds per token"), {
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: points[0][1] / points[0][0], y1: points[0][1] / points[0][0], line: { color: grid.color, width: 1, dash: "dot" } }],
    }), "ms per token");
  };
  draw();
  dark.addEventListener("change", draw);
})();
