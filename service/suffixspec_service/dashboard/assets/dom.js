// Building and filling elements. Text always goes in as text, never as HTML: what callers and
// models wrote is not trusted.

const SVG = "http://www.w3.org/2000/svg";

const put = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
};

/** An HTML element: `h("p", { class: "note" }, "text", child)`. */
export const h = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);

/** Replace what is in a node, and give the focus back to the child with the same `data-key`. */
export const refill = (node, ...children) => {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key !== undefined) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
};

/** Say something to whoever listens to the page instead of looking at it. */
export const announce = (text) => { document.getElementById("announce").textContent = text; };

/** A table: `head` are texts, or `[text, class]`; `rows` are lists of cells. */
export const table = (caption, head, rows) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
  h("table", {},
    h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { scope: "col", class: i === 0 ? "l" : "" }, text)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => (i === 0
      ? h("th", { scope: "row", class: "l" }, cell) : h("td", {}, cell))))))));

/** What stands where there is nothing yet: a title, and what to do about it. */
export const empty = (title, ...what) => h("div", { class: "empty" }, h("h2", {}, title), what);

/** A button that copies a text. */
export const copyButton = (text) => {
  const button = h("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return button;
};
