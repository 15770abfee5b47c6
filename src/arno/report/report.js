"use strict";
// The page of the report: its switches and its figures, drawn by charts.js. All data are in the page.

const report = JSON.parse(document.getElementById("data").textContent);
const state = { place: 0, metric: report.metric, axis: "round", part: "1" };
chart.names = report.names;

function chosen() {
  const { curves } = report.places[state.place], { metric, axis } = state;
  const lines = curves.lines.filter((line) => line.y[metric]).map((line) => {
    const score = line.y[metric], kept = score.y.flatMap((y, j) => (y === null || line.x[axis][j] === null ? [] : [j]));
    const pick = (values) => (values.length ? kept.map((j) => values[j]) : []);
    return { name: line.name, x: pick(line.x[axis]), y: pick(score.y), low: pick(score.low), high: pick(score.high) };
  });
  const { label, log, low, high } = curves.metrics[metric] || { label: "", log: false, low: null, high: null };
  return { title: "", text: "", lines, x: curves.axes[axis], y: label, log, low, high };
}

function choice(host, name, title, options) {
  if (Object.keys(options).length < 2) return;
  const set = add(host, "fieldset");
  add(set, "legend", {}, title);
  for (const [value, text] of Object.entries(options)) {
    const label = add(set, "label"), input = add(label, "input", { type: "radio", name, value });
    input.checked = String(state[name]) === value;
    add(label, "span", {}, text);
    input.addEventListener("change", () => {
      state[name] = name === "place" ? Number(value) : value;
      name === "place" ? page() : curve();
    });
  }
}

function curve() {
  const [figure] = chart.figures;
  [figure.panel, figure.part] = [chosen(), Number(state.part)];
  legend(figure);
  draw(figure);
}

function page() {
  chart.figures.length = 0;
  const place = report.places[state.place], host = document.getElementById("curves-figure");
  host.replaceChildren();
  const switches = document.getElementById("switches");
  switches.replaceChildren();
  const { metrics, axes } = place.curves;
  if (!(state.metric in metrics)) state.metric = Object.keys(metrics)[0];
  if (!(state.axis in axes)) state.axis = "round";
  choice(switches, "metric", "Score", Object.fromEntries(Object.entries(metrics).map(([name, { label }]) => [name, label])));
  choice(switches, "axis", "over", axes);
  choice(switches, "part", "Show", { 1: "all rounds", 0.5: "last half", 0.1: "last tenth" });
  show(host, chosen(), true).part = Number(state.part);
  for (const [section, panels] of Object.entries(place.panels)) {
    const target = document.getElementById(`${section}-figures`);
    target.replaceChildren();
    for (const panel of panels) show(target, panel);
    for (const note of place.notes[section] || []) add(target, "p", { class: "note" }, note);
  }
  redraw();
}

choice(document.getElementById("places"), "place", "Setting", Object.fromEntries(report.places.map((p, i) => [i, p.name])));
page();
