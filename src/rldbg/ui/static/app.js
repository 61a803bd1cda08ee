"use strict";
// Routes, keys, theme. Every view has a link: #/run/NAME/samples?filter=...
R.tabs = [
  ["", "overview", "Overview"],
  ["samples", "samples", "Samples"],
  ["metrics", "metrics", "Metrics"],
  ["mismatch", "mismatch", "Mismatch"],
  ["weights", "weights", "Weights"],
  ["template", "template", "Template"],
  ...(R.exported ? [] : [["ranks", "ranks", "Ranks"]]),
  ["timeline", "timeline", "Timeline"],
  ["memory", "memory", "Memory"],
  ["doctor", "doctor", "Doctor"],
];
R.runViews = { ...Object.fromEntries(R.tabs), sample: "sample", "over-steps": "history", group: "group", step: "step" };

R.link = (path, query) => {
  const text = R.query(query);
  return `#/${path}${text ? `?${text}` : ""}`;
};
R.go = (path, query) => {
  location.hash = R.link(path, query);
};
R.replace = (path, query) => {
  history.replaceState(null, "", R.link(path, query));
  R.route();
};
R.permalink = (path, query) => {
  history.replaceState(null, "", R.link(path, query));
  R.view.moved();
};

R.parse = (hash) => {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = [];
  }
  return { parts, query: new URLSearchParams(query) };
};

R.route = async () => {
  R.view?.leave();
  const { parts, query } = R.parse(location.hash);
  const main = document.getElementById("main");
  main.className = "";
  const view = {
    alive: true,
    main,
    query,
    keys: {},
    first: !R.view,
    leaving: [],
    command: () => "rldbg ui",
    onleave: (action) => view.leaving.push(action),
    every: (ms, action) => {
      const timer = setInterval(() => {
        if (!document.hidden) action().catch(() => {});
      }, ms);
      view.onleave(() => clearInterval(timer));
    },
    leave: () => {
      view.alive = false;
      view.leaving.forEach((action) => action());
    },
  };
  if (R.view?.kind === "samples") R.lastTable = R.view.hash();
  R.view = view;
  let kind = "runs";
  if (parts[0] === "run" && parts[1]) {
    [, view.name] = parts;
    kind = R.runViews[parts[2] || ""] || "";
    view.rest = parts.slice(3);
  } else if (parts[0] === "compare") kind = "compare";
  else if (parts.length) kind = "";
  view.kind = kind;
  let here = location.hash;
  view.hash = () => here;
  view.moved = () => {
    here = location.hash;
  };
  R.crumbs(view, kind, parts);
  R.fill(main, R.h("p.muted.loading", null, "loading …"));
  try {
    if (!R.views[kind])
      throw new R.ApiError({ kind: "usage", message: "There is no such view.", hint: "go back to the list of runs" });
    if (view.name)
      R.pathOf(view.name).then((path) => {
        view.path = view.path || path;
      });
    if (view.alive) await R.views[kind](view);
  } catch (error) {
    if (error instanceof R.Gone || !view.alive) return;
    R.fill(main, R.errorCard(error));
    if (!(error instanceof R.ApiError)) console.error(error);
  }
};

R.pathOf = async (name) => {
  R.paths = R.paths || {};
  if (!(name in R.paths)) {
    try {
      for (const run of (await R.api("runs")).runs) R.paths[run.name] = run.path;
    } catch { /* the view itself will say so */ }
  }
  return R.paths[name];
};

R.crumbs = (view, kind, parts) => {
  document.title = `rldbg${view.name ? ` · ${R.visible(view.name)}` : ""}${
    kind && kind !== "runs" && kind !== "overview" ? ` · ${kind}` : ""
  }`;
  R.fill(document.getElementById("crumbs"), R.h("a.brand", { href: "#/" }, "rldbg"),
    view.name
      && [
        R.h("span", null, "›"),
        R.h("a", { href: R.link(`run/${encodeURIComponent(view.name)}`) }, R.cut(view.name, 60)),
      ],
    view.name && parts[2] && !R.tabs.some(([path]) => path === parts[2])
      && [R.h("span", null, "›"), R.h("span", null, [parts[2], ...view.rest].join(" "))]);
  R.fill(document.getElementById("tabs"),
    view.name
      ? [
        R.tabs.map(([path, id, title]) =>
          R.h(kind === id ? "a.on" : "a", {
            href: R.link(`run/${encodeURIComponent(view.name)}${path ? `/${path}` : ""}`),
            "aria-current": kind === id ? "page" : null,
          }, title)
        ),
        R.h("a", { href: R.link("compare", { run: view.name }) }, "Compare"),
      ]
      : kind === "runs" || kind === "compare"
      ? [
        R.h(kind === "runs" ? "a.on" : "a", { href: "#/" }, "Runs"),
        R.h(kind === "compare" ? "a.on" : "a", { href: "#/compare" }, "Compare"),
      ]
      : []);
  // On a narrow page the tabs scroll: the one that is open must be seen.
  document.querySelector("#tabs .on")?.scrollIntoView({ block: "nearest", inline: "nearest" });
};

R.copyCommand = () => R.copy(R.view.command(R.view.answer));

R.toggleTheme = () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("rldbg-theme", root.dataset.theme);
  } catch { /* pages from disk may have no storage */ }
};

R.help = () => {
  const open = document.getElementById("help");
  if (open) {
    open.close();
    open.remove();
    return;
  }
  const keys = [
    ["?", "this help"],
    ["r", "list of runs"],
    ["1 … 9, 0", "views of this run, in the order of the tabs"],
    ["o / s / m / a", "overview, samples, metrics, ranks of this run"],
    ["/", "filter the samples"],
    ["j k ↑ ↓", "next, previous row"],
    ["Enter", "open the row"],
    ["← →", "previous, next token"],
    ["n / p", "next, previous unusual token"],
    ["c", "copy the command that shows the same in a terminal"],
    ["t", "dark or light"],
    ["Esc", "close this, or go up: sample, samples, run, runs"],
  ];
  const dialog = R.h("dialog", { id: "help", "aria-label": "Help: keys", onclose: () => dialog.remove() },
    R.h("h2", null, "Keys"),
    R.h("table", null,
      R.h("tbody", null,
        keys.map(([key, what]) => R.h("tr", null, R.h("td", null, R.h("kbd", null, key)), R.h("td", null, what))))),
    R.h("p.muted", null, "The address of this page is a link to exactly this view."),
    R.h("button", { onclick: () => dialog.close() }, "Close"));
  document.body.append(dialog);
  dialog.showModal();
};

R.up = () => {
  const { kind, name } = R.view, run = `run/${encodeURIComponent(name)}`;
  if (!name) return R.go("");
  if (kind === "step") return R.go(`${run}/metrics`);
  if (["sample", "group", "history"].includes(kind)) {
    location.hash = R.lastTable && R.lastTable.startsWith(R.link(`${run}/samples`))
      ? R.lastTable
      : R.link(`${run}/samples`);
    return null;
  }
  return R.go(kind === "overview" ? "" : run);
};

// The next or previous row with a link, in views whose table has no cursor of its own.
R.nextLink = (direction) => {
  const links = [...document.querySelectorAll("main tbody tr a:first-of-type, main .member a.name")].filter((link) =>
    link.offsetParent
  );
  const place = links.indexOf(document.activeElement);
  links[Math.max(0, Math.min(links.length - 1, place < 0 ? 0 : place + direction))]?.focus();
};

R.keys = {
  Escape: () => R.up(),
  j: () => R.nextLink(1),
  k: () => R.nextLink(-1),
  ...Object.fromEntries(
    R.tabs.map(([path], place) => [String((place + 1) % 10), () =>
      R.view.name && R.go(`run/${encodeURIComponent(R.view.name)}${path ? `/${path}` : ""}`)]
    ),
  ),
  "?": () => R.help(),
  t: () => R.toggleTheme(),
  c: () => R.copyCommand(),
  r: () => R.go(""),
  o: () => R.view.name && R.go(`run/${encodeURIComponent(R.view.name)}`),
  s: () => R.view.name && R.go(`run/${encodeURIComponent(R.view.name)}/samples`),
  a: () => R.view.name && !R.exported && R.go(`run/${encodeURIComponent(R.view.name)}/ranks`),
  m: () => R.view.name && R.go(`run/${encodeURIComponent(R.view.name)}/metrics`),
};

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (
    event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing
    || document.getElementById("help")
  ) return;
  const action = R.view.keys[event.key] || R.keys[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});

R.fill(document.getElementById("tools"), R.h("button.small", {
  id: "copy-command",
  title: "Copy the command that shows this in a terminal ( c )",
  onclick: R.copyCommand,
}, "copy command"),
  R.h("button.small", { title: "Dark or light ( t )", "aria-label": "Dark or light", onclick: R.toggleTheme }, "◐"),
  R.h("button.small", { title: "Help: keys ( ? )", "aria-label": "Help", onclick: R.help }, "?"));
addEventListener("mousemove", ({ screenX, screenY }) => {
  R.mouse = [screenX, screenY];
});
addEventListener("hashchange", R.route);
R.route();
