"use strict";
// The list of runs, and the overview of one.
R.views = {};

R.views.runs = async (view) => {
  view.command = (answer) => `rldbg ui ${(answer ? answer.roots : []).map(R.quote).join(" ")}`.trim();
  const chosen = new Set();
  const compare = R.h("button", { disabled: true, onclick: () => R.go("compare", { run: [...chosen] }) },
    "Compare marked runs");
  compare.title = "mark two or three runs in the first column";
  const list = R.h("div", null, R.h("p.muted", null, "loading …"));
  let drawn = ""; // a table that did not change keeps its focus
  const draw = async (check) => {
    const answer = await R.api("runs", { check });
    const text = JSON.stringify(answer);
    if (!view.alive || text === drawn) return;
    view.answer = answer;
    drawn = text;
    if (answer.runs.length === 1 && view.first) {
      view.first = false;
      R.replace(`run/${answer.runs[0].name}`);
      return;
    }
    R.fill(list,
      answer.runs.length === 0
        ? R.h("p.empty", null, "No runs yet; this page checks again every few seconds.")
        : R.table(["compare", "run", "state", "check", "files", "steps", "ranks", "samples", "size", "layout", "kinds"],
          answer.runs.map((run) => {
            const mark = R.h("input", {
              type: "checkbox",
              "aria-label": `mark ${run.name}`,
              onchange: (event) => {
                if (event.target.checked) chosen.add(run.name);
                else chosen.delete(run.name);
                compare.disabled = chosen.size < 2;
              },
            });
            mark.checked = chosen.has(run.name);
            const name = R.h("a.name", { href: `#/run/${encodeURIComponent(run.name)}`, title: run.path }, run.name);
            const check = run.verdict === "running"
              ? R.h("span.muted", null, "checking …")
              : run.verdict
              ? R.verdict(run.verdict)
              : R.h("a", { href: `#/run/${encodeURIComponent(run.name)}`, title: "its overview runs the checks" },
                "open to check");
            const unread = (state, why) => [mark, name, state, ...Array(7).fill(""), why];
            if (run.error) return unread(R.verdict("cannot be read"), R.h("span.problem", null, R.cut(run.error.message, 300)));
            if (run.healthy === null) return unread(R.state(run.state), R.h("span.muted", null, "not recorded"));
            return [
              mark,
              name,
              R.state(run.state),
              check,
              run.healthy ? R.verdict("complete") : R.h("span", null, R.verdict("problems"), ` ${run.findings}`),
              run.steps ? R.span(run.steps) : "–",
              run.ranks,
              run.samples,
              R.bytes(run.bytes),
              run.layout,
              R.h("span.kinds", null, run.kinds.join(", ")),
            ];
          }), { id: "runs" }));
  };
  R.fill(view.main, R.h("div.toolbar", null, R.h("h1", null, "Runs"), compare), list);
  await draw();
  if (view.alive && !R.exported) {
    await draw(1);
    view.every(4000, () => draw(1));
  }
};

// A recording without a run says nothing of a process.
R.state = (state) =>
  ["running", "failed", "ended"].includes(state)
    ? R.verdict(state)
    : R.h("span.muted", null, state === "recording" ? "recording only" : state);

R.span = (
  [first, last, count],
) => (first === last ? `${first}` : count === last - first + 1 ? `${first}–${last}` : `${first}–${last} (${count})`);

R.views.overview = async (view) => {
  const { name } = view;
  view.command = () => `rldbg show ${R.quote(view.path || name)}`;
  const answer = await R.api(`runs/${encodeURIComponent(name)}`);
  if (!view.alive) return;
  view.path = answer.path;
  const check = R.h("section.card", { id: "check" }, R.h("h2", null, "Check"),
    R.h("p.muted", null, "checking invariants …"));
  const kinds = Object.entries(answer.kinds);
  const records = kinds.reduce((sum, [, kind]) => sum + kind.records, 0);
  const table = R.h("div", null, R.kinds(kinds));
  R.fill(view.main, R.h("h1", null, answer.name, " ", R.h("span.state", null, R.state(answer.state))),
    R.h("p.path", null, answer.title),
    R.facts({ layout: answer.layout, samples: answer.samples, records, ...R.runFacts(answer) }),
    kinds.length === 0
      ? R.h("section.card", { id: "unrecorded" }, R.h("h2", null, "Nothing is recorded here"),
        R.findings(answer.health),
        R.h("p.muted", null,
          "Ranks, Timeline and Doctor show what else is known of a run. To record one: rldbg run --record -- COMMAND"))
      : R.h("section.card", null, R.h("h2", null, "Kinds, in causal order"), table),
    kinds.length > 0
      && R.h("section.card", null,
        R.h("h2", null, "Files of the recording ",
          answer.health.length ? R.verdict("problems") : R.verdict("complete")), R.findings(answer.health)),
    kinds.length > 0 && check);
  if (!kinds.length) return;
  if (answer.state === "running")
    view.every(5000, async () => {
      const { kinds: now } = await R.api(`runs/${encodeURIComponent(name)}`);
      if (view.alive) R.fill(table, R.kinds(Object.entries(now)));
    });
  try {
    const report = await R.job(view, `runs/${encodeURIComponent(name)}/check`, null, (seconds) =>
      R.fill(check, R.h("h2", null, "Check"), R.h("p.muted", null, `checking invariants … ${seconds.toFixed(0)} s`)));
    if (!view.alive)
      return;
    R.fill(check, R.h("h2", null, "Check ", R.verdict(report.verdict)),
      R.h("p.muted", null,
        `${R.plural(report.passed.length, "check")} passed, ${
          Object.keys(report.not_applicable).length
        } not applicable, over ${R.plural(report.steps.length, "step")}`), R.findings(report.findings, name),
      R.h("details", null, R.h("summary", null, "All checks"),
        R.table(["check", "result"], [
          ...report.passed.map((id) => [R.h("code", null, id), R.verdict("pass")]),
          ...Object.entries(report.not_applicable).map((
            [id, why],
          ) => [R.h("code", null, id), R.h("span.muted", null, `not applicable: ${why}`)]),
        ])));
  } catch (error) {
    if (!(error instanceof R.Gone)) R.fill(check, R.h("h2", null, "Check"), R.errorCard(error));
  }
};

R.kinds = (kinds) =>
  R.table(["kind", "steps", "ranks", "micro-batches", "records", "size"],
    kinds.map((
      [kind, each],
    ) => [
      R.h("b", null, kind),
      R.ranges(each.steps),
      R.ranges(each.ranks),
      Object.entries(each.parts).map(([part, count]) => `${count} ${part}`).join(", ") || R.ranges(each.micros),
      each.records,
      R.bytes(each.bytes),
    ]), { id: "kinds" });

R.facts = (facts) =>
  R.h("dl.facts", null, Object.entries(facts).filter(([, value]) =>
    value !== null && value !== undefined && value !== ""
  ).map(([name, value]) =>
    R.h("div", null, R.h("dt", { title: R.meaning[R.words(name)] || null }, R.words(name)),
      R.h("dd", null, value instanceof Node
        ? value
        : typeof value === "number"
        ? R.number(value)
        : Array.isArray(value)
        ? R.cut(value.map((each) =>
          R.number(each)
        ).join(", "), 300)
        : R.cut(typeof value === "object" ? JSON.stringify(value) : value, 300)))
  ));

R.runFacts = (answer) => {
  const { run } = answer;
  const time = (seconds) => (seconds ? new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) : "");
  const lasted = run.started_at ? ((run.ended_at || answer.now) - run.started_at) : null;
  return {
    started: time(run.started_at),
    lasted: lasted ? `${R.number(lasted, 3)} s` : "",
    "exit code": run.exit_code,
    command: run.command ? R.h("code", null, R.cut([].concat(run.command).join(" "), 400)) : "",
    hosts: run.hosts ? run.hosts.join(", ") : "",
    commit: run.git_commit ? run.git_commit.slice(0, 12) : "",
    versions: run.versions
      ? Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", ")
      : "",
  };
};
