"use strict";
// The one place where text becomes part of the page. Nothing here or elsewhere parses text as HTML.
const R = {};

// Makes an element: h("div.card", {title: "x", onclick: f}, "text", element, [more]).
R.h = (spec, attributes, ...children) => {
  const [tag, ...classes] = spec.split(".");
  const isSvg = R.svgTags.has(tag);
  const element = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    } else if (name === "href" && !/^(#|api\/|blob:|data\/)/.test(value))
      throw new Error("a link must stay on this page");
    else if (name === "value")
      element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  R.append(element, children);
  return element;
};
R.svgTags = new Set(["svg", "g", "path", "rect", "line", "circle", "text", "polyline", "title"]);

R.append = (element, children) => {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : R.visible(String(child)));
  }
};

R.fill = (element, ...children) => {
  element.replaceChildren();
  R.append(element, children);
  return element;
};

// Text with characters that would hide, reorder or drive something made visible.
R.visible = (text) =>
  text.replace(R.hidden, (char) => {
    const code = char.codePointAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
R.hidden =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

R.cut = (text, limit) => {
  const whole = String(text);
  return whole.length <= limit ? whole : `${whole.slice(0, limit)}…`;
};

R.number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  if (Number.isInteger(value))
    return Math.abs(value) < 1e15 ? value.toLocaleString("en-US").replace("-", "−") : value.toExponential(3);
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "−");
};

R.bytes = (count) => {
  let value = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
};

R.ranges = (numbers) => {
  const pieces = [];
  for (const value of numbers) {
    const last = pieces[pieces.length - 1];
    if (last && value === last[1] + 1) last[1] = value;
    else pieces.push([value, value]);
  }
  if (pieces.length > 4) return `${numbers[0]}–${numbers[numbers.length - 1]} (${numbers.length})`;
  return pieces.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ");
};

R.plural = (count, word) => `${R.number(count)} ${word}${count === 1 ? "" : "s"}`;

// A verdict in words, with a mark that does not depend on colour.
R.verdict = (word) => {
  const kind = {
    pass: "good",
    equal: "good",
    "equal within noise": "good",
    healthy: "good",
    complete: "good",
    ended: "good",
    running: "good",
    fail: "bad",
    different: "bad",
    failed: "bad",
    crashed: "bad",
    error: "bad",
    "cannot be read": "bad",
    drift: "warn",
    incomplete: "warn",
    warning: "warn",
    stopped: "warn",
    problems: "warn",
  }[word] || "plain";
  const mark = { good: "✓", bad: "✗", warn: "!", plain: "·" }[kind];
  return R.h(`span.verdict.${kind}`, null, `${mark} ${word}`);
};

// Cells are numbers, texts or elements; every table can be saved as CSV, with all digits of its numbers.
R.table = (titles, rows, options = {}) => {
  const cellsOf = (row) => row.cells || row;
  const isNumeric = (column) => rows.some((row) => typeof cellsOf(row)[column] === "number");
  const save = () =>
    R.saveCsv(options.id || "table", [
      titles,
      ...rows.map((row) =>
        cellsOf(row).slice(0, titles.length).map((cell) => (cell instanceof Node ? cell.textContent : cell))
      ),
    ]);
  return R.h("div.scroll", null,
    R.h("table", options.id ? { id: options.id } : null,
      R.h("thead", null,
        R.h("tr", null,
          titles.map((title, column) =>
            R.h(isNumeric(column) ? "th.n" : "th", { title: R.meaning[title] || null }, title)
          ), R.h("td.csv", null, R.h("button.small", {
            title: "Save this table as CSV",
            "aria-label": "Save this table as CSV",
            onclick: save,
          }, "CSV")))),
      R.h("tbody", null,
        rows.map((row) =>
          R.h("tr", row.attributes || null, cellsOf(row).map((cell) =>
            R.h(typeof cell === "number" ? "td.n" : "td", null, typeof cell === "number" ? R.number(cell) : cell)
          ))
        ))));
};

// A spreadsheet would run a text that begins like a formula.
R.csvCell = (
  value,
) => (typeof value === "number"
  ? String(value)
  : value === null || value === undefined || value === false
  ? ""
  : `"${(/^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value)).replaceAll('"', '""')}"`);
R.saveCsv = (name, rows) =>
  R.save(`${R.fileName(`${R.view.name || "runs"}-${name}`)}.csv`, "text/csv", `${
    rows.map((row) => row.map(R.csvCell).join(",")).join("\n")
  }\n`);

// What short names mean, shown as the title of a column or a fact.
R.meaning = {
  k1: "mean of log p_rollout − log p_trainer: an estimate of the KL divergence",
  k3: "mean of r − 1 − log r, with r = p_trainer / p_rollout: an estimate of the KL divergence that is never negative",
  ess: "effective sample size: 1 when all importance weights are equal",
  "mean abs": "mean of |trainer − rollout| of the log probs",
  "max abs": "largest |trainer − rollout| of the log probs",
  "beyond e": "share of tokens whose probabilities differ by more than a factor of e",
  "not finite": "values that are NaN or infinite",
  "perplexity ratio": "perplexity by the trainer divided by that of the rollout",
  trained: "tokens with loss mask 1",
  turns: "how often the model began to write",
  truncated: "1: does not end with the token that ends most responses",
  version: "version of the weights that sampled it",
  "accounts for": "share of the difference that the hypothesis removes",
  "left over": "largest difference that is left when the hypothesis is applied",
  "rounding allows": "the largest difference that rounding alone may leave",
  "allowed by noise": "differences above the tolerance that repeated runs have too",
  "beyond tolerance": "values that differ by more than the tolerance of their dtype",
  prompt: "hash of the prompt's tokens: equal prompts have equal hashes",
};

// "step 9 sample g0/1 token 6" of a run leads to the token.
R.place = (name, where) => {
  const at = name && /step (\d+)\b.*?\bsample (.+?\/\d+)(?:\b.*?\btoken (\d+))?/.exec(where);
  return at
    ? R.h("a", { href: R.link(`run/${encodeURIComponent(name)}/sample`, { step: at[1], sample: at[2], token: at[3] }) },
      R.cut(where, 400))
    : R.h("span", null, R.cut(where, 400));
};

R.findings = (findings, name) =>
  findings.map((finding) =>
    R.h("details.finding", { open: finding.severity !== "info" },
      R.h("summary", null, R.verdict(finding.severity), " ", R.h("code", null, finding.id), " ",
        R.place(name, finding.where)), finding.cause && R.h("p", null, finding.cause),
      finding.evidence.length > 0 && R.h("ul", null, finding.evidence.map((line) =>
        R.h("li", null, R.cut(line, 2000))
      )), finding.fix.length > 0 && R.h("ol", null, finding.fix.map((line) => R.h("li", null, R.cut(line, 2000)))))
  );

R.errorCard = (error) =>
  R.h("section.card.error", { role: "alert" },
    R.h("h2", null, error.kind === "internal" ? "Something is wrong in rldbg" : "This cannot be shown"),
    R.h("p", null, R.cut(error.message || String(error), 4000)),
    error.hint && R.h("p.muted", null, "Try: ", R.h("code", null, error.hint)));

R.toast = (text) => {
  const box = document.getElementById("toast");
  R.fill(box, text);
  box.classList.add("shown");
  clearTimeout(R.toast.timer);
  R.toast.timer = setTimeout(() => box.classList.remove("shown"), 1800);
};

R.quote = (text) => (/^[A-Za-z0-9_\/.,:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

R.copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = R.h("textarea", { value: text, "aria-hidden": "true" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  R.toast(`Copied: ${R.cut(text, 80)}`);
};

R.save = (name, type, content) => {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = R.h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};
