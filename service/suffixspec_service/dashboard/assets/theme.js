"use strict";
// Runs before the first paint, so that a dark page does not flash white.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("suffixspec-theme"); } catch { return null; } };
  const set = () => { document.documentElement.dataset.theme = kept() || (dark.matches ? "dark" : "light"); };
  set();
  dark.addEventListener("change", set);
})();
