"use strict";
// A table of which only the rows in sight exist; rows are asked for in pages.
R.VirtualTable = class {
  constructor({ columns, fetchPage, cell, open, rowHeight = 24, page = 100 }) {
    Object.assign(this, { columns, fetchPage, cell, open, rowHeight, page });
    this.count = 0;
    this.pages = new Map();
    this.current = -1;
    this.shown = new Map();
    this.generation = 0;
    this.head = R.h("div.vhead", { role: "row" });
    this.space = R.h("div.vspace", { role: "rowgroup" });
    this.element = R.h("div.vtable", {
      role: "grid",
      tabindex: "0",
      "aria-label": "Samples",
      onscroll: () => this.schedule(),
    }, this.head, this.space);
    this.element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.schedule()).observe(this.element);
  }

  setColumns(columns, widths) {
    this.columns = columns;
    this.element.style.setProperty("--columns", widths.map((width) => `minmax(0,${width}fr)`).join(" "));
    this.element.style.setProperty("--wide", `${widths.reduce((sum, width) => sum + width, 0)}px`);
    this.element.setAttribute("aria-colcount", columns.length);
  }

  reset(count, firstRows) {
    this.generation += 1;
    this.count = count;
    this.pages.clear();
    this.shown.forEach((row) => row.remove());
    this.shown.clear();
    if (firstRows) this.pages.set(0, firstRows);
    this.current = Math.min(this.current, count - 1);
    this.space.style.height = `${count * this.rowHeight}px`;
    this.element.setAttribute("aria-rowcount", count);
    this.draw();
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const top = Math.max(0, this.element.scrollTop - this.head.offsetHeight);
    const first = Math.max(0, Math.floor(top / this.rowHeight) - 8);
    const last = Math.min(this.count, Math.ceil((top + this.element.clientHeight) / this.rowHeight) + 8);
    for (const [number, row] of this.shown)
      if (number < first || number >= last || row.dataset.empty) {
        row.remove();
        this.shown.delete(number);
      }
    const fragment = document.createDocumentFragment();
    for (let number = first; number < last; number += 1) {
      if (this.shown.has(number)) continue;
      const row = this.row(number);
      this.shown.set(number, row);
      fragment.append(row);
    }
    this.space.append(fragment);
    for (let page = Math.floor(first / this.page); page * this.page < last; page += 1) this.load(page);
  }

  row(number) {
    const page = this.pages.get(Math.floor(number / this.page));
    const values = Array.isArray(page) ? page[number % this.page] : null;
    const row = R.h(number === this.current ? "div.vrow.current" : "div.vrow", {
      role: "row",
      "aria-rowindex": number + 1,
      style: { top: `${number * this.rowHeight}px` },
      onclick: () => {
        this.select(number);
        if (values) this.open(values, number);
      },
    }, values ? this.columns.map((column, place) => this.cell(column, values[place], values)) : null);
    if (!values) row.dataset.empty = "1";
    return row;
  }

  async load(page) {
    if (this.pages.has(page)) return;
    const generation = this.generation;
    this.pages.set(page, "asked");
    try {
      const rows = await this.fetchPage(page * this.page, this.page);
      if (generation !== this.generation) return;
      this.pages.set(page, rows);
      this.schedule();
    } catch (error) {
      this.pages.delete(page);
      R.toast(error.message);
    }
  }

  select(number) {
    this.shown.get(this.current)?.classList.remove("current");
    this.current = Math.max(0, Math.min(this.count - 1, number));
    this.shown.get(this.current)?.classList.add("current");
    const top = this.current * this.rowHeight, head = this.head.offsetHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight - head)
      this.element.scrollTop = top + this.rowHeight - clientHeight + head;
  }

  key(event) {
    const moves = {
      j: 1,
      ArrowDown: 1,
      k: -1,
      ArrowUp: -1,
      PageDown: 20,
      PageUp: -20,
      Home: -this.count,
      End: this.count,
    };
    if (event.key in moves && !event.ctrlKey && !event.metaKey) {
      this.select(this.current + moves[event.key]);
      event.preventDefault();
    }
    if (event.key === "Enter" && this.current >= 0) {
      const page = this.pages.get(Math.floor(this.current / this.page));
      if (Array.isArray(page)) this.open(page[this.current % this.page], this.current);
    }
  }
};
