"use strict";
// What was sent to the engine and what each replica holds; and the chat template, token by token.
R.views.weights = async (view) => {
  const { name } = view;
  view.command = () => `rldbg check ${R.quote(view.path || name)}`;
  R.fill(view.main, R.h("p.muted", null, "reading fingerprints of weights …"));
  const found = await R.job(view, `runs/${encodeURIComponent(name)}/weights`);
  if (!view.alive) return;
  const wrong = found.cells.filter((cell) => cell.wrong > 0),
    title = (cell) => `version ${cell.version} replica ${cell.replica}`;
  R.fill(view.main,
    R.h("h1", null, "Weights ", found.cells.length > 0 && R.verdict(wrong.length ? "different" : "equal")),
    R.h("p.muted", null,
      `${R.plural(found.sent.length, "version")} sent; ${
        R.plural(new Set(found.cells.map((cell) => cell.replica)).size, "replica")
      } of the engine.`), found.cells.length === 0 && R.h("p.empty", null, "What the engine holds is not recorded."),
    found.faults.length > 0
      && R.h("section.card.firstcard", null, R.h("h2", null, "First wrong tensor"),
        R.h("p", { id: "first-wrong" }, R.h("code", null, R.cut(found.faults[0].where, 300)),
          ` ${found.faults[0].text}`)),
    found.cells.length > 0
      && R.h("section.card", null, R.h("h2", null, "Replicas by version"),
        R.table(["version", "replica", "tensors held", "wrong", "verdict"],
          found.cells.map((
            cell,
          ) => [cell.version, cell.replica, cell.tensors, cell.wrong, R.verdict(cell.wrong ? "different" : "equal")]), {
          id: "replicas",
        })), wrong.length > 0 && R.h("div.charts", null, R.heatMap({
        title: "wrong tensors by layer, version and replica",
        rows: found.layers,
        columns: wrong.map(title),
        labels: wrong.map((cell) => `v${cell.version} r${cell.replica}`),
        size: 34,
        note: "wrong tensors",
        value: (layer, place) => wrong[place].layers[found.layers[layer]] || 0,
      })),
    found.faults.length > 0
      && R.h("section.card", null, R.h("h2", null, "What is wrong"),
        R.table(["where", "how", "what", "tensors alike"],
          found.faults.map((
            fault,
          ) => [R.h("code", null, R.cut(fault.where, 200)), fault.how, fault.text, fault.tensors])),
        found.left_out > 0 && R.h("p.muted", null, `and ${R.number(found.left_out)} more`)));
};

R.views.template = async (view) => {
  const { name } = view;
  view.command = (answer) => `rldbg check-template ${R.quote((answer && answer.model) || view.path || name)}`;
  R.fill(view.main, R.h("p.muted", null, "rendering conversations …"));
  const found = await R.job(view, `runs/${encodeURIComponent(name)}/template`);
  if (!view.alive) return;
  view.answer = found;
  const words = { holds: "pass", broken: "fail", "not tried": "not tried" };
  R.fill(view.main, R.h("h1", null, "Chat template ", R.verdict(found.ok ? "pass" : "fail")),
    R.h("p.path", null, found.model), R.h("p.muted", null, "Tokens on green are trained on; grey ones are not."),
    R.h("section.card", null, R.h("h2", null, "Properties"),
      R.table(["verdict", "property", "why"],
        found.properties.map((
          item,
        ) => [
          R.verdict(words[item.verdict] || item.verdict),
          item.name,
          R.h("span.kinds", null, item.why,
            item.verdict === "broken" && item.fix ? R.h("span.muted", null, ` ${item.fix}`) : ""),
        ]), { id: "properties" })),
    found.conversations.map((each) =>
      R.h("section.card", null,
        R.h("h2", null,
          `${each.name}: ${each.trained.filter(Boolean).length} of ${each.trained.length} tokens are trained on`),
        R.h("div.flow.block", null, each.texts.map((text, place) =>
          R.h(each.trained[place] ? "span.t.trained" : "span.t.off", {
            title: `token ${place}, id ${each.tokens[place]}: ${each.trained[place] ? "trained on" : "not trained on"}`,
          }, text.replaceAll("\n", "↵\n"))
        )))
    ));
};
