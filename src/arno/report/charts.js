"use strict";
// Draws panels (pictures as data): curves with bands, heat maps, legends, tooltips and tables of the numbers. The report
// and the live view use it. Every text is inserted as text, never as markup.

const svgNames = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
// names: the groups, whose order decides the colours. hidden: the lines that the user has hidden. figures: all figures of the page.
const chart = { names: [], hidden: new Set(), figures: [] };

function add(parent, tag, attributes = {}, text) {
  const inSvg = parent.namespaceURI === svgNames || tag === "svg";
  const node = inSvg ? document.createElementNS(svgNames, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    name === "style" ? (node.style.cssText = value) : node.setAttribute(name, value); // a strict policy forbids the attribute
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

// A number as text; a number of bytes has its unit.
function written(value, bytes = false) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value), [gap, unit] = bytes ? [" ", "B"] : ["", ""];
  if (size >= 1e15) return value.toExponential(1) + (bytes ? " B" : "");
  for (const [power, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= power * (letter === "k" && !bytes ? 10 : 1)) return `${Number((value / power).toPrecision(3))}${gap}${letter}${unit}`;
  if (bytes) return `${value} B`;
  if (size && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

// About `count` round numbers between two ends, and at least two.
function ticks(low, high, count, whole) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const steps = [10, 5, 2, 1, 0.5].map((k) => k * power).filter((step) => !whole || step >= 1);
  let found = [];
  for (const step of steps.length ? steps : [1]) {
    if (step < raw * 0.999 && found.length > 1) break;
    found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  }
  return found;
}

function decades(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first) / 6)), found = [];
  for (let e = first; e <= last; e += step) found.push(10 ** e);
  return found.length > 1 ? found : ticks(low, high, 6);
}

// The text of a value of x: the text in the panel (for example the learning rate of a trial), or the number.
function named(panel, x) {
  for (const line of panel.lines) {
    const j = line.texts ? line.x.indexOf(x) : -1;
    if (j >= 0) return line.texts[j];
  }
  return written(x, inBytes(panel));
}

const colour = (i) => `var(--c${i % 8})`;
const dash = (i) => ["none", "7 3", "2 3"][Math.floor(i / 8) % 3];
const inBytes = (panel) => panel.x.endsWith("bytes");
const index = (name, position) => (chart.names.includes(name) ? chart.names.indexOf(name) : position);
const shown = (panel) => panel.lines.map((line, i) => ({ ...line, i: index(line.name, i) })).filter((line) => !chart.hidden.has(line.name));
const summary = (panel) =>
  panel.lines
    ? panel.lines.filter((l) => l.y.length).map((l) => `${l.name} goes from ${written(l.y[0])} to ${written(l.y.at(-1))}`).join("; ")
    : `${panel.rows.length} rows of ${panel.y}, ${panel.columns.length} columns of ${panel.x}`;

// The ends of the y axis, cut at the range of the panel (null: no end).
function within([y0, y1], { low, high }) {
  const [bottom, top] = [low === null ? y0 : Math.max(y0, low), high === null ? y1 : Math.min(y1, high)];
  return bottom < top ? [bottom, top] : [y0, y1];
}

// The last part of a line (1: all of it). The ends of the axes follow from this part, so the user can zoom in.
function cut(line, part = 1) {
  const from = line.x.length ? line.x.at(-1) - part * (line.x.at(-1) - line.x[0]) : 0, at = line.x.findIndex((x) => x >= from);
  return part === 1 ? line : { ...line, x: line.x.slice(at), y: line.y.slice(at), low: line.low.slice(at), high: line.high.slice(at) };
}

// The earlier lines that each line covers (within two pixels). Covered lines are drawn broader, the line above them with gaps.
function covered(lines, py) {
  const near = (a, b) => a.x.length === b.x.length && a.y.every((y, j) => a.x[j] === b.x[j] && Math.abs(py(y) - py(b.y[j])) < 2);
  return lines.map((line, k) => lines.slice(0, k).filter((other) => near(line, other)));
}

// A text that says which lines are covered by which.
function sameCurves(lines, under) {
  const by = new Map();
  lines.forEach((line, k) => under[k].length && by.set(under[k][0].name, [...(by.get(under[k][0].name) || []), line.name]));
  return [...by].map(([first, names]) => {
    const last = names.pop();
    return `${names.length ? `${names.join(", ")} and ${last} have` : `${last} has`} the same curve as ${first}.`;
  }).join(" ");
}

function drawLines(figure) {
  const { panel, plot } = figure, lines = shown(panel).map((line) => cut(line, figure.part)).filter((line) => line.x.length);
  const W = Math.max(260, plot.clientWidth), H = Math.round(Math.min(figure.large ? 430 : 300, Math.max(230, W * 0.5)));
  const left = 52, right = W - 14, top = 26, bottom = H - 40;
  const svg = frame(figure, W, H);
  const xs = lines.flatMap((l) => l.x), ys = lines.flatMap((l) => [...l.y, ...l.low, ...l.high]);
  if (!xs.length) return void add(svg, "text", { x: W / 2, y: H / 2, class: "label middle" }, "no data");
  const log = panel.log && lines.every((l) => l.y.every((y) => y > 0)), to = (y) => (log ? Math.log10(y) : y);
  const drawn = log ? ys.filter((y) => y > 0) : ys; // the lower edge of a band may be below 0
  const ends = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  let [[x0, x1], [y0, y1]] = [ends(xs), ends(drawn)];
  if (panel.ticks) [x0, x1] = ends([x0, x1, ...panel.ticks.map(([x]) => x)]);
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  if (y0 === y1) [y0, y1] = log ? [y0 / 2, y1 * 2] : [y0 - (Math.abs(y0) || 1) * 0.05, y1 + (Math.abs(y1) || 1) * 0.05];
  [y0, y1] = within([y0, y1], panel);
  const room = log ? 0 : (y1 - y0) * 0.04;
  [y0, y1] = within([y0 - room, y1 + room], panel);
  const px = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
  const py = (y) => bottom - ((to(Math.max(y, y0)) - to(y0)) / (to(y1) - to(y0))) * (bottom - top);
  for (const y of log ? decades(y0, y1) : ticks(y0, y1, H / 42)) {
    add(svg, "line", { x1: left, x2: right, y1: py(y), y2: py(y), class: "grid" });
    add(svg, "text", { x: left - 8, y: py(y) + 4, class: "tick end" }, written(y));
  }
  const below = ticks(x0, x1, W / 90, panel.x.startsWith("round")).map((x) => [x, written(x, inBytes(panel))]);
  for (const [x, text] of panel.ticks || below) {
    add(svg, "line", { x1: px(x), x2: px(x), y1: bottom, y2: bottom + 4, class: "axis" });
    add(svg, "text", { x: px(x), y: bottom + 17, class: "tick middle" }, text);
  }
  add(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  add(svg, "text", { x: right, y: H - 4, class: "label end x" }, panel.x);
  add(svg, "text", { x: 4, y: 14, class: "label y" }, panel.y + (log ? " (log scale)" : ""));
  const path = (x, y) => x.map((at, j) => `${j ? "L" : "M"}${px(at).toFixed(1)} ${py(Math.min(y[j], y1)).toFixed(1)}`).join("");
  for (const line of lines) {
    if (!line.low.length) continue;
    const back = path([...line.x].reverse(), [...line.high].reverse()).replace("M", "L");
    add(svg, "path", { d: `${path(line.x, line.low)}${back}Z`, class: "band", style: `fill:${colour(line.i)}` });
  }
  const under = covered(lines, py), above = lines.map((line) => under.filter((some) => some.includes(line)).length);
  figure.note.textContent = sameCurves(lines, under);
  lines.forEach((line, k) => {
    const gaps = under[k].length ? `8 ${8 * under[k].length}` : dash(line.i);
    const dashed = `stroke-dasharray:${gaps};stroke-dashoffset:${8 * under[k].length}`;
    const style = `stroke:${colour(line.i)};stroke-width:${2 + 3 * Math.min(above[k], 3)};${dashed}`;
    if (!panel.points) add(svg, "path", { d: path(line.x, line.y), class: "line", style, "data-name": line.name });
    if (line.x.length <= 12 || panel.points)
      line.x.forEach((x, j) => add(svg, "circle", { cx: px(x), cy: py(Math.min(line.y[j], y1)), r: panel.points ? 4 : 2.6, style: `fill:${colour(line.i)}` }));
  });
  const cursor = add(svg, "line", { y1: top, y2: bottom, class: "cursor", visibility: "hidden" });
  hover(figure, svg, (x) => {
    const at = x0 + ((x - left) / (right - left)) * (x1 - x0);
    const near = lines.map((l) => l.x.reduce((best, v, j) => (Math.abs(v - at) < Math.abs(l.x[best] - at) ? j : best), 0));
    const first = near.reduce((b, j, k) => (Math.abs(lines[k].x[j] - at) < Math.abs(lines[b].x[near[b]] - at) ? k : b), 0);
    const where = lines[first].x[near[first]];
    for (const side of ["x1", "x2"]) cursor.setAttribute(side, px(where));
    const rows = lines.map((l, k) => [l, near[k]]).sort((a, b) => b[0].y[b[1]] - a[0].y[a[1]]);
    return [px(where), `${panel.x}: ${named(panel, where)}`, rows.map(([l, j]) => [colour(l.i), l.name, spread(l, j)])];
  }, cursor);
}

const spread = (line, j) => written(line.y[j]) + (line.low.length ? ` ± ${written(line.high[j] - line.y[j])}` : "");

// A heat map with marks (for example ranks), with only as many columns as leave the marks readable; the last one is kept.
function legible(panel, room) {
  const longest = Math.max(1, ...panel.marks.flat().map((mark) => mark.length));
  const step = Math.ceil(panel.columns.length / Math.max(1, Math.floor(room / Math.max(16, 6 + 6.5 * longest))));
  if (!panel.marks.length || step < 2) return [panel, 1];
  const kept = (row) => row.filter((_, j) => (row.length - 1 - j) % step === 0);
  return [{ ...panel, columns: kept(panel.columns), cells: panel.cells.map(kept), marks: panel.marks.map(kept) }, step];
}

function drawCells(figure) {
  const longest = (names) => 7 * Math.max(...names.map((name) => name.length));
  const W = Math.max(260, figure.plot.clientWidth), top = 22, right = W - 6;
  const left = Math.max(46, Math.min(longest(figure.panel.rows) + 12, W / 3));
  const [panel, step] = legible(figure.panel, right - left);
  figure.note.textContent = step > 1 ? `One column in ${step} is shown, so that the numbers can be read; Numbers has all columns.` : "";
  const [n, m] = [panel.rows.length, panel.columns.length];
  const w = Math.min(46, (right - left) / m), h = Math.max(n > 40 ? 4 : 14, Math.min(26, 560 / n));
  const wide = longest(panel.columns), slanted = wide > 28 && wide + 4 > w, below = slanted ? 0.6 * wide : 0;
  const H = Math.round(top + n * h + 40 + below);
  const svg = frame(figure, W, H), values = panel.cells.flat().filter((v) => v !== null);
  const low = panel.root ? 0 : Math.min(...values), high = Math.max(...values);
  const shade = (v) => (panel.root ? Math.sqrt(v / (high || 1)) : (v - low) / (high - low || 1));
  const gap = w > 6 ? 1 : 0, font = Math.min(11, h - 3, w / 2.2);
  panel.cells.forEach((row, i) => row.forEach((v, j) => {
    if (v === null) return;
    const p = Math.round(6 + 94 * shade(v)), [x, y] = [left + j * w, top + i * h];
    const fill = panel.root && v === 0 ? "var(--cell)" : `color-mix(in oklab, var(--heat) ${p}%, var(--cell))`;
    add(svg, "rect", { x, y, width: Math.max(w - gap, 0.5), height: h - gap, style: `fill:${fill}` });
    const mark = panel.marks.length ? panel.marks[i][j] : v ? written(v) : "";
    if (mark && font >= 7 && mark.length * font * 0.62 < w)
      add(svg, "text", { x: x + w / 2, y: y + h / 2 + font * 0.36, class: p > 52 ? "mark on" : "mark", "font-size": font }, mark);
  }));
  const every = Math.ceil(14 / h), across = Math.ceil((slanted ? 15 : 10 + wide) / w);
  panel.rows.forEach((name, i) => i % every || add(svg, "text", { x: left - 6, y: top + (i + 0.5) * h + 4, class: "tick end" }, name));
  panel.columns.forEach((name, j) => {
    const [x, y] = [left + (j + 0.5) * w, top + n * h + 15];
    const turned = slanted ? { class: "tick end", transform: `rotate(-45 ${x} ${y})` } : { class: "tick middle" };
    j % across || add(svg, "text", { x, y, ...turned }, name);
  });
  add(svg, "text", { x: left + m * w, y: H - 6, class: "label end x" }, panel.x);
  add(svg, "text", { x: 4, y: 13, class: "label y" }, `${panel.y} · colour: ${panel.value}`);
  hover(figure, svg, (x, y) => {
    const [i, j] = [Math.floor((y - top) / h), Math.floor((x - left) / w)];
    const v = panel.cells[i]?.[j];
    if (v === null || v === undefined) return null;
    const rows = [[null, panel.value, written(v)]];
    if (panel.marks.length && panel.marks[i][j]) rows.push([null, panel.title.split(": ").pop(), panel.marks[i][j]]);
    return [left + (j + 0.5) * w, `${panel.y} ${panel.rows[i]}, ${panel.x} ${panel.columns[j]}`, rows];
  });
}

function frame(figure, W, H) {
  figure.plot.replaceChildren();
  const label = `${figure.panel.title || figure.panel.y}. ${summary(figure.panel)}`;
  return add(figure.plot, "svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": label });
}

function hover(figure, svg, look, cursor) {
  const tip = add(figure.plot, "div", { class: "tip", hidden: "" });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), found = look(event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !found;
    if (cursor) cursor.setAttribute("visibility", found ? "visible" : "hidden");
    if (!found) return;
    const [x, head, rows] = found;
    tip.replaceChildren();
    add(tip, "strong", {}, head);
    for (const [tint, name, value] of rows) {
      const row = add(tip, "div");
      if (tint) add(row, "i", { style: `background:${tint}` });
      add(row, "span", {}, name);
      add(row, "b", {}, value);
    }
    tip.style.left = `${Math.max(0, x + 14 + tip.offsetWidth > box.width ? x - 14 - tip.offsetWidth : x + 14)}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    if (cursor) cursor.setAttribute("visibility", "hidden");
  });
}

function numbers(figure) {
  const { panel } = figure, table = add(figure.numbers, "table"), head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  const fill = (first, names, rows) => {
    for (const name of [first, ...names]) add(head, "th", { scope: "col" }, name);
    for (const [name, ...cells] of rows) {
      const row = add(body, "tr");
      add(row, "th", { scope: "row" }, name);
      for (const cell of cells) add(row, "td", {}, cell);
    }
  };
  if (panel.cells) return fill(`${panel.y} \\ ${panel.x}`, panel.columns, panel.rows.map((name, i) => [name, ...panel.cells[i].map((v, j) => (panel.marks[i]?.[j] ? `${panel.marks[i][j]} (${written(v)})` : written(v)))]));
  const lines = shown(panel), xs = [...new Set(lines.flatMap((l) => l.x))].sort((a, b) => a - b);
  fill(panel.x, lines.map((l) => l.name), xs.map((x) => [named(panel, x), ...lines.map((l) => (l.x.includes(x) ? spread(l, l.x.indexOf(x)) : "–"))]));
}

function legend(figure) {
  const focused = figure.legend.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  figure.legend.replaceChildren();
  if (!figure.panel.lines || (figure.panel.lines.length < 2 && chart.names.length < 2 && chart.names.includes(figure.panel.lines[0]?.name))) return;
  figure.panel.lines.forEach((line, position) => {
    if (!line.x.length) return;
    const button = add(figure.legend, "button", { type: "button", "data-name": line.name, "aria-pressed": !chart.hidden.has(line.name) });
    add(button, "i", { style: `background:${colour(index(line.name, position))}` });
    add(button, "span", {}, line.name);
    if (line.name === focused) button.focus();
    button.addEventListener("click", () => {
      chart.hidden.has(line.name) ? chart.hidden.delete(line.name) : chart.hidden.add(line.name);
      for (const other of document.querySelectorAll(".legend button"))
        other.setAttribute("aria-pressed", !chart.hidden.has(other.dataset.name));
      chart.figures.forEach(draw);
    });
  });
}

function draw(figure) {
  (figure.panel.lines ? drawLines : drawCells)(figure);
  figure.numbers.querySelector("table")?.remove();
  if (figure.numbers.open) numbers(figure);
}

function show(host, panel, large = false) {
  const card = add(host, "figure", { class: large ? "card large" : "card" });
  const caption = add(card, "figcaption");
  if (panel.title) add(caption, "h3", {}, panel.title);
  if (panel.text) add(caption, "p", {}, panel.text);
  const figure = { panel, large, legend: add(card, "div", { class: "legend" }), plot: add(card, "div", { class: "plot" }) };
  figure.note = add(card, "p", { class: "note" });
  figure.numbers = add(card, "details", { class: "numbers" });
  add(figure.numbers, "summary", {}, "Numbers");
  figure.numbers.addEventListener("toggle", () => draw(figure));
  chart.figures.push(figure);
  legend(figure);
  return figure;
}

// The panel of the score and the axis that the user has chosen.
function scoreOver(curves, { metric, axis }) {
  const lines = curves.lines.filter((line) => line.y[metric] && line.x[axis]).map((line) => {
    const score = line.y[metric], kept = score.y.flatMap((y, j) => (y === null || line.x[axis][j] === null ? [] : [j]));
    const pick = (values) => (values.length ? kept.map((j) => values[j]) : []);
    return { name: line.name, x: pick(line.x[axis]), y: pick(score.y), low: pick(score.low), high: pick(score.high) };
  });
  const { label, better, log, low, high } = curves.metrics[metric] || { label: "", better: "more", log: false, low: null, high: null };
  const y = better === "less" ? `${label}, lower is better` : label;
  return { title: "", text: "", lines, x: curves.axes[axis] || "round", y, log, low, high };
}

// Radio buttons that set state[name]; none if there is only one option. changed: is called after a click.
function choice(host, state, name, title, options, changed) {
  if (Object.keys(options).length < 2) return;
  const set = add(host, "fieldset");
  add(set, "legend", {}, title);
  for (const [value, text] of Object.entries(options)) {
    const label = add(set, "label"), input = add(label, "input", { type: "radio", name, value });
    input.checked = String(state[name]) === value;
    add(label, "span", {}, text);
    input.addEventListener("change", () => {
      state[name] = typeof state[name] === "number" ? Number(value) : value;
      changed();
    });
  }
}

// A table that is wider than the screen has a hint.
function hints() {
  for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1);
}

function redraw() {
  chart.figures.forEach(draw);
  hints();
}

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (width !== window.innerWidth) redraw();
  width = window.innerWidth;
});
