"use strict";
// Before anything is drawn: the theme that was chosen last, else the system's.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("rldbg-theme");
  } catch { /* pages from disk may have no storage */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
