"use strict";
// A report on disk: answers lie in scripts beside the page, and the table is sorted and filtered here.
R.exported = {
  waiting: {},
  tables: {},

  key: (path, parameters) => {
    if (path.endsWith("/sample")) return `${path}?${parameters.sample}&${parameters.step}`;
    if (path.endsWith("/group")) return `${path}?${parameters.group}&${parameters.step}`;
    if (path.endsWith("/timeline")) return path;
    if (path === "compare") return `${path}?${[].concat(parameters.run).join("&")}`;
    return path;
  },

  answer: async (path, parameters) => {
    if (path.endsWith("/samples")) return R.exported.samples(path.slice(0, -"/samples".length), parameters);
    const body = await R.exported.load(R.exported.key(decodeURIComponent(path), parameters));
    if (body.error) throw new R.ApiError(body.error);
    return body;
  },

  load: (key) => {
    const place = Object.hasOwn(rldbgIndex.places, key) ? rldbgIndex.places[key] : undefined;
    if (place === undefined) {
      const left = rldbgIndex.left_out ? `: ${rldbgIndex.left_out} answers were left out to keep it small` : "";
      return Promise.reject(new R.ApiError({
        kind: "incomplete",
        message: `This is not part of the exported report${left}.`,
        hint: "open the run itself with rldbg ui",
      }));
    }
    R.exported.files = R.exported.files || {};
    R.exported.files[place] = R.exported.files[place] || new Promise((resolve, reject) => {
      R.exported.waiting[place] = { resolve, reject };
      const script = R.h("script", { src: `data/${place}.js` });
      script.addEventListener("error", () =>
        reject(new R.ApiError({
          kind: "incomplete",
          message: `The report lacks its file data/${place}.js.`,
          hint: "copy the whole folder",
        })));
      script.addEventListener("load", () => script.remove());
      document.head.append(script);
    });
    return R.exported.files[place].then((answers) => answers[key]);
  },

  table: async (base) => {
    R.exported.tables[base] = R.exported.tables[base] || await R.exported.load(`${decodeURIComponent(base)}/table`);
    return R.exported.tables[base];
  },

  select: async (base, { filter = "", sort = "", order = "" }) => {
    const table = await R.exported.table(base);
    const known = Object.keys(table.columns), names = known.filter((name) => name !== "prompt_hash");
    const test = R.compileFilter(filter, known);
    const rows = [];
    for (let row = 0; row < table.count; row += 1) if (test((name) => table.columns[name][row])) rows.push(row);
    const column = table.columns[sort];
    if (column) {
      const sign = order === "down" ? -1 : 1;
      rows.sort((a, b) => {
        const x = column[a], y = column[b];
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -sign : x > y ? sign : 0) || a - b;
      });
    }
    return { table, names, rows };
  },

  samples: async (base, parameters) => {
    const { table, names, rows } = await R.exported.select(base, parameters);
    const offset = Number(parameters.offset || 0);
    const page = rows.slice(offset, offset + Number(parameters.limit || 100)).map((row) =>
      names.map((name) => table.columns[name][row])
    );
    const histograms = offset
      ? null
      : Object.fromEntries(names.map((name) => [name, R.histogramOf(rows.map((row) => table.columns[name][row]))]));
    return {
      columns: names,
      count: table.count,
      matched: rows.length,
      offset,
      rows: page,
      histograms,
      remaining: 0,
      records: 0,
      unreadable: table.unreadable,
    };
  },

  csv: async (name, selection) => {
    const { table, names, rows } = await R.exported.select(`runs/${encodeURIComponent(name)}`, selection);
    R.saveCsv("samples", [names, ...rows.map((row) => names.map((each) => table.columns[each][row]))]);
  },
};

// Called by the data files: base64 of compressed JSON.
const rldbgAnswer = async (place, packed) => {
  const { resolve, reject } = R.exported.waiting[place];
  try {
    const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    resolve(JSON.parse(await new Response(stream).text()));
  } catch (error) {
    reject(error);
  }
};

R.histogramOf = (values) => {
  if (values.some((value) => typeof value === "string")) {
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
    const texts = [...counts].sort((a, b) => b[1] - a[1]);
    return { texts: texts.slice(0, 24), more: texts.length > 24 };
  }
  const known = values.filter(Number.isFinite);
  if (!known.length) return { edges: [], counts: [], unknown: values.length };
  let low = Infinity, high = -Infinity;
  for (const value of known) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const whole = known.every(Number.isInteger) && high - low < 24;
  const bins = whole ? high - low + 1 : 24, width = whole ? 1 : (high - low || 1) / bins;
  const counts = new Array(bins).fill(0);
  for (const value of known) counts[Math.min(bins - 1, Math.floor((value - low) / width))] += 1;
  return {
    edges: Array.from({ length: bins + 1 }, (_, place) => low + place * width),
    counts,
    unknown: values.length - known.length,
  };
};

// The grammar of filters on the server (filtering.py), compiled to a function of one row.
R.compileFilter = (text, names) => {
  if (!text.trim()) return () => true;
  const wrong = (message, hint) =>
    new R.ApiError({ kind: "usage", message, hint: hint || 'for example: reward > 0.5 and "g3" in group' });
  const tokens = [
    ...text.matchAll(
      /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([A-Za-z_]\w*)|(<=|>=|==|!=|[<>()+\-*\/%,])|(\S))/g,
    ),
  ].filter((match) => match[0].trim());
  let at = 0;
  const word = () => tokens[at] && (tokens[at][4] || tokens[at][5]);
  const take = (...words) => {
    const found = word();
    if (found && words.includes(found)) {
      at += 1;
      return found;
    }
    return null;
  };
  const either = () => {
    let left = both();
    while (take("or")) {
      const a = left, b = both();
      left = (row) => a(row) || b(row);
    }
    return left;
  };
  const both = () => {
    let left = negated();
    while (take("and")) {
      const a = left, b = negated();
      left = (row) => a(row) && b(row);
    }
    return left;
  };
  const negated = () => {
    if (take("not")) {
      const inner = negated();
      return (row) => !inner(row);
    }
    return compared();
  };
  const operations = {
    "<": (a, b) => a < b,
    "<=": (a, b) => a <= b,
    ">": (a, b) => a > b,
    ">=": (a, b) => a >= b,
    "==": (a, b) => a === b,
    "!=": (a, b) => a !== b,
    in: (a, b) => String(b).includes(a),
    "not in": (a, b) => !String(b).includes(a),
  };
  const compared = () => {
    const parts = [sum()], signs = [];
    for (;;) {
      let sign = take("<", "<=", ">", ">=", "==", "!=", "in");
      if (!sign && word() === "not" && tokens[at + 1]?.[4] === "in") {
        at += 2;
        sign = "not in";
      }
      if (!sign) break;
      signs.push(sign);
      parts.push(sum());
    }
    if (!signs.length) return parts[0];
    return (row) =>
      signs.every((sign, place) => {
        const a = parts[place](row), b = parts[place + 1](row);
        return a === null || b === null ? sign === "!=" : operations[sign](a, b);
      });
  };
  const sum = () => {
    let left = product();
    for (let sign; (sign = take("+", "-"));) {
      const a = left, b = product(), plus = sign === "+";
      left = (row) => (plus ? a(row) + b(row) : a(row) - b(row));
    }
    return left;
  };
  const product = () => {
    let left = unary();
    for (let sign; (sign = take("*", "/", "%"));) {
      const a = left, b = unary(), kind = sign;
      left = (row) => (kind === "*" ? a(row) * b(row) : kind === "/" ? a(row) / b(row) : a(row) % b(row));
    }
    return left;
  };
  const unary = () => {
    if (take("-")) {
      const inner = unary();
      return (row) => -inner(row);
    }
    return atom();
  };
  const atom = () => {
    const token = tokens[at];
    if (!token) throw wrong(`invalid filter: ${R.cut(text, 80)}`);
    at += 1;
    if (token[1] !== undefined) {
      const value = Number(token[1]);
      return () => value;
    }
    if (token[2] !== undefined || token[3] !== undefined) {
      const value = (token[2] ?? token[3]).replace(/\\(.)/g, "$1");
      return () => value;
    }
    if (token[5] === "(") {
      const inner = either();
      if (!take(")")) throw wrong("a bracket is not closed");
      return inner;
    }
    if ((token[4] === "abs" || token[4] === "isnan") && take("(")) {
      const inner = either();
      if (!take(")")) throw wrong("a bracket is not closed");
      return token[4] === "abs" ? (row) => Math.abs(inner(row)) : (row) => inner(row) === null;
    }
    if (token[4] === "True" || token[4] === "False") return () => token[4] === "True";
    if (token[4] && names.includes(token[4])) return (row) => row(token[4]);
    throw token[4]
      ? wrong(`no column '${R.cut(token[4], 40)}'`, `columns: ${names.join(", ")}`)
      : wrong(`invalid filter: ${R.cut(text, 80)}`);
  };
  const test = either();
  if (at < tokens.length) throw wrong(`invalid filter: ${R.cut(text, 80)}`);
  return test;
};
