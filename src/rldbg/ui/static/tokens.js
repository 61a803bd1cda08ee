"use strict";
// One sample token by token. Tokens are laid out in blocks that exist only near the part of the page in sight.
R.BLOCK = 160;
// How long blocks may be filled in one frame; a fast scroll leaves the rest to the next ones.
R.FILL_MS = 6;
R.preferred = [
  "trainer - rollout",
  "clipped",
  "ratio",
  "prob_ratio",
  "advantages",
  "logprobs",
  "log_probs",
  "old_log_probs",
  "entropy",
  "routing agreement",
];
// Of these a small value is the one to look at.
R.lowIsOdd = /(log_?probs|routing agreement)$/;
R.diverging = new Set(["trainer - rollout", "advantages", "elementwise_loss"]);

R.views.sample = async (view) => {
  const { name, query } = view;
  const id = query.get("sample"), step = query.get("step");
  view.command = () =>
    `rldbg show ${R.quote(view.path || name)}${step ? ` --step ${step}` : ""} --sample ${R.quote(id)}`;
  const sample = await R.api(`runs/${encodeURIComponent(name)}/sample`, { sample: id, step });
  if (!view.alive) return;
  new R.TokenView(view, sample);
};

R.TokenView = class {
  constructor(view, sample) {
    const { query } = view;
    Object.assign(this, {
      view,
      sample,
      names: Object.keys(sample.columns),
      mode: sample.text ? query.get("show") || "text" : "ids",
    });
    this.quantity = query.get("color") || R.preferred.find((each) => this.varies(each)) || this.names[0] || "mask";
    this.current = Number(query.get("token") ?? -1);
    this.details = R.h("aside.details", { "aria-live": "polite" });
    this.flow = R.h("div.flow", { tabindex: "0", "aria-label": "Tokens" });
    this.legend = R.h("div.scale");
    this.map = R.h("canvas.minimap", {
      height: 44,
      role: "img",
      "aria-label": "The whole sample; click to jump",
      title: "The whole sample; click to jump",
      onclick: (event) => this.jump(event),
    });
    this.draw();
  }

  // A quantity that is the same for every token colours nothing.
  varies(name) {
    const known = (this.sample.columns[name] || []).filter((value, place) =>
      value !== null && (!this.sample.trained || this.sample.trained[place])
    );
    return known.some((value) => value !== known[0]);
  }

  draw() {
    const { sample, view } = this;
    const group = sample.sample.slice(0, sample.sample.lastIndexOf("/"));
    const select = R.h("select", {
      id: "color",
      "aria-label": "Colour by",
      onchange: () => {
        this.quantity = select.value;
        this.recolor();
      },
    }, ["mask", ...this.names].map((name) => R.h("option", { value: name }, name)));
    select.value = this.quantity;
    if (!select.value) {
      this.quantity = "mask";
      select.value = "mask";
    }
    const texts = R.h("button", {
      disabled: !sample.text,
      title: sample.text ? "" : sample.no_text,
      onclick: () => {
        this.mode = this.mode === "text" ? "ids" : "text";
        texts.replaceChildren(this.label());
        this.blocks();
        this.save();
      },
    }, this.label());
    this.odd = R.h("span.muted");
    const trained = (sample.trained || []).filter(Boolean).length;
    const values = Object.entries(sample.values).filter(([, value]) => value !== null && value !== "");
    const short = Object.fromEntries(values.filter(([, value]) => String(value).length <= 60));
    const long = values.filter(([, value]) => String(value).length > 60);
    R.fill(view.main,
      R.h("div.tokenhead", null,
        R.h("h1", null, R.h("bdi", null, R.cut(sample.sample, 120)), " ",
          R.h("span.state", null, `step ${sample.step}`)),
        R.facts({ tokens: sample.tokens.length, trained, prompt: sample.prompt_hash, ...short }),
        R.h("div.links", null,
          R.h("a", { href: R.link(`run/${encodeURIComponent(view.name)}/group`, { group, step: sample.step }) },
            "group: all answers to this prompt"),
          R.h("a", { href: R.link(`run/${encodeURIComponent(view.name)}/step/${sample.step}`) }, `step ${sample.step}`),
          R.h("a", {
            href: R.link(`run/${encodeURIComponent(view.name)}/over-steps`, {
              sample: sample.sample,
              step: sample.step,
              prompt: sample.prompt_hash,
            }),
          }, "same prompt over steps")),
        long.map(([name, value]) =>
          R.h("details", null, R.h("summary", null, name), R.h("pre.text", null, String(value)))
        ), sample.no_text && R.h("p.muted", null, `ids only: ${sample.no_text}`),
        Object.entries(sample.unaligned).map(([name, count]) =>
          R.h("p.problem", null, `${name}: ${count} values cannot be aligned with ${sample.tokens.length} tokens`)
        )),
      sample.tokens.length === 0
        ? R.h("p.empty", null, "No token ids are recorded for this sample.")
        : [
          R.h("div.toolbar.sticky", null, R.h("label", null, "colour by ", select), texts, R.h("button", {
            onclick: () => this.next(-1),
            title: "previous unusual token ( p )",
            "aria-label": "previous unusual token",
          }, "‹ unusual"), R.h("button", {
            onclick: () => this.next(1),
            title: "next unusual token ( n )",
            "aria-label": "next unusual token",
          }, "unusual ›"), this.odd, this.legend,
            R.h("button", { onclick: () => this.csv(), title: "Save the numbers of all tokens as CSV" }, "CSV"),
            R.h("button", {
              onclick: () => R.saveCanvas(`${sample.sample} ${this.quantity}`, this.map),
              title: "Save the strip below as PNG",
            }, "PNG")),
          this.map,
          R.h("div.tokens", null, this.flow, this.details),
        ]);
    if (!sample.tokens.length) return;
    view.keys = {
      n: () => this.next(1),
      p: () => this.next(-1),
      ArrowRight: () => this.select(this.current + 1),
      ArrowLeft: () => this.select(this.current - 1),
    };
    this.flow.addEventListener("mousemove", (event) => this.hover(event));
    this.flow.addEventListener("click", (event) => {
      const place = event.target.dataset?.t;
      if (place !== undefined) this.select(Number(place), false);
    });
    this.flow.addEventListener("mouseleave", (event) => {
      if (this.moved(event)) this.show(this.current);
    });
    new ResizeObserver(() => this.drawMap()).observe(this.map);
    this.blocks();
    this.recolor();
    if (this.current >= 0) this.select(this.current);
    else this.show(-1);
  }

  label() {
    return this.mode === "text" ? "show ids" : "show text";
  }

  save() {
    R.permalink(`run/${encodeURIComponent(this.view.name)}/sample`, {
      step: this.sample.step,
      sample: this.sample.sample,
      color: this.quantity,
      show: this.sample.text && this.mode === "ids" ? "ids" : "",
      token: this.current >= 0 ? this.current : "",
    });
  }

  blocks() {
    this.flow.replaceChildren();
    this.flow.classList.toggle("ids", this.mode === "ids");
    this.places = [];
    this.waiting = new Set();
    const observer = new IntersectionObserver((entries) => {
      // Heights are known from the layout that was just made; reading them later would make it again for every block.
      for (const { target, isIntersecting, boundingClientRect } of entries)
        if (!isIntersecting) this.emptyBlock(target, boundingClientRect.height);
      for (const { target, isIntersecting } of entries)
        if (isIntersecting) this.waiting.add(target);
        else this.waiting.delete(target);
      this.fillSome();
    }, { rootMargin: "500px 0px" });
    this.view.onleave(() => observer.disconnect());
    const wide = Math.max(20, this.flow.clientWidth / (this.mode === "text" ? 7.6 : 42));
    for (const part of this.sample.parts) {
      const box = R.h(`div.part.${part.role.replace(/ /g, "-")}`, null,
        R.h("div.role", null, `${part.role}`, R.h("span.muted", null, ` ${part.start}–${part.end - 1}`)));
      for (let start = part.start; start < part.end; start += R.BLOCK) {
        const end = Math.min(start + R.BLOCK, part.end);
        const block = R.h("div.block", { "data-start": start, "data-end": end });
        const size = this.mode === "text"
          ? this.sample.text.slice(start, end).reduce((sum, text) => sum + text.length, 0)
          : end - start;
        block.style.minHeight = `${Math.max(1, Math.floor(size / wide)) * 21}px`;
        this.places.push({ start, end, block });
        box.append(block);
        observer.observe(block);
      }
      this.flow.append(box);
    }
  }

  // Blocks that came into sight, until the frame's time is used up.
  fillSome() {
    const end = performance.now() + R.FILL_MS;
    for (const block of this.waiting) {
      if (performance.now() > end) {
        requestAnimationFrame(() => this.fillSome());
        return;
      }
      this.waiting.delete(block);
      this.fillBlock(block);
    }
  }

  fillBlock(block) {
    if (block.firstChild) return;
    const fragment = document.createDocumentFragment();
    const { sample } = this, { trained } = sample;
    for (let place = Number(block.dataset.start); place < Number(block.dataset.end); place += 1) {
      const token = document.createElement("span");
      token.className = `t${trained && trained[place] ? "" : " off"}${this.oddSet.has(place) ? " odd" : ""}${
        place === this.current ? " current" : ""
      }`;
      token.dataset.t = place;
      token.textContent = R.visible(this.textOf(place));
      const strength = this.strength(place);
      if (strength) token.style.backgroundColor = R.tint(strength);
      fragment.append(token);
    }
    block.append(fragment);
    block.style.minHeight = "";
  }

  emptyBlock(block, height) {
    if (!block.firstChild || this.sample.tokens.length < 4000) return;
    block.style.minHeight = `${height}px`;
    block.replaceChildren();
  }

  textOf(place) {
    if (this.mode === "ids") return String(this.sample.tokens[place]);
    const text = this.sample.text[place];
    return text === "" ? "∅" : R.cut(text, 400).replaceAll("\n", "⏎\n");
  }

  scale() {
    const values = this.sample.columns[this.quantity];
    if (!values) return null;
    const { trained } = this.sample;
    const known = values.filter((value, place) => Number.isFinite(value) && (!trained || trained[place]));
    const [low, high] = R.extent(known.length ? known : values);
    const both = R.diverging.has(this.quantity) || (low < 0 && high > 0);
    if (this.quantity.includes("ratio"))
      return {
        low: 0,
        high: known.reduce((most, value) => Math.max(most, Math.abs(value - 1)), 1e-9),
        middle: 1,
        both: true,
      };
    return both
      ? { low: 0, high: Math.max(Math.abs(low), Math.abs(high)) || 1, middle: 0, both }
      : { low, high, middle: low, both };
  }

  // −1 to 1: how strong, and on which side.
  strength(place) {
    if (this.quantity === "mask") return this.sample.trained && this.sample.trained[place] ? 0.5 : 0;
    const value = this.sample.columns[this.quantity][place];
    if (value === null || value === undefined) return 0;
    if (!Number.isFinite(value)) return 1;
    const { low, high, middle, both } = this.range;
    if (both) return Math.max(-1, Math.min(1, (value - middle) / high));
    const part = (value - low) / (high - low || 1);
    return R.lowIsOdd.test(this.quantity) ? 1 - part : part;
  }

  paint(token, place) {
    const strength = this.strength(place);
    token.style.backgroundColor = strength ? R.tint(strength) : "";
    token.classList.toggle("odd", this.oddSet.has(place));
  }

  recolor() {
    this.range = this.scale();
    this.oddSet = new Set(this.sample.odd[this.quantity] || []);
    this.oddList = [...this.oddSet].sort((a, b) => a - b);
    for (const token of this.flow.querySelectorAll(".t")) this.paint(token, Number(token.dataset.t));
    R.fill(this.odd, this.oddList.length ? `${R.plural(this.oddList.length, "unusual token")}` : "no unusual tokens");
    const { range } = this;
    R.fill(this.legend,
      range && !this.varies(this.quantity)
        ? "the same for every trained token"
        : range
        ? range.both
          ? [
            R.number(range.middle - range.high, 3),
            R.bar([-1, -0.6, -0.3, 0, 0.3, 0.6, 1]),
            R.number(range.middle + range.high, 3),
          ]
          : R.lowIsOdd.test(this.quantity)
          ? [R.number(range.low, 3), R.bar([1, 0.75, 0.5, 0.25, 0]), R.number(range.high, 3)]
          : [R.number(range.low, 3), R.bar([0, 0.25, 0.5, 0.75, 1]), R.number(range.high, 3)]
        : [R.bar([0.5]), " trained"]);
    this.drawMap();
    this.save();
  }

  drawMap() {
    const { map, sample } = this;
    const width = Math.max(100, map.clientWidth), count = sample.tokens.length;
    map.width = width;
    const context = map.getContext("2d"), bucket = Math.max(1, count / width);
    context.clearRect(0, 0, width, 44);
    const ink = getComputedStyle(document.body);
    for (let x = 0; x < Math.min(width, Math.ceil(count / bucket)); x += 1) {
      let strongest = 0, trained = false;
      for (let place = Math.floor(x * bucket); place < Math.min(count, Math.floor((x + 1) * bucket) || 1); place += 1) {
        const strength = this.strength(place);
        if (Math.abs(strength) > Math.abs(strongest)) strongest = strength;
        trained = trained || Boolean(sample.trained && sample.trained[place]);
      }
      const wide = count < width ? width / count : 1, left = count < width ? x * wide : x;
      if (count < width && x >= count) break;
      context.fillStyle = strongest >= 0 ? R.strong[0] : R.strong[1];
      const tall = Math.abs(strongest) * 36;
      context.fillRect(left, 38 - tall, Math.max(1, wide - 0.5), tall);
      context.fillStyle = ink.color;
      context.globalAlpha = trained ? 0.65 : 0.15;
      context.fillRect(left, 40, Math.max(1, wide - 0.5), 4);
      context.globalAlpha = 1;
    }
    if (this.current >= 0) {
      context.fillStyle = ink.color;
      context.fillRect((this.current / count) * width, 0, 1.5, 44);
    }
  }

  jump(event) {
    const box = this.map.getBoundingClientRect();
    this.select(Math.floor(((event.clientX - box.left) / box.width) * this.sample.tokens.length));
  }

  select(place, scroll = true) {
    const { tokens } = this.sample;
    this.flow.querySelector(".t.current")?.classList.remove("current");
    this.current = Math.max(0, Math.min(tokens.length - 1, place));
    const home = this.places.find(({ start, end }) => start <= this.current && this.current < end);
    if (home) {
      if (scroll && !home.block.firstChild) { home.block.scrollIntoView({ block: "center" }); }
      this.fillBlock(home.block);
      const token = home.block.querySelector(`[data-t="${this.current}"]`);
      token?.classList.add("current");
      if (scroll) token?.scrollIntoView({ block: "center" });
    }
    this.show(this.current);
    this.drawMap();
    this.save();
  }

  next(direction) {
    const later = direction > 0
      ? this.oddList.find((place) => place > this.current)
      : [...this.oddList].reverse().find((place) => place < this.current);
    const wrapped = later ?? (direction > 0 ? this.oddList[0] : this.oddList[this.oddList.length - 1]);
    if (wrapped === undefined) R.toast(`no unusual tokens by ${this.quantity}`);
    else this.select(wrapped);
  }

  // Scrolling under a mouse at rest sends events too: only a mouse that moves chooses a token.
  moved({ screenX, screenY }) {
    return !R.mouse || R.mouse[0] !== screenX || R.mouse[1] !== screenY;
  }

  hover(event) {
    const place = event.target.dataset?.t;
    if (this.moved(event) && place !== undefined) this.show(Number(place));
  }

  show(place) {
    const { sample } = this;
    if (place < 0) {
      R.fill(this.details, R.h("p.muted", null, "Hover over a token, or move with ← →; n goes to the next unusual one."));
      return;
    }
    const rows = this.names.map((name) => {
      const isOdd = (sample.odd[name] || []).includes(place);
      return R.h(name === this.quantity ? "tr.chosen" : "tr", null, R.h("td", null, name),
        R.h("td.n", null,
          sample.columns[name][place] === null ? "not recorded" : R.number(sample.columns[name][place], 6),
          isOdd && " ⚑"));
    });
    R.fill(this.details,
      R.h("div.tokentitle", null, sample.text && R.h("code.big", null, R.cut(sample.text[place], 120) || "(empty)"),
        R.h("span", null, ` token ${place}, id ${sample.tokens[place]}`)), R.h("p.why", null, this.why(place)),
      R.h("table", null, R.h("tbody", null, rows)));
  }

  // Why a token is or is not trained on, in one sentence.
  why(place) {
    const { sample } = this, { trained, columns } = sample;
    if (!trained) return "No loss mask is recorded: whether this token is trained on is not known.";
    const part = sample.parts.find(({ start, end }) => start <= place && place < end);
    if (!trained[place]) {
      const first = trained.indexOf(true), last = trained.lastIndexOf(true);
      if (first < 0) return "Not trained: the loss mask of this sample is 0 everywhere.";
      if (place < first) return "Not trained: it belongs to the prompt (loss mask 0 before the first trained token).";
      if (place > last) return "Not trained: it comes after the last trained token (end of turn, padding, or cut off).";
      return `Not trained: the environment wrote it between two turns of the model${
        part && part.role !== "environment" ? ` (${part.role})` : ""
      } (loss mask 0).`;
    }
    const advantage = columns.advantages ? columns.advantages[place] : null;
    if (advantage === 0)
      return "Trained (loss mask 1), but its advantage is 0: the policy gradient of this token is 0.";
    const ratio = (columns.prob_ratio || columns.ratio || [])[place];
    if (columns.clipped && columns.clipped[place] === 1) {
      const limit = ratio > 1 ? `above 1 + ${R.number(sample.clip[1])}` : `below 1 − ${R.number(sample.clip[0])}`;
      return `Trained (loss mask 1), but clipped: its ratio ${
        R.number(ratio)
      } is ${limit}, so the policy gradient of this token is 0.`;
    }
    return "Trained: loss mask 1.";
  }

  csv() {
    const { sample } = this;
    const titles = ["position", "id", ...(sample.text ? ["text"] : []), "trained", ...this.names];
    R.saveCsv(`${sample.sample}-step-${sample.step}`, [
      titles,
      ...sample.tokens.map((token,
        place) => [
        place,
        token,
        ...(sample.text ? [sample.text[place]] : []),
        sample.trained ? Number(sample.trained[place]) : null,
        ...this.names.map((name) => sample.columns[name][place]),
      ]),
    ]);
  }
};

// Orange above, blue below: told apart by everybody, readable under dark and light text.
R.strong = ["#d55e00", "#0072b2"];
R.tint = (
  strength,
) => (strength >= 0
  ? `rgba(213,94,0,${(0.06 + 0.54 * strength).toFixed(3)})`
  : `rgba(0,114,178,${(0.06 - 0.54 * strength).toFixed(3)})`);
R.bar = (strengths) =>
  R.h("span.bar", null, strengths.map((strength) => R.h("i", { style: { background: R.tint(strength) } })));
