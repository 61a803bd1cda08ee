"use strict";
// The table of samples, and the samples of one group side by side.
R.widths = { step: 58, group: 150, run: 48, finding: 130, truncated: 76, turns: 56 };

R.views.samples = async (view) => {
  const { name, query } = view;
  const base = `runs/${encodeURIComponent(name)}`;
  const state = { filter: query.get("filter") || "", sort: query.get("sort") || "", order: query.get("order") || "" };
  const selection = () => ({ filter: state.filter, sort: state.sort, order: state.order });
  view.command = (first) =>
    `rldbg show ${R.quote(view.path || name)}${
      first ? ` --step ${first.step} --sample ${R.quote(`${first.group}/${first.run}`)}` : ""
    }`;
  const input = R.h("input", {
    id: "filter",
    type: "search",
    spellcheck: "false",
    autocomplete: "off",
    value: state.filter,
    "aria-label": "Filter expression",
    placeholder: 'filter: reward > 0.5 and length < 200 and "g3" in group   ( / )',
    onkeydown: (event) => {
      if (event.key === "Enter") apply({ filter: input.value });
      if (event.key === "Escape") {
        input.value = state.filter;
        input.blur();
      }
    },
    onchange: () => apply({ filter: input.value }),
  });
  const status = R.h("span.muted", { id: "matched" });
  const csv = R.exported
    ? R.h("button", { onclick: () => R.exported.csv(name, selection()) }, "CSV")
    : R.h("a.button", { id: "csv", title: "Save the rows that match as CSV" }, "CSV");
  const problem = R.h("p.problem", { role: "alert" });
  let histograms = {};
  const plots = R.h("div.charts", { id: "histograms", hidden: true });
  const drawPlots = () =>
    R.fill(plots, plots.hidden ? null : Object.entries(histograms).map(([column, found]) =>
      R.barChart({
        title: column,
        bins: found.texts
          ? {
            names: found.texts.map(([text]) => R.cut(R.visible(text) || "(none)", 24)),
            counts: found.texts.map(([, count]) => count),
          }
          : found,
      })
    ));
  const toggle = R.h("button", {
    "aria-expanded": "false",
    "aria-controls": "histograms",
    title: "Show the histogram of every column, with buttons that save it",
    onclick: () => {
      plots.hidden = !plots.hidden;
      toggle.setAttribute("aria-expanded", String(!plots.hidden));
      drawPlots();
    },
  }, "Histograms");
  const table = new R.VirtualTable({
    columns: [],
    page: 100,
    fetchPage: async (offset, limit) => (await R.api(`${base}/samples`, { ...selection(), offset, limit })).rows,
    cell: (column, value) =>
      R.h(typeof value === "number" || value === null ? "div.vcell.n" : "div.vcell", {
        role: "gridcell",
        title: typeof value === "string" && value.length > 14 ? R.cut(R.visible(value), 300) : null,
      }, typeof value === "number" || value === null ? R.number(value) : R.cut(value, 200)),
    open: (values) => {
      const row = R.object(table.columns, values);
      R.go(`run/${encodeURIComponent(name)}/sample`, { step: row.step, sample: `${row.group}/${row.run}` });
    },
  });
  const apply = (changes) => {
    if (Object.entries(changes).every(([key, value]) => state[key] === value)) return;
    Object.assign(state, changes);
    input.value = state.filter;
    R.permalink(`run/${encodeURIComponent(name)}/samples`, selection());
    draw();
  };
  const sortBy = (column) =>
    apply(
      state.sort !== column
        ? { sort: column, order: "down" }
        : state.order === "down"
        ? { order: "up" }
        : { sort: "", order: "" },
    );
  const narrow = (condition) =>
    apply({
      filter: state.filter && !state.filter.includes(condition) ? `(${state.filter}) and ${condition}` : condition,
    });
  const heads = (answer) =>
    R.fill(table.head, answer.columns.map((column) =>
      R.h("div.vth", {
        role: "columnheader",
        "aria-sort": state.sort === column ? (state.order === "down" ? "descending" : "ascending") : "none",
      }, R.h("button.sort", {
        onclick: () => sortBy(column),
        title: `sort by ${column}${R.meaning[column] ? `: ${R.meaning[column]}` : ""}`,
      }, column, state.sort === column ? (state.order === "down" ? " ↓" : " ↑") : ""),
        R.miniHistogram(column, (answer.histograms || {})[column], narrow))
    ));
  let asked = 0;
  const draw = async () => {
    asked += 1;
    const mine = asked;
    let answer;
    try {
      answer = await R.api(`${base}/samples`, { ...selection(), offset: 0, limit: 100 });
    } catch (error) {
      if (!view.alive) return;
      if (state.filter && error.kind === "usage") {
        R.fill(problem, error.message, error.hint ? ` — ${error.hint}` : "");
        return;
      }
      throw error;
    }
    if (!view.alive || mine !== asked) return;
    R.fill(problem,
      answer.unreadable.length
        ? `${R.plural(answer.unreadable.length, "record")} cannot be read: ${R.cut(answer.unreadable[0], 300)}`
        : "");
    R.fill(status,
      answer.remaining
        ? `reading: ${R.number(answer.count)} samples of ${R.number(answer.records - answer.remaining)} of ${
          R.number(answer.records)
        } records`
        : answer.matched === answer.count
        ? R.plural(answer.count, "sample")
        : `${R.number(answer.matched)} of ${R.plural(answer.count, "sample")}`);
    if (csv.tagName === "A") csv.setAttribute("href", `api/${base}/samples.csv?${R.query(selection())}`);
    table.setColumns(answer.columns, answer.columns.map((column) => R.widths[column] || 88));
    heads(answer);
    histograms = answer.histograms || {};
    drawPlots();
    table.reset(answer.matched, answer.rows);
    view.answer = answer.rows.length ? R.object(answer.columns, answer.rows[0]) : null;
    if (!answer.count && !answer.remaining)
      R.fill(table.space, R.h("p.empty", null, "No samples are recorded: this recording has no kind with samples."));
    const wait = answer.remaining ? 300 : answer.live ? 5000 : 0;
    if (wait) setTimeout(() => view.alive && mine === asked && draw(), wait);
  };
  R.fill(view.main, R.h("div.toolbar", null, input, status, csv, toggle), problem, plots, table.element);
  view.keys = { "/": () => input.focus(), j: () => table.element.focus(), k: () => table.element.focus() };
  view.main.classList.add("fixed");
  await draw();
  table.element.focus();
};

R.object = (names, values) => Object.fromEntries(names.map((name, place) => [name, values[place]]));

// A histogram in a column's head; a click on a bar narrows the table to it.
R.miniHistogram = (column, histogram, narrow) => {
  if (!histogram) return null;
  if (histogram.texts) {
    if (histogram.more && histogram.texts[0][1] < 3) return R.h("div.minibars.muted", null, "many values");
    return R.miniBars(column, histogram.texts.map(([text, count]) => ({
      name: R.cut(R.visible(text) || "(none)", 40),
      count,
      condition: `${column} == ${JSON.stringify(text)}`,
    })), narrow);
  }
  return R.miniBars(column, histogram.counts.map((count, place) => {
    const low = histogram.edges[place],
      high = histogram.edges[place + 1],
      single = high - low === 1 && Number.isInteger(low),
      last = place === histogram.counts.length - 1;
    return {
      count,
      name: single ? R.number(low) : `${R.number(low)} to ${R.number(high)}`,
      condition: single
        ? `${column} == ${low}`
        : `${column} >= ${R.exact(low)} and ${column} ${last ? "<=" : "<"} ${R.exact(high)}`,
    };
  }), narrow);
};
R.miniBars = (column, bars, narrow) => {
  const most = Math.max(1, ...bars.map((bar) => bar.count)), wide = 100 / Math.max(1, bars.length);
  return R.h("svg.minibars", {
    viewBox: "0 0 100 22",
    preserveAspectRatio: "none",
    role: "group",
    "aria-label": `histogram of ${column}: click a bar to filter`,
  }, bars.map(({ count, name, condition }, place) => {
    const tall = count ? Math.max(1.5, (22 * count) / most) : 0;
    return R.h("g.bar", {
      role: "button",
      "aria-label": `${column} ${name}: ${R.number(count)}`,
      onclick: () => narrow(condition),
    }, R.h("rect.hit", { x: place * wide, y: 0, width: wide, height: 22 }),
      R.h("rect", { x: place * wide, y: 22 - tall, width: wide * 0.85, height: tall }),
      R.h("title", null, `${column} ${name}: ${R.plural(count, "sample")}`));
  }));
};
R.exact = (value) => String(Number(value.toPrecision(12)));

R.views.group = async (view) => {
  const { name, query } = view;
  const group = query.get("group"), step = Number(query.get("step"));
  view.command = () => `rldbg show ${R.quote(view.path || name)} --step ${step} --sample ${R.quote(`${group}/0`)}`;
  await R.api(`runs/${encodeURIComponent(name)}/samples`, { limit: 1 });
  const answer = await R.api(`runs/${encodeURIComponent(name)}/group`, { group, step });
  if (!view.alive) return;
  const prompt = answer.members.length ? answer.members[0].prompt : "";
  R.fill(view.main, R.h("h1", null, "Group ", R.h("bdi", null, R.cut(group, 120))),
    R.h("p.muted", null, `step ${step}, ${R.plural(answer.members.length, "answer")} to one prompt`),
    answer.members.length === 0 && R.h("p.empty", null, "No sample of this group is in this step."),
    prompt && R.h("section.card", null, R.h("h2", null, "Prompt"), R.h("pre.text", null, prompt)),
    R.h("div.members", null, answer.members.map((member) => {
      const reward = member.values.reward;
      return R.h("section.card.member", null,
        R.h("a.name", { href: R.link(`run/${encodeURIComponent(name)}/sample`, { step, sample: member.sample }) },
          R.cut(member.sample, 80)), R.facts({
          reward: typeof reward === "number" ? reward : null,
          advantage: member.advantage,
          tokens: member.tokens,
          trained: member.trained,
        }), R.h("pre.text", null, member.response));
    })));
};

// The answers to one prompt at every step that has it: by the hash of its tokens, else by the name of its group.
R.views.history = async (view) => {
  const { name, query } = view, run = encodeURIComponent(name);
  const id = query.get("sample"), step = query.get("step"), prompt = query.get("prompt");
  const cut = id.lastIndexOf("/"), group = id.slice(0, cut), member = Number(id.slice(cut + 1));
  view.command = () => `rldbg show ${R.quote(view.path || name)} --step ${step} --sample ${R.quote(id)}`;
  const filter = prompt ? `prompt_hash == ${JSON.stringify(prompt)}` : `group == ${JSON.stringify(group)}`;
  const answer = await R.api(`runs/${run}/samples`, { filter, sort: "step", limit: 500 });
  if (!view.alive) return;
  const rows = answer.rows.map((values) => R.object(answer.columns, values));
  const steps = [...new Set(rows.map((row) => row.step))];
  const open = (row) => R.link(`run/${run}/sample`, { step: row.step, sample: `${row.group}/${row.run}` });
  const curves = answer.columns.filter((column) =>
    !["step", "group", "run"].includes(column) && rows.some((row) => typeof row[column] === "number")
  );
  const mean = (column, at) => {
    const known = rows.filter((row) => row.step === at).map((row) => row[column]).filter(Number.isFinite);
    return known.reduce((sum, value) => sum + value, 0) / known.length;
  };
  const ours = (column) =>
    steps.map((at) => [at, rows.find((row) => row.step === at && row.run === member)?.[column]]).filter(([, value]) =>
      Number.isFinite(value)
    );
  R.fill(view.main, R.h("h1", null, "The prompt of ", R.h("bdi", null, R.cut(id, 80)), " over steps"),
    R.h("p.muted", null,
      `${R.plural(answer.matched, "answer")} in ${R.plural(steps.length, "step")}${
        answer.remaining ? "; the recording is still being read" : ""
      }. Click a point to open the sample of that step.`),
    R.h("div.charts", null, steps.length > 1 && curves.map((column) =>
      R.lineChart({
        title: column,
        onpick: (at) => {
          const row = rows.find((each) => each.step === at && each.run === member)
            || rows.find((each) => each.step === at);
          location.hash = open(row);
        },
        series: [{ name: `answer ${member}`, points: ours(column) }, {
          name: "mean of all answers",
          points: steps.map((at) => [at, mean(column, at)]),
          dashed: true,
        }],
      })
    )),
    R.h("section.card", null, R.h("h2", null, "Answers"),
      R.table(["sample", "step", ...curves],
        rows.map((
          row,
        ) => [
          R.h("a", { href: open(row) }, R.cut(`${row.group}/${row.run}`, 60)),
          row.step,
          ...curves.map((column) => (row[column] === null ? "–" : row[column])),
        ]), { id: "over-steps" })));
};
