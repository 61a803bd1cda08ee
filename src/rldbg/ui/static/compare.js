"use strict";
// Two or more runs: stages in causal order, what differs beside what noise allows, why, and the worst tokens.
R.views.compare = async (view) => {
  const runs = view.query.getAll("run");
  view.command = () => `rldbg compare ${runs.length > 1 ? (view.paths || runs).map(R.quote).join(" ") : "A B"}`;
  const list = await R.api("runs");
  view.paths = runs.map((name) => (list.runs.find((run) => run.name === name) || { path: name }).path);
  if (runs.length < 2) {
    R.chooseRuns(view, list, runs);
    return;
  }
  R.fill(view.main, R.h("p.muted", null, "comparing …"));
  const answer = await R.job(view, "compare", { run: runs },
    (seconds) => R.fill(view.main, R.h("p.muted", null, `comparing … ${seconds.toFixed(0)} s`)));
  if (!view.alive) return;
  R.fill(view.main,
    R.h("div.toolbar", null, R.h("h1", null, "Compare"), R.h("a.button", { href: "#/compare" }, "choose runs")),
    R.comparisons(answer));
};

R.comparisons = (answer) => [
  answer.pairs.length > 1 && R.pairsTable(answer.pairs),
  answer.pairs.map((pair, number) => R.comparison(pair, answer.stages, number)),
];

// Of more than two runs: what each comparison with the first found, and the way to it.
R.pairsTable = (pairs) =>
  R.h("section.card", { id: "pairs" }, R.h("h2", null, `${pairs[0].a_name} (A) against each of the others (B)`),
    R.table(["run", "verdict", "first difference", "why"], pairs.map((pair, number) => {
      const first = pair.first_difference, why = pair.explanations[0];
      const link = R.h("button.small", { onclick: () => document.getElementById(`pair-${number}`).scrollIntoView() },
        pair.b_name);
      return [
        link,
        R.verdict(pair.verdict),
        first ? `${first.stage}, step ${first.step}` : "–",
        why ? why.explains : first ? "not decided" : "–",
      ];
    })));

R.chooseRuns = (view, list, chosen) => {
  const pick = (number) =>
    R.h("select", { "aria-label": `run ${"ABC"[number]}` },
      R.h("option", { value: "" }, number < 2 ? `run ${"ABC"[number]}` : "third run (optional)"),
      list.runs.filter((run) => !run.error).map((run) => R.h("option", { value: run.name }, run.name)));
  const picks = [0, 1, 2].map(pick);
  if (chosen[0]) picks[0].value = chosen[0];
  R.fill(view.main, R.h("h1", null, "Compare"),
    R.h("div.toolbar", null, picks,
      R.h("button", { onclick: () => R.go("compare", { run: picks.map((each) => each.value).filter(Boolean) }) },
        "Compare")),
    R.exported
      && Object.keys(rldbgIndex.places).filter((key) => key.startsWith("compare?")).map((key) =>
        R.h("p", null, "In this report: ",
          R.h("a", { href: R.link("compare", { run: key.slice(8).split("&") }) },
            key.slice(8).split("&").join(" and ")))
      ), list.runs.length < 2 && R.h("p.empty", null, "Only one run is opened. Start with two: rldbg ui A B"));
};

R.comparison = (pair, stages, number) => {
  const first = pair.first_difference;
  const rows = Object.fromEntries(pair.stages.map((row) => [row.stage, row]));
  const box = (stage) => {
    const row = rows[stage];
    if (!row) return R.h("div.stage.absent", null, R.h("b", null, stage), R.h("span", null, "not recorded"));
    const isFirst = first && first.stage === stage;
    if (R.isEmpty(row))
      return R.h("div.stage.absent", null, R.h("b", null, stage), R.h("span", null, "nothing to compare"));
    return R.h(`button.stage.${row.verdict.replace(/ /g, "-")}${isFirst ? ".first" : ""}`, {
      title: isFirst ? "the first difference" : row.follows ? "may differ because an earlier stage does" : "",
      onclick: () => document.getElementById(`stage-${stage}`)?.scrollIntoView({ block: "center" }),
    }, R.h("b", null, stage), R.verdict(row.verdict),
      R.h("span", null,
        row.compared === undefined
          ? ""
          : row.beyond
          ? `${R.number(row.beyond)} of ${R.number(row.compared)}`
          : R.number(row.compared)), isFirst && R.h("em", null, "first difference"));
  };
  return R.h("section.comparison", { id: `pair-${number}` },
    R.h("section.card", null,
      R.h("h2", null, R.verdict(pair.verdict),
        ` ${R.number(pair.compared)} values over ${R.plural(pair.steps.length, "step")}`),
      R.facts({ A: pair.a, B: pair.b })),
    first
      && R.h("section.card.firstcard", null,
        R.h("h2", null, `First difference: stage ${first.stage}, ${first.kind}.${first.field}`),
        R.facts(
          Object.fromEntries(
            ["step", "epoch", "mini_batch", "rank", "micro", "sample", "row", "token", "name", "a", "b"].filter((key) =>
              first[key] !== null && first[key] !== undefined
            ).map((
              key,
            ) => [{ mini_batch: "mini-batch", micro: "micro-batch", a: "A", b: "B" }[key] || key, first[key]]),
          ),
        ),
        first.sample && !R.isAlone && R.h("p.links", null, [["A", pair.a_name], ["B", pair.b_name]].map(([side, name]) => [R.h("a", {
          href: R.link(`run/${encodeURIComponent(name)}/sample`, {
            sample: first.sample,
            step: first.step,
            token: first.token,
          }),
        }, `open it in ${side}`)]))), R.h("h2", null, "Stages in causal order"),
    R.h("div.stages", null, stages.map(box)), R.whyCards(pair),
    R.h("section.card", null, R.h("h2", null, "Difference compared with noise, by field"),
      R.table([
        "stage",
        "field",
        "verdict",
        "compared",
        "beyond tolerance",
        "allowed by noise",
        "max |a − b|",
        "mean |a − b|",
        "max relative",
      ], pair.stages.filter((row) => row.stage !== "config").flatMap((row) =>
        row.fields.map((field, place) => ({
          attributes: place === 0 ? { id: `stage-${row.stage}` } : null,
          cells: [
            row.stage,
            R.h("code", null, `${field.kind}.${field.field}`),
            R.isEmpty(field) ? "–" : R.verdict(field.verdict),
            field.compared,
            field.beyond,
            field.allowed,
            field.max_abs,
            field.mean_abs,
            field.max_rel,
          ],
        }))
      ))),
    pair.noise.length > 0
      && R.h("section.card", null, R.h("h2", null, "Noise after each optimizer step"), R.anyTable(pair.noise)),
    R.h("div.charts", null,
      Object.entries(pair.step_curve).slice(0, 8).map(([field, points]) =>
        R.lineChart({ title: `largest difference of ${field} by step`, series: [{ name: field, points }] })
      ), pair.strips && pair.strips.histogram && R.barChart({
        title: `${pair.strips.quantity} on both sides, step ${pair.strips.step}`,
        bins: pair.strips.histogram,
      }),
      Object.entries(pair.distributions).slice(0, 8).filter(([, bins]) => bins.length > 1).map(([field, bins]) =>
        R.barChart({
          title: `sizes of differences of ${field}`,
          bins: {
            edges: [...bins.map(([edge]) => edge), bins[bins.length - 1][0] * 2],
            counts: bins.map(([, count]) => count),
          },
          log: true,
        })
      )), R.heatMaps(pair), pair.strips && R.strips(pair), R.configuration(rows.config),
    pair.findings.length > 0 && R.h("section.card", null, R.h("h2", null, "Findings"), R.findings(pair.findings)));
};

// Without a value on both sides there is no verdict.
R.isEmpty = (row) => row.compared === 0 && !row.allowed;

R.fieldsOf = (pair) => pair.stages.filter((row) => row.stage !== "config").flatMap((row) => row.fields);

R.anyTable = (rows, id) =>
  R.table(Object.keys(rows[0]).map(R.words), rows.map((row) =>
    Object.values(row).map((value) => (typeof value === "number"
      ? value
      : value === null
      ? "–"
      : typeof value === "object"
      ? JSON.stringify(value)
      : String(value))
    )
  ), { id });
R.words = (name) => name.replaceAll("_", " ");

R.whyCards = (pair) => {
  if (!pair.first_difference) return null;
  const card = (item, near) =>
    R.h(near ? "div.card.why.near" : "div.card.why", null, R.h("b", null, item.explains), R.facts({
      "accounts for": `${(100 * item.share).toFixed(0)} %`,
      "left over": item.residual,
      "rounding allows": item.noise,
      hypothesis: R.h("code", null, item.id),
      ...item.parameters,
    }), R.apply(pair, item));
  if (pair.explanations.length)
    return R.h("section", null, R.h("h2", null, "Why"), pair.explanations.map((item) => card(item)));
  if (pair.candidates.length)
    return R.h("section", null, R.h("h2", null, "Why"),
      R.h("p", null, "Cause not decided: the recordings leave these candidates."),
      pair.candidates.map((item) => card(item, true)));
  return R.h("section", null, R.h("h2", null, "Why"),
    R.h("p", null, "Cause unknown: no hypothesis accounts for it.",
      pair.nearest.length > 0 && " The closest ones are not the cause: what they leave is more than rounding."),
    pair.nearest.map((item) => card(item, true)));
};

// "Apply": the numbers that the hypothesis makes of one side, beside what both recorded.
R.apply = (pair, item) => {
  const made = pair.recomputed[item.id + item.explains];
  if (!made)
    return R.h("p.muted", null,
      "It says which tokens, masks, ids or weights differ; it has no formula to recompute numbers.");
  const line = (values) => made.places.map((place, number) => [place, values[number]]);
  const [given, other] = made.names || (item.parameters.side === "A" ? ["B", "A"] : ["A", "B"]);
  const shown = R.h("div.charts");
  const button = R.h("button.apply", {
    "aria-expanded": "false",
    onclick: () => {
      if (shown.firstChild) {
        R.fill(shown);
        button.setAttribute("aria-expanded", "false");
        return;
      }
      button.setAttribute("aria-expanded", "true");
      R.fill(shown, R.lineChart({
        title: "recorded, and recomputed by this hypothesis",
        unit: "value",
        series: [{ name: given, points: line(made.given) }, { name: other, points: line(made.recorded) }, {
          name: `${given} with the hypothesis applied`,
          points: line(made.made),
          dashed: true,
        }],
      }), R.lineChart({
        title: "difference before and after",
        unit: "value",
        series: [{
          name: `${other} − ${given}`,
          points: line(made.recorded.map((value, number) => value - made.given[number])),
        }, { name: "left over", points: line(made.recorded.map((value, number) => value - made.made[number])) }],
      }),
        R.h("p.muted", null,
          made.count > made.places.length
            ? `${R.number(made.places.length)} of ${R.number(made.count)} numbers: those that differ most`
            : `all ${R.number(made.count)} numbers`));
    },
  }, "apply");
  return [R.h("p", null, button), shown];
};

// Rank by micro-batch, one map per field that differs.
R.heatMaps = (pair) => {
  const fields = R.fieldsOf(pair).filter((field) =>
    field.verdict === "different" && new Set(field.cells.map((cell) => `${cell.rank}/${cell.micro}`)).size > 1
  ).slice(0, 6);
  if (!fields.length) return null;
  return R.h("section", null, R.h("h2", null, "Where: ranks and micro-batches"),
    R.h("div.charts", null, fields.map((field) => {
      const steps = [...new Set(field.cells.map((cell) => cell.step))].slice(0, 40);
      const columns = [...new Set(field.cells.map((cell) => `${cell.rank}/${cell.micro}`))].slice(0, 64);
      const cells = new Map(field.cells.map((cell) => [`${cell.step} ${cell.rank}/${cell.micro}`, cell]));
      const sized = field.cells.some((cell) => cell.max_abs > 0); // what is absent on one side has no size
      const at = (row, column) => cells.get(`${steps[row]} ${columns[column]}`);
      return R.heatMap({
        title: `${field.kind}.${field.field} by step and rank/micro-batch`,
        rows: steps.map((step) => `step ${step}`),
        columns,
        left: 54,
        size: columns.length > 14 ? 16 : 26,
        note: sized ? "largest |a − b|" : "values that differ",
        value: (row, column) => {
          const cell = at(row, column);
          if (!cell || !cell.beyond) return cell && 0;
          return sized ? (Number.isFinite(cell.max_abs) ? cell.max_abs : null) : cell.beyond;
        },
        describe: (row, column) => {
          const cell = at(row, column);
          return `step ${cell.step} rank ${cell.rank} micro-batch ${cell.micro}: max ${R.number(cell.max_abs)}, ${
            R.number(cell.beyond)
          } beyond tolerance`;
        },
      });
    })));
};

R.strips = (pair) =>
  R.h("section.card", null, R.h("h2", null, "Worst samples, token by token"),
    R.h("p.muted", null,
      `step ${pair.strips.step}, coloured by |a − b| of ${pair.strips.quantity}; faint tokens are not trained on`),
    pair.strips.samples.map((strip) => {
      const largest = strip.worst && Number.isFinite(strip.worst) ? strip.worst : 1;
      const place = { sample: strip.sample, step: pair.strips.step, token: strip.worst_position };
      const name = R.cut(strip.sample, 80);
      return R.h("div.strip", null, R.h("p", null,
        R.isAlone ? name : R.h("a", { href: R.link(`run/${encodeURIComponent(pair.a_name)}/sample`, place) }, name),
        R.h("span.muted", null, ` worst ${R.number(strip.worst)} at token ${strip.worst_position}`)),
        R.h("div.flow", null, strip.tokens.map((token) =>
          R.h(token.trained ? "span.t" : "span.t.off", {
            style: token.gap ? { "background-color": R.tint(Math.min(1, token.gap / largest)) } : {},
            title: [
              `token ${token.position}`,
              ...Object.entries(token.values).map(([name, [a, b]]) => `${name}: ${R.number(a, 6)} | ${R.number(b, 6)}`),
            ].join("\n"),
          }, token.a === token.b ? R.cut(token.a, 60) : `${R.cut(token.a ?? "∅", 60)}→${R.cut(token.b ?? "∅", 60)}`)
        )));
    }));

R.configuration = (row) => {
  const changes = row ? row.fields : [];
  if (!changes.length) return null;
  return R.h("section.card", null, R.h("h2", null, "Configuration"),
    R.h("p.muted", null, "settings that differ: possible causes, not proof"),
    R.table(["setting", "A", "B"],
      changes.map((
        change,
      ) => [
        R.h("code", null, change.field),
        R.cut(JSON.stringify(change.a), 120),
        R.cut(JSON.stringify(change.b), 120),
      ])));
};
