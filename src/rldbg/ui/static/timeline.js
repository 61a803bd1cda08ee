"use strict";
// What a run left besides its recording: phases of its processes on one clock, their memory, and what its logs say.
R.views.doctor = async (view) => {
  const { name } = view;
  view.command = () => `rldbg doctor ${R.quote(view.path || name)}`;
  R.fill(view.main, R.h("p.muted", null, "reading the logs …"));
  const found = await R.job(view, `runs/${encodeURIComponent(name)}/doctor`);
  if (!view.alive) return;
  const cause = (item) =>
    R.h("details.finding", { open: true },
      R.h("summary", null, R.h("b", null, item.title), " ", R.h("code", null, item.id),
        R.h("span.muted", null, ` confidence: ${item.confidence}; seen ${R.plural(item.count, "time")}`)),
      R.h("p", null, item.cause), R.h("ul", null, item.evidence.map((quote) =>
        R.h("li", null, R.h("span.muted", null, `${quote.file}:${quote.line} `),
          R.h("code", null, R.cut(quote.text, 600)))
      )), item.fix.length > 0 && R.h("ol", null, item.fix.map((line) =>
        R.h("li", null, line)
      )));
  R.fill(view.main,
    R.h("h1", null, "Doctor ",
      R.verdict(found.verdict === "healthy" ? "healthy" : found.verdict === "found" ? "error" : "warning")),
    R.h("p", null, found.headline), R.facts({ files: found.read.files, read: R.bytes(found.read.bytes) }),
    found.root_causes.length > 0
      && R.h("section.card", null, R.h("h2", null, "Root causes"), found.root_causes.map(cause)),
    found.fallout.length > 0 && R.h("section.card", null, R.h("h2", null, "Consequences"), found.fallout.map(cause)),
    found.findings.length > 0 && R.h("section.card", null, R.h("h2", null, "Findings"), R.findings(found.findings)),
    found.next.length > 0
      && R.h("section.card", null, R.h("h2", null, "What to do next"), R.h("ol", null, found.next.map((line) =>
        R.h("li", null, line)
      ))));
};

R.views.timeline = async (view) => {
  const { name } = view, step = view.query.get("step");
  view.command = () => `rldbg profile timeline ${R.quote(view.path || name)}`;
  R.fill(view.main, R.h("p.muted", null, "reading phases …"));
  const found = await R.job(view, `runs/${encodeURIComponent(name)}/timeline`, { step });
  if (!view.alive) return;
  const select = R.h("select", {
    id: "timeline-step",
    "aria-label": "Step",
    onchange: () => R.go(`run/${encodeURIComponent(name)}/timeline`, { step: select.value }),
  }, R.h("option", { value: "" }, "whole run"),
    found.steps.map((each) => R.h("option", { value: each }, `step ${each}`)));
  select.value = step || "";
  R.fill(view.main,
    R.h("div.toolbar", null, R.h("h1", null, "Timeline"), !R.exported && select, !R.exported && R.h("a.button", {
      href: `api/runs/${encodeURIComponent(name)}/trace.json.gz`,
      title: "A file for ui.perfetto.dev or chrome://tracing",
    }, "Trace for Perfetto")),
    R.h("p.muted", null, "Phases, requests and pauses of every process on one clock. Hover over a bar for its times."),
    found.left_out > 0
      && R.h("p.muted", null, `${R.plural(found.left_out, "short span")} left out; choose one step to see all of it`),
    R.timelineChart(found),
    found.report && found.report.phases.length > 0
      && R.h("section.card", null, R.h("h2", null, "Where the time goes, per step"),
        R.anyTable(found.report.phases, "phases")),
    found.report && found.report.roles.length > 0
      && R.h("section.card", null, R.h("h2", null, "How busy each role is"), R.anyTable(found.report.roles, "roles")),
    found.report && found.report.advice.length > 0
      && R.h("section.card", null, R.h("h2", null, "What to try"), R.h("ol", null, found.report.advice.map((line) =>
        R.h("li", null, line)
      ))));
};

R.timelineChart = (found) => {
  const phases = [...new Set(found.lanes.flatMap((lane) => lane.spans.map((span) => span[2])))];
  const color = (phase) => R.colors[phases.indexOf(phase) % R.colors.length];
  const end = Math.max(1e-9,
    ...found.lanes.map((lane) => lane.spans.reduce((latest, span) => Math.max(latest, span[0] + span[1]), 0)));
  const left = 150, width = 1200, tall = 20;
  const svg = R.h("svg.chart", {
    viewBox: `0 0 ${width} ${found.lanes.length * tall + 20}`,
    role: "img",
    "aria-label": "timeline",
  });
  const x = (seconds) => left + (seconds / end) * (width - left - 10);
  found.lanes.forEach((lane, row) => {
    svg.append(
      R.h("text.axis", { x: left - 6, y: row * tall + 13, "text-anchor": "end" },
        R.cut(lane.rank === null || lane.worker.includes("/") ? lane.worker : `${lane.worker} rank ${lane.rank}`, 26)),
      R.h("line.gridline", { x1: left, x2: width - 10, y1: (row + 1) * tall, y2: (row + 1) * tall }),
    );
    for (const [start, length, phase, at] of lane.spans)
      svg.append(R.h("rect", {
        x: x(start),
        y: row * tall + 3,
        width: Math.max(0.5, x(start + length) - x(start)),
        height: tall - 6,
        fill: color(phase),
        stroke: "none",
      }, R.h("title", null, `${phase}\nstep ${at}\n${R.number(length * 1000, 4)} ms from ${R.number(start, 5)} s`)));
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1])
    svg.append(R.h("text.axis", {
      x: x(part * end),
      y: found.lanes.length * tall + 14,
      "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle",
    }, `${R.number(part * end, 4)} s`));
  return R.h("div.charts.wide", null,
    R.figure("phases of each process", svg,
      phases.slice(0, 24).map((phase) => ({ name: phase, color: color(phase) }))));
};

// Growth, what an engine kept after it slept, and memory at the beginning, peak and end of each phase.
R.views.memory = async (view) => {
  const { name } = view;
  view.command = () => `rldbg profile report ${R.quote(view.path || name)}`;
  R.fill(view.main, R.h("p.muted", null, "reading phases …"));
  const { report } = await R.job(view, `runs/${encodeURIComponent(name)}/timeline`);
  if (!view.alive) return;
  const ledger = report ? report.ledger.filter((row) => row.host_mib || row.gpu_mib) : [];
  const three = (numbers) => (numbers || ["–", "–", "–"]);
  const peaks = ledger.map((row) => ({ name: `${row.process} ${row.phase}`, value: (row.gpu_mib || row.host_mib)[1] }));
  R.fill(view.main, R.h("h1", null, "Memory"),
    !ledger.length
      && R.h("p.empty", null, report
        ? "The phases of this run were recorded without memory."
        : "This run has no whole step: there is nothing to add up."),
    report && report.leaks.length > 0
      && R.h("section.card.memory", null, R.h("h2", null, "Memory that grows"), R.anyTable(report.leaks, "leaks")),
    report && report.residues.length > 0
      && R.h("section.card.memory", null, R.h("h2", null, "GPU memory in use after an engine went to sleep"),
        R.anyTable(report.residues, "residues")),
    ledger.length > 0
      && R.h("section.card.memory", null,
        R.h("h2", null, "Memory in MiB at the start, peak and end of each phase"),
        R.table([
          "role",
          "process",
          "phase",
          "seconds per step",
          "host begin",
          "host peak",
          "host end",
          "GPU begin",
          "GPU peak",
          "GPU end",
        ],
          ledger.map((
            row,
          ) => [row.role, row.process, row.phase, row.seconds, ...three(row.host_mib), ...three(row.gpu_mib)]), {
          id: "ledger",
        })), peaks.length > 1 && R.h("div.charts", null, R.rankedBars("peak memory by process and phase, MiB", peaks)));
};

R.rankedBars = (title, items) => {
  const shown = [...items].sort((a, b) => b.value - a.value).slice(0, 24),
    most = Math.max(1e-12, ...shown.map((item) => item.value));
  const svg = R.h("svg.chart", { viewBox: `0 0 420 ${shown.length * 16 + 4}`, role: "img", "aria-label": title });
  shown.forEach(({ name, value }, row) =>
    svg.append(R.h("text.axis", { x: 166, y: row * 16 + 12, "text-anchor": "end" }, R.cut(name, 28)),
      R.h("rect", { x: 170, y: row * 16 + 2, width: (190 * value) / most, height: 12, fill: R.colors[0] }),
      R.h("text.axis", { x: 174 + (190 * value) / most, y: row * 16 + 12 }, R.number(value)))
  );
  return R.figure(title, svg);
};
