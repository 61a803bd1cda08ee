"use strict";
// The processes of a run: who is stopped where, stacks, breakpoints, commands on one or many ranks, crash files.
R.views.ranks = async (view) => {
  const { name } = view, base = `runs/${encodeURIComponent(name)}`;
  view.command = (
    answer,
  ) => (answer && !answer.alive && answer.crashes.length && answer.crashes[0].path
    ? `rldbg attach ${R.quote(answer.crashes[0].path)}`
    : `rldbg ps --run ${R.quote(view.path || name)}`);
  const asked = [], chosen = new Set(); // commands so far, the last one first; ranks whose boxes are marked
  let at = -1;
  const who = R.h("input", {
    type: "text",
    id: "who",
    value: "all",
    size: "14",
    "aria-label": "Ranks",
    title: "Which ranks: all, 0, 1,3, 0:8:2, policy/0, *policy*, dp=0",
  });
  const entry = R.h("input", {
    type: "search",
    id: "debug-command",
    spellcheck: "false",
    autocomplete: "off",
    "aria-label": "Command",
    placeholder: "p loss      n   s   r   locals   w      (Enter runs it on the stopped ranks)",
    onkeydown: (event) => {
      if (event.key === "Enter" && entry.value.trim()) {
        asked.unshift(entry.value.trim());
        at = -1;
        run("command", entry.value.trim());
      }
      const move = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (move && asked.length) {
        at = Math.max(0, Math.min(asked.length - 1, at + move));
        entry.value = asked[at];
        event.preventDefault();
      }
    },
  });
  const place = R.h("input", {
    type: "text",
    id: "break-place",
    "aria-label": "Breakpoint",
    placeholder: "/path/train.py:88 if loss != loss",
    size: "30",
    onkeydown: (event) => {
      if (event.key === "Enter" && place.value.trim()) run("break", place.value.trim());
    },
  });
  const list = R.h("section.card", { id: "processes" }),
    answers = R.h("div", { id: "answers" }),
    stacks = R.h("div", { id: "stacks" }),
    inside = R.h("div", { id: "inside" }),
    rest = R.h("div"),
    crashes = R.h("div", { id: "crashes" });
  const token = R.h("input", {
    type: "password",
    id: "token",
    "aria-label": "Token of the run",
    placeholder: "token in RUN/broker.json",
    onchange: () => {
      R.token = token.value.trim();
      R.toast("token kept until this page is closed");
    },
  });
  const needed = R.h("p.problem", { hidden: true },
    "Debug actions need the token of the run: open the URL that rldbg ui printed, or give it here: ", token);
  const run = async (action, text = "", whom = who.value) => {
    try {
      const answer = await R.api(`${base}/debug`, null, { action, who: whom, text });
      if (!view.alive) return;
      if (answer.groups) {
        answers.prepend(
          R.h("section.card.answer", null, R.h("h2", null, R.h("code", null, `${whom}> ${text}`)),
            answer.groups.map((group) =>
              R.h(group.odd ? "div.group.odd" : "div.group", null,
                R.h("b", null, group.odd ? "! " : "", group.who.join(", ")),
                R.h("pre.text", null, R.cut(group.text, 20000)))
            ),
            answer.spread
              && R.h("p.muted", null,
                `min ${R.number(answer.spread.min)}, median ${R.number(answer.spread.median)}, max ${
                  R.number(answer.spread.max)
                }`),
            answer.not_stopped.length > 0 && R.h("p.muted", null, `not stopped: ${answer.not_stopped.join(", ")}`)),
        );
        while (answers.children.length > 30) answers.lastChild.remove();
        entry.select();
      } else R.toast({
          break: "breakpoint set",
          clear: "breakpoint removed",
          continue: "resumed",
          pause: "pause requested",
        }[action]);
      await draw();
    } catch (error) {
      if (error.kind === "refused") {
        needed.hidden = false;
        token.focus();
      }
      answers.prepend(R.errorCard(error));
    }
  };
  const asking = (process) => (expression) =>
    R.api(`${base}/debug`, null, { action: "members", who: `@${process.pid}`, text: expression });
  const inspect = async (process) => {
    R.fill(inside, R.h("p.muted", null, "reading …"));
    try {
      const source = await R.api(`${base}/debug`, null, {
        action: "source",
        who: `@${process.pid}`,
        text: `${process.file}:${process.line}`,
      });
      const found = await asking(process)("");
      if (!view.alive) return;
      R.fill(inside, R.sourceCard(source, (where) => run("break", where)),
        R.h("section.card", { id: "variables" },
          R.h("h2", null, `Variables of ${process.who} in ${process.function || "this frame"}`),
          R.lastRecorded(name, found.recorded), R.valueMembers(asking(process), "", found)));
      markBreakpoints();
      const here = inside.querySelector(".line.here");
      if (here)
        here.parentElement.scrollTop += here.getBoundingClientRect().top
          - here.parentElement.getBoundingClientRect().top - here.parentElement.clientHeight / 2;
    } catch (error) {
      if (error.kind === "refused") {
        needed.hidden = false;
        token.focus();
      }
      R.fill(inside, R.errorCard(error));
    }
  };
  // The source keeps the lines it was read with; its breakpoints are those of the last answer.
  const markBreakpoints = () => {
    const set = new Set(view.answer.breaks.map((each) => `${each.file}:${each.line}`));
    for (const gutter of inside.querySelectorAll("button.gutter"))
      gutter.classList.toggle("set", set.has(gutter.dataset.place));
  };
  // What did not change keeps what was opened in it.
  const refill = (box, facts, children) => {
    const text = JSON.stringify(facts);
    if (box.facts !== text) {
      box.facts = text;
      R.fill(box, children());
    }
  };
  const mark = (name) => {
    const box = R.h("input", {
      type: "checkbox",
      "aria-label": `select ${name}`,
      onchange: () => {
        if (box.checked) chosen.add(name);
        else chosen.delete(name);
        who.value = chosen.size ? [...chosen].join(",") : "all";
      },
    });
    box.checked = chosen.has(name);
    return box;
  };
  const draw = async () => {
    const answer = await R.api(`${base}/ranks`);
    if (!view.alive) return;
    controls.hidden = !answer.alive;
    view.answer = answer;
    const focusable = () => [...list.querySelectorAll("a, button, input")],
      focused = focusable().indexOf(document.activeElement);
    R.fill(list,
      R.h("h2", null,
        answer.alive
          ? `${R.plural(answer.processes.length, "process").replace("processs", "processes")}`
          : "Not running"),
      !answer.alive
        && R.h("p.muted", null, "The run has ended, or was never started by rldbg run. Crash files that it left are listed below."),
      answer.processes.length > 0
        && R.table(["select", "process", "state", "where", "since", "host", "pid", "action"],
          answer.processes.map((process) => [
            mark(process.who),
            R.h("a.name", {
              href: location.hash,
              onclick: (event) => {
                event.preventDefault();
                who.value = process.who;
                entry.focus();
              },
              title: "commands go to this process only",
            }, process.who),
            R.verdict(process.state),
            process.file
              ? (process.state === "stopped"
                ? R.h("a.where", {
                  href: location.hash,
                  title: "source and variables",
                  onclick: (event) => {
                    event.preventDefault();
                    inspect(process);
                  },
                }, R.h("code", null, `${process.file}:${process.line} ${process.function || ""}`))
                : R.h("code", null, `${process.file}:${process.line} ${process.function || ""}`))
              : process.message
              ? R.cut(process.message, 160)
              : "–",
            process.since_s === null ? "" : `${process.since_s} s`,
            process.host || "",
            String(process.pid || ""),
            process.state === "stopped"
              ? R.h("button.small", { onclick: () => run("continue", "", `@${process.pid}`) }, "resume")
              : process.state === "running"
              ? R.h("button.small", { onclick: () => run("pause", "", `@${process.pid}`) }, "pause")
              : "",
          ])));
    focusable()[focused]?.focus();
    markBreakpoints();
    refill(rest, [answer.breaks, answer.log],
      () => [
        answer.breaks.length > 0
        && R.h("section.card", { id: "breakpoints" }, R.h("h2", null, "Breakpoints"),
          R.table(["number", "place", "condition", "ranks", "hits", "action"],
            answer.breaks.map((
              each,
            ) => [
              each.id ?? each.number ?? 0,
              R.h("code", null, `${each.file || ""}:${each.line || ""}`),
              each.if || "",
              each.ranks || "all",
              Object.values(each.hits || {}).reduce((sum, count) => sum + count, 0),
              R.h("button.small", { onclick: () => run("clear", String(each.id ?? each.number)) }, "remove"),
            ])), answer.log.map((line) => R.h("div", null, R.h("b", null, line.who), " ", R.cut(line.text, 400)))),
      ]);
    refill(crashes, answer.crashes,
      () => [
        answer.crashes.map((crash, place) =>
          R.h("details.card", { open: place === 0 },
            R.h("summary", null, R.verdict("crashed"), " ", R.h("b", null, crash.who || crash.file), " ",
              R.cut(crash.message || crash.error || "", 300)),
            crash.path && R.h("p.muted", null, R.h("code", null, `rldbg attach ${crash.path}`)),
            (crash.exceptions || []).map((
              error,
            ) => [
              R.h("p", null, R.h("b", null, error.type), ` ${error.message || ""} `,
                R.h("span.muted", null, `(${error.relation}; the innermost frame first)`)),
              error.frames.map((frame, number) => R.crashFrame(frame, number === 0)),
            ]))
        ),
      ]);
  };
  const look = async () => {
    R.fill(stacks, R.h("p.muted", null, "reading the stacks of all ranks, twice …"));
    try {
      const found = await R.job(view, `${base}/stacks`, { look: Date.now() % 1e9 });
      R.fill(stacks, R.h("section.card", null, R.h("h2", null, "Stacks"), found.verdicts.map((verdict) =>
        R.h("p.hang", null, verdict)
      ), R.findings(found.findings.filter((finding) =>
        finding.evidence.length
      )), found.groups.map((group) =>
        R.h("details", { open: found.groups.length < 4 },
          R.h("summary", null, R.h("b", null, R.cut(group.who.join(", "), 200)),
            group.waiting_in ? R.h("span.muted", null, ` waits in ${group.waiting_in}`) : "",
            group.thread
              ? R.h("span.muted", null, ` ${R.cut([group.thread, ...group.other_threads].join(", "), 200)}`)
              : ""), group.frames.map(R.frame))
      )));
    } catch (error) {
      if (!(error instanceof R.Gone)) R.fill(stacks, R.errorCard(error));
    }
  };
  const controls = R.h("section.card", null,
    R.h("div.toolbar", null, R.h("label", null, "ranks ", who),
      R.h("button", { id: "resume", title: "resume the ranks named on the left", onclick: () => run("continue") },
        "resume"),
      R.h("button", { id: "pause", title: "pause the ranks named on the left", onclick: () => run("pause") }, "pause"),
      ["n", "s", "r"].map((step) =>
        R.h("button", {
          title: { n: "next line", s: "step into", r: "until return" }[step],
          onclick: () => run("command", step),
        }, { n: "next", s: "step", r: "return" }[step])
      ), R.h("button", { id: "look", onclick: look }, "stacks, why does it hang?")),
    R.h("div.toolbar", null, entry, place,
      R.h("button", { onclick: () => place.value.trim() && run("break", place.value.trim()) }, "set breakpoint")),
    needed);
  R.fill(view.main, R.h("div.toolbar", null, R.h("h1", null, "Ranks")), list, controls, inside, answers, stacks, rest,
    crashes);
  await draw();
  view.every(2000, draw);
};

R.frame = (frame) =>
  R.h("div.frame", null, R.h("code", null, `${frame.function || "?"}  ${frame.file || ""}:${frame.line || ""}`));

// A frame of a crash file: its source around the line, and its variables.
R.crashFrame = (frame, isOpen) =>
  R.h("details.frame", { open: isOpen },
    R.h("summary", null, R.h("code", null, `${frame.function || "?"}  ${frame.file || ""}:${frame.line || ""}`)),
    frame.source && R.h("div.lines", null, frame.source.lines.map((text, place) =>
      R.h(frame.source.first + place === frame.line ? "div.line.here" : "div.line", null,
        R.h("span.gutter", null, String(frame.source.first + place)), R.h("code", null, R.cut(text, 400) || " "))
    )),
    Object.keys(frame.locals || {}).length > 0
      && R.table(["variable", "type", "value"],
        Object.entries(frame.locals).map((
          [name, value],
        ) => [
          R.h("b", null, R.cut(name, 80)),
          value.type || "",
          R.h("code.value", null, R.cut(value.text ?? "", 2000)),
        ]), { id: "variables-of-frame" }));
