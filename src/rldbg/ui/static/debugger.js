"use strict";
// A stopped process from inside: its source, whose lines set breakpoints, and its variables as a tree.
R.sourceCard = (source, onbreak) =>
  R.h("section.card.source", null, R.h("h2", null, R.h("code", null, `${source.file}:${source.line}`)),
    R.h("p.muted", null, "Click a line to set a breakpoint there, in the ranks selected above."),
    R.h("div.lines", null, source.lines.map((text, place) => {
      const line = source.first + place;
      return R.h(line === source.line ? "div.line.here" : "div.line", null, R.h("button.gutter", {
        "data-place": `${source.file}:${line}`,
        title: `breakpoint at line ${line}`,
        "aria-label": `breakpoint at line ${line}`,
        onclick: () => onbreak(`${source.file}:${line}`),
      }, String(line)), R.h("code", null, text || " "));
    })));

// One value, opened on demand: ask(expression) gives its members.
R.valueTree = (ask, item, access) => {
  const head = [
    R.h("b", null, item.name),
    " ",
    R.h("span.muted", null, item.type),
    " ",
    R.h("code", null, R.cut(item.text, 300)),
  ];
  const inside = R.h("div.members-of"),
    leaf = /^(int|float|bool|str|NoneType|bytes|function|builtin_function_or_method|module|type)$/.test(item.type);
  if (leaf) return R.h("div.value", null, head);
  const node = R.h("details.value", {
    ontoggle: async () => {
      if (!node.open || inside.childElementCount) return;
      R.fill(inside, R.h("span.muted", null, "reading …"));
      try {
        R.fill(inside, R.valueMembers(ask, access, await ask(access)));
      } catch (error) {
        R.fill(inside, R.errorCard(error));
      }
    },
  }, R.h("summary", null, head), inside);
  return node;
};

R.valueMembers = (ask, expression,
  found) => [
  found.picture && R.tensorPicture(found.picture),
  found.members.map((item) => R.valueTree(ask, item, expression ? `(${expression})${item.access}` : item.name)),
  found.total > found.members.length
  && R.h("p.muted", null, `${R.number(found.members.length)} of ${R.number(found.total)} shown`),
  !found.members.length && !found.picture && R.h("span.muted", null, "nothing inside"),
];

R.tensorPicture = (picture) =>
  R.h("div.charts", null, picture.histogram && R.barChart({ title: "histogram", bins: picture.histogram }), R.heatMap({
    title: `values${picture.each.some((each) => each > 1) ? `, every ${picture.each.join(" by ")}` : ""}`,
    rows: picture.rows.map(() => ""),
    columns: picture.rows[0].map(() => ""),
    labels: [],
    left: 4,
    size: Math.max(4, Math.min(20, Math.floor(400 / picture.rows[0].length))),
    scale: R.extent(picture.rows.flat()),
    value: (row, column) => picture.rows[row][column],
  }));

// The samples that a process worked on, each opened token by token.
R.lastRecorded = (name, recorded) =>
  recorded && recorded.samples
  && R.h("p", { id: "recorded" },
    `Recorded last: ${recorded.kind} of step ${recorded.step}, micro-batch ${recorded.micro}: `,
    recorded.samples.map((
      sample,
    ) => [
      R.h("a", { href: R.link(`run/${encodeURIComponent(name)}/sample`, { step: recorded.step, sample }) },
        R.cut(sample, 60)),
      " ",
    ]));
