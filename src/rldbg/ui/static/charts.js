"use strict";
// Small charts as SVG, each with buttons that save it.
R.colors = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

R.extent = (values) => {
  let low = Infinity, high = -Infinity;
  for (const value of values)
    if (Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  if (low > high) return [0, 1];
  return low === high ? [low - (Math.abs(low) || 1), high + (Math.abs(high) || 1)] : [low, high];
};

// Curves over steps: series = [{name, points: [[x, y]], color}]; a click on a point calls onpick(x).
R.lineChart = ({ title, series, onpick, width = 420, height = 150, marks = [], unit = "step" }) => {
  const left = 62, right = 8, top = 8, bottom = 20;
  const xs = series.flatMap((line) => line.points.map((point) => point[0]));
  const ys = series.flatMap((line) => line.points.map((point) => point[1]));
  const [x0, x1] = R.extent(xs), [y0, y1] = R.extent(ys);
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => top + (1 - (value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const svg = R.h("svg.chart", {
    viewBox: `0 0 ${width} ${height}`,
    role: onpick ? "group" : "img",
    "aria-label": title,
  });
  // As many digits as tell the ends of the axis apart.
  const digits = Math.min(7,
    Math.max(3, Math.ceil(Math.log10(Math.max(Math.abs(y0), Math.abs(y1), 1e-300) / (y1 - y0))) + 2));
  for (const part of [0, 0.5, 1]) {
    const value = y0 + part * (y1 - y0);
    svg.append(R.h("line.gridline", { x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      R.h("text.axis", { x: left - 5, y: y(value) + 3, "text-anchor": "end" }, R.number(value, digits)));
  }
  svg.append(R.h("text.axis", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, unit));
  const edges = xs.length ? [Math.min(...xs), Math.max(...xs)] : [];
  for (
    const [place, value] of new Set(edges).size === 1
      ? [["middle", edges[0]]]
      : [["start", edges[0]], ["end", edges[1]]]
  ) {
    if (value !== undefined)
      svg.append(R.h("text.axis", { x: x(value), y: height - 6, "text-anchor": place }, R.number(value)));
  }
  for (const mark of marks) svg.append(R.h("line.mark", { x1: x(mark), x2: x(mark), y1: top, y2: height - bottom }));
  series.forEach((line, number) => {
    const color = line.color || R.colors[number % R.colors.length];
    const known = line.points.filter((point) => Number.isFinite(point[1]));
    svg.append(R.h("polyline", {
      points: known.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "),
      fill: "none",
      stroke: color,
      "stroke-width": 1.5,
      "stroke-dasharray": line.dashed ? "4 3" : null,
    }));
    const stride = Math.max(1, Math.floor(known.length / 400));
    known.forEach(([a, b], place) => {
      if (place % stride) return;
      svg.append(R.h(onpick ? "circle.pick" : "circle", {
        cx: x(a),
        cy: y(b),
        r: known.length > 80 ? 1.6 : 2.6,
        fill: color,
        role: onpick ? "button" : null,
        "aria-label": onpick ? `${line.name}, ${unit} ${a}: ${R.number(b, 6)}` : null,
        onclick: onpick && (() => onpick(a)),
      }, R.h("title", null, `${line.name}\n${unit} ${a}: ${R.number(b, 6)}`)));
    });
  });
  if (onpick) {
    svg.addEventListener("click", (event) => {
      if (event.target.tagName === "circle" || !xs.length) return;
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * width;
      onpick(xs.reduce((best, value) => (Math.abs(x(value) - at) < Math.abs(x(best) - at) ? value : best), xs[0]));
    });
    svg.classList.add("clickable");
  }
  return R.figure(title, svg, series.length > 1 ? series : null);
};

// Bars: bins = {edges, counts}, {names, counts}, or two sides {edges, a, b}.
R.barChart = ({ title, bins, width = 420, height = 130, log = false }) => {
  const left = 44, right = 8, top = 8, bottom = 20;
  const sides = bins.counts ? [bins.counts] : [bins.a, bins.b];
  const most = Math.max(1, ...sides.flat());
  const size = (count) => (log ? Math.log1p(count) / Math.log1p(most) : count / most) * (height - top - bottom);
  const name = (
    place,
  ) => (bins.names ? bins.names[place] : `${R.number(bins.edges[place])} to ${R.number(bins.edges[place + 1])}`);
  const ends = bins.names
    ? [bins.names[0], bins.names.length > 1 ? bins.names[bins.names.length - 1] : ""]
    : [R.number(bins.edges[0], 3), R.number(bins.edges[bins.edges.length - 1], 3)];
  const step = (width - left - right) / Math.max(1, sides[0].length);
  const svg = R.h("svg.chart", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  sides.forEach((counts, side) =>
    counts.forEach((count, place) => {
      if (!count) return;
      const wide = step / sides.length;
      svg.append(R.h("rect.column", {
        x: left + place * step + side * wide,
        y: height - bottom - size(count),
        width: Math.max(0.8, wide - 0.6),
        height: size(count),
        fill: R.colors[side],
      }, R.h("title", null, `${name(place)}: ${R.number(count)}`)));
    })
  );
  svg.append(R.h("text.axis", { x: left, y: height - 6 }, ends[0]),
    R.h("text.axis", { x: width - right, y: height - 6, "text-anchor": "end" }, ends[1]),
    R.h("text.axis", { x: left - 4, y: top + 8, "text-anchor": "end" }, R.number(most)));
  return R.figure(title, svg, sides.length > 1 ? [{ name: "A" }, { name: "B" }] : null);
};

R.figure = (title, svg, legend) =>
  R.h("figure", null,
    R.h("figcaption", null, R.h("span.title", { title }, title), R.h("span.save", null, R.h("button.small", {
      title: "Save this plot as SVG",
      "aria-label": `Save "${title}" as SVG`,
      onclick: () => R.saveSvg(title, svg, legend),
    }, "SVG"), R.h("button.small", {
      title: "Save this plot as PNG",
      "aria-label": `Save "${title}" as PNG`,
      onclick: () => R.savePng(title, svg, legend),
    }, "PNG"))), svg, legend && R.h("div.legend", null, legend.map((line, number) =>
      R.h("span", null, R.h("i", { style: { background: line.color || R.colors[number % R.colors.length] } }),
        line.name)
    )));

// The plot with its title and legend, in the colours of the page: styles of the page do not travel with it.
R.svgText = (title, svg, legend) => {
  const copy = svg.cloneNode(true), style = getComputedStyle(document.body);
  const drawn = [...svg.querySelectorAll("*")];
  copy.querySelectorAll("*").forEach((element, place) => {
    const { fill, stroke } = getComputedStyle(drawn[place]);
    element.setAttribute("fill", element.tagName === "text" ? style.color : fill);
    element.setAttribute("stroke", stroke);
  });
  const [width, height] = svg.getAttribute("viewBox").split(" ").slice(2).map(Number);
  const top = 20, bottom = legend ? 14 * Math.ceil(legend.length / 3) + 4 : 0;
  const keys = (legend || []).flatMap((line, number) => {
    const x = 8 + (number % 3) * ((width - 16) / 3), y = top + height + 14 * Math.floor(number / 3);
    return [
      R.h("rect", { x, y: y + 1, width: 8, height: 8, fill: line.color || R.colors[number % R.colors.length] }),
      R.h("text", { x: x + 12, y: y + 9, fill: style.color }, R.cut(line.name, 40)),
    ];
  });
  const whole = R.h("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 0 ${width} ${height + top + bottom}`,
    width,
    height: height + top + bottom,
    "font-family": "sans-serif",
    "font-size": 10,
  }, R.h("rect", { width, height: height + top + bottom, fill: style.backgroundColor }),
    R.h("text", { x: 8, y: 14, fill: style.color, "font-size": 12 }, R.cut(title, 90)),
    R.h("g", { transform: `translate(0 ${top})` }, ...copy.childNodes), keys);
  return new XMLSerializer().serializeToString(whole);
};
R.fileName = (title) => title.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 60) || "chart";
R.saveSvg = (title, svg, legend) => R.save(`${R.fileName(title)}.svg`, "image/svg+xml", R.svgText(title, svg, legend));
R.savePng = (title, svg, legend) => {
  const image = new Image();
  image.onload = () => {
    const canvas = R.h("canvas", { width: image.width * 2, height: image.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    R.saveCanvas(title, canvas);
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(R.svgText(title, svg, legend))}`;
};
R.saveCanvas = (title, canvas) => canvas.toBlob((blob) => R.save(`${R.fileName(title)}.png`, "image/png", blob));

// Cells by row and column, darker where the number is larger: value(row, column), null where it is not finite.
R.heatMap = (
  { title, rows, columns, value, describe, size = 16, left = 110, scale = null, labels = columns, note = "" },
) => {
  const numbers = rows.map((_, row) => columns.map((_, column) => value(row, column)));
  const [low, high] = scale || [0, Math.max(1e-12, ...numbers.flat().filter(Number.isFinite))];
  const top = labels.some(Boolean) ? 14 : 0,
    every = Math.ceil((Math.max(...labels.map((label) => label.length), 1) * 5.6 + 4) / size);
  const svg = R.h("svg.chart", {
    viewBox: `0 0 ${Math.max(left + columns.length * size + 8, 420)} ${top + rows.length * size + 4}`,
    role: "img",
    "aria-label": title,
  });
  labels.forEach((label, column) => {
    if (label && column % every === 0)
      svg.append(R.h("text.axis", {
        x: left + column * size + (every > 1 ? 0 : (size - 1) / 2),
        y: 10,
        "text-anchor": every > 1 ? "start" : "middle",
      }, label));
  });
  numbers.forEach((cells, row) => {
    if (rows[row])
      svg.append(
        R.h("text.axis", { x: left - 4, y: top + row * size + size / 2 + 3, "text-anchor": "end" },
          R.cut(rows[row], Math.floor(left / 6))),
      );
    cells.forEach((number, column) => {
      if (number !== undefined)
        svg.append(R.h("rect.heat", {
          x: left + column * size,
          y: top + row * size,
          width: size - 1,
          height: size - 1,
          fill: number === null
            ? "var(--bad)"
            : number === low
            ? "transparent"
            : R.tint(0.15 + 0.85 * Math.min(1, (number - low) / (high - low || 1))),
        },
          R.h("title", null,
            describe
              ? describe(row, column)
              : `${[rows[row], columns[column]].filter(Boolean).join(" ")}: ${
                number === null ? "not finite" : R.number(number, 6)
              }`)));
    });
  });
  return R.figure(title, svg, [{ name: R.number(low, 3), color: "transparent" }, {
    name: `${R.number(high, 3)}${note ? `: ${note}` : ""}`,
    color: R.tint(1),
  }]);
};
