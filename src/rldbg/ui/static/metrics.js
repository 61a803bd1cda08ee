"use strict";
// Curves over steps; a click on one opens the step: checks that fired, and the samples that carry most of the loss.
R.views.metrics = async (view) => {
  const { name } = view;
  view.command = () => `rldbg check ${R.quote(view.path || name)} --metrics`;
  R.fill(view.main, R.h("p.muted", null, "computing metrics …"));
  const answer = await R.job(view, `runs/${encodeURIComponent(name)}/metrics`, null,
    (seconds) => R.fill(view.main, R.h("p.muted", null, `computing metrics … ${seconds.toFixed(0)} s`)));
  if (!view.alive) return;
  const open = (step) => R.go(`run/${encodeURIComponent(name)}/step/${step}`);
  const curves = (rows) => {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((each) => each !== "step");
    return names.map((metric) => ({
      metric,
      points: rows.filter((row) => metric in row).map((row) => [row.step, row[metric]]),
    })).filter(({ points }) => points.length);
  };
  const draw = (title, rows) =>
    rows.length > 0
    && R.h("section", null, R.h("h2", null, title), R.h("div.charts", null, curves(rows).map(({ metric, points }) =>
      R.lineChart({ title: metric, series: [{ name: metric, points }], onpick: open, marks: R.spikes(points) })
    )));
  R.fill(view.main, R.h("h1", null, "Metrics over steps"), R.gotoStep(open),
    R.h("p.muted", null, "Click a step of a curve for the samples and tokens behind it. Dashed lines mark spikes."),
    draw("Reported by the trainer", answer.reported), draw("Computed from the recording", answer.computed),
    !answer.reported.length && !answer.computed.length
      && R.h("p.empty", null, "The recording has nothing to compute metrics from."));
};

R.gotoStep = (open) => {
  const input = R.h("input", {
    type: "text",
    inputmode: "numeric",
    size: "6",
    "aria-label": "Step to open",
    onkeydown: (event) => {
      if (event.key === "Enter" && /^\d+$/.test(input.value.trim())) open(Number(input.value));
    },
  });
  return R.h("p", null, R.h("label", null, "open step ", input), " ",
    R.h("button", { onclick: () => /^\d+$/.test(input.value.trim()) && open(Number(input.value)) }, "Open"));
};

// Steps whose change stands out of all changes of the curve.
R.spikes = (points) => {
  if (points.length < 8) return [];
  const changes = points.slice(1).map(([, value], place) => Math.abs(value - points[place][1])).filter(Number.isFinite);
  const middle = [...changes].sort((a, b) => a - b)[Math.floor(changes.length / 2)];
  return points.slice(1).filter(([, value], place) => Math.abs(value - points[place][1]) > Math.max(8 * middle, 1e-12))
    .map(([step]) => step);
};

R.views.step = async (view) => {
  const { name } = view, step = Number(view.rest[0]);
  view.command = () => `rldbg check ${R.quote(view.path || name)} --step ${step} --metrics`;
  R.fill(view.main, R.h("p.muted", null, `reading step ${step} …`));
  const answer = await R.job(view, `runs/${encodeURIComponent(name)}/step/${step}`, null);
  if (!view.alive) return;
  const go = (other) =>
    R.h("a.button", { href: R.link(`run/${encodeURIComponent(name)}/step/${other}`) }, `step ${other}`);
  R.fill(view.main, R.h("div.toolbar", null, R.h("h1", null, `Step ${step}`), step > 0 && go(step - 1), go(step + 1)),
    R.facts(answer.metrics),
    R.h("section.card", null, R.h("h2", null, "Check ", R.verdict(answer.check.verdict)),
      R.findings(answer.check.findings, name),
      !answer.check.findings.length
        && R.h("p.muted", null, `${R.plural(answer.check.passed.length, "check")} passed at this step.`)),
    R.h("section.card", null, R.h("h2", null, "Samples that carry most of the loss and gradient"),
      R.h("p.muted", null,
        `Loss: ${answer.by}. Gradient: |advantage × ratio| of each token, 0 where it is clipped. ${
          R.plural(answer.count, "sample")
        } in this step.`),
      R.table([
        "sample",
        "share of loss",
        "share of gradient",
        "loss",
        "reward",
        "trained tokens",
        "largest token",
        "at token",
        "not finite",
        "trainer − rollout",
      ], answer.samples.map((row) => [
        R.h("a", {
          href: R.link(`run/${encodeURIComponent(name)}/sample`, {
            step,
            sample: row.sample,
            token: row.worst_token,
          }),
        }, R.cut(row.sample, 60)),
        R.share(row.share),
        row.gradient_share === null ? "–" : R.share(row.gradient_share),
        row.loss,
        row.reward === null ? "–" : row.reward,
        row.tokens,
        row.worst_value === null ? "not finite" : row.worst_value,
        row.worst_token,
        row.not_finite,
        row.difference === null ? "–" : row.difference,
      ]), { id: "carriers" })));
};
R.share = (share) =>
  R.h("span.share", null, R.h("i", { style: { width: `${(100 * (share || 0)).toFixed(1)}%` } }),
    `${(100 * (share || 0)).toFixed(1)} %`);

// Which share of the gap between the rollout's and the trainer's log probs each cause accounts for.
R.views.mismatch = async (view) => {
  const { name } = view;
  view.command = () => `rldbg mismatch ${R.quote(view.path || name)}`;
  R.fill(view.main, R.h("p.muted", null, "reading log probs …"));
  const found = await R.job(view, `runs/${encodeURIComponent(name)}/mismatch`, null,
    (seconds) => R.fill(view.main, R.h("p.muted", null, `reading log probs … ${seconds.toFixed(0)} s`)));
  if (!view.alive) return;
  const flat = (value) =>
    Object.fromEntries(Object.entries(value || {}).filter(([, each]) => typeof each === "number"));
  const causes = [...found.causes, ...(found.unexplained ? [found.unexplained] : [])];
  R.fill(view.main,
    R.h("h1", null, "Mismatch of rollout and trainer ",
      R.verdict(found.verdict === "agree" ? "equal within noise" : "different")), R.facts(flat(found.metrics)),
    R.findings(found.findings, name),
    causes.length === 0 && R.h("p.empty", null, "They give the same log probs to the same tokens, up to rounding."),
    causes.length > 0 && R.h("p.muted", null, "How much of the gap between both log probs each cause accounts for."),
    causes.map((cause) =>
      R.h("section.card", null, R.h("h2", null, R.share(cause.share), " ", cause.text),
        R.facts({ cause: R.h("code", null, cause.id), tokens: cause.tokens, ...cause.parameters }),
        cause.proof.length > 0
          && R.table(["token that shows it", "rollout", "trainer", "difference"],
            cause.proof.map((
              proof,
            ) => [R.place(name, proof.where), proof.rollout, proof.trainer, proof.trainer - proof.rollout])))
    ),
    Object.entries(found.parts || {}).map(([title, parts]) =>
      R.h("section.card", null, R.h("h2", null, `By ${title}`),
        R.table([title, ...Object.keys(flat(Object.values(parts)[0])).map(R.words)],
          Object.entries(parts).map(([part, metrics]) => [part, ...Object.values(flat(metrics))])))
    ));
};
