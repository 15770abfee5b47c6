"use strict";
// The page of the report: its switches and its figures, drawn by charts.js. All data are in the page.

const report = JSON.parse(document.getElementById("data").textContent);
const state = { place: 0, metric: report.metric, axis: "round", part: "1" };
chart.names = report.names;

const chosen = () => scoreOver(report.places[state.place].curves, state);

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
  choice(switches, state, "metric", "Score", Object.fromEntries(Object.entries(metrics).map(([name, { label }]) => [name, label])), curve);
  choice(switches, state, "axis", "over", axes, curve);
  choice(switches, state, "part", "Show", { 1: "all rounds", 0.5: "last half", 0.1: "last tenth" }, curve);
  show(host, chosen(), true).part = Number(state.part);
  for (const [section, panels] of Object.entries(place.panels)) {
    const target = document.getElementById(`${section}-figures`);
    target.replaceChildren();
    for (const panel of panels) show(target, panel);
    for (const note of place.notes[section] || []) add(target, "p", { class: "note" }, note);
  }
  redraw();
}

choice(document.getElementById("places"), state, "place", "Setting", Object.fromEntries(report.places.map((p, i) => [i, p.name])), page);
page();
