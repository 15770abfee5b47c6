"use strict";
// The live view: a list of runs, and the details of those that are open. The address after # names the open runs; the
// server sends what changes (server-sent events). Every text is inserted as text, never as markup.

const at = (id) => document.getElementById(id);
const PAGE = 300; // how many lines of the list are shown at first, and how many more each time
const NAMED = 3; // if more runs are open, the title has their number instead of their names
const list = { entries: [], lines: new Map(), most: PAGE, ticked: new Set() };
const open = { names: [], view: null, place: 0, metric: "", axis: "round", part: "1", asked: null };
let source = null, later = 0;

const query = (names) => names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
const opened = () => new URLSearchParams(location.hash.slice(1)).getAll("run");

async function ask(address, options) {
  const answer = await fetch(address, options).catch(() => null);
  if (!answer) throw new Error("the server does not answer: has arno ui ended?");
  const found = await answer.json().catch(() => ({ error: `the server refuses (${answer.status}): open the address that arno ui printed` }));
  if (found.error) throw new Error(found.error);
  return found;
}

function say(text, bad = false) {
  at("live").textContent = text;
  at("live").className = bad ? "bad" : "";
}

function span(seconds) {
  if (seconds === null) return "–";
  if (seconds < 60) return `${seconds < 0.1 ? Number(seconds.toPrecision(1)) : seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const [d, h, m] = [seconds / 86400, (seconds % 86400) / 3600, (seconds % 3600) / 60].map(Math.floor);
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : `${m} min ${Math.floor(seconds % 60)} s`;
}

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short" });
const when = (started) => (started === null ? "–" : clock.format(started * 1000));
const state = (entry) => (entry.status === "stopped" && entry.why === "killed" ? "stopped: killed" : entry.status);
const left = (entry) => (entry.status === "running" && entry.kind === "run" && entry.round && entry.pace ? entry.pace * (entry.rounds - entry.round) : null);
const count = new Intl.NumberFormat("en").format;
const of = (entry) => (!entry.rounds ? "–" : `${count(entry.round)}/${count(entry.rounds)}${entry.kind === "run" ? "" : entry.of_cells ? " cells" : " trials"}`);
const score = (entry) => (entry.score === null ? "–" : entry.shown);
const label = (entry) => (entry.score === null ? "" : `${entry.label}${entry.better === "less" ? " ↓" : ""}${entry.best ? ` of ${entry.best}` : ""}`);

// ---- the list

// The roles are those of a table; on a phone, where a line is drawn as a block, the browser would drop them.
function line(entry) {
  const row = document.createElement("tr");
  row.setAttribute("role", "row");
  const cell = (kind, text) => add(row, "td", { role: "cell", class: kind }, text);
  const box = add(cell("tick"), "input", { type: "checkbox", "aria-label": `compare ${entry.name}` });
  const name = add(row, "th", { scope: "row", role: "rowheader", class: "name" });
  add(name, "a", { href: `#${query([entry.name])}` }, entry.name);
  for (const tag of entry.tags) add(name, "span", { class: "tag" }, `#${tag}`);
  box.checked = list.ticked.has(entry.name);
  box.disabled = entry.kind !== "run" || entry.status === "damaged";
  box.addEventListener("change", () => {
    box.checked ? list.ticked.add(entry.name) : list.ticked.delete(entry.name);
    ticked();
  });
  cell("text method", entry.kind === "run" ? entry.method : `${entry.kind}: ${entry.method}`);
  cell("text data", entry.data);
  const status = cell("state");
  add(status, "span", { class: `status ${entry.status}`, title: entry.why }, state(entry));
  if (["failed", "damaged"].includes(entry.status) && entry.why) add(status, "small", { title: entry.why }, entry.why);
  const round = cell("round", of(entry));
  if (entry.status === "running" && entry.rounds) add(round, "progress", { class: "bar", max: entry.rounds, value: entry.round, "aria-label": "rounds done" });
  add(cell("score", score(entry)), "small", {}, label(entry));
  cell("started", when(entry.started));
  const time = cell("time", span(entry.seconds));
  if (left(entry) !== null) add(time, "small", {}, `${span(left(entry))} left`);
  return row;
}

function ticked() {
  at("compare").disabled = list.ticked.size < 2;
  at("compare").textContent = list.ticked.size ? `Compare ticked (${list.ticked.size})` : "Compare ticked";
}

function lines() {
  const body = at("runs").tBodies[0], some = list.entries.slice(0, list.most);
  list.lines = new Map(some.map((entry) => [entry.name, line(entry)]));
  body.replaceChildren(...list.lines.values());
  at("more").hidden = list.entries.length <= list.most;
  hints();
}

function counted({ entries, all, folded }, running) {
  const shown = entries.length < all ? `${count(entries.length)} of ${count(all)} shown` : `${count(all)} shown`;
  const inside = folded ? `; ${count(folded)} more are part of comparisons and searches` : "";
  return `${shown}${running ? `, ${count(running)} running` : ""}${inside}`;
}

async function find() {
  const asked = new URLSearchParams({ words: at("words").value, sort: at("sort").value });
  if (at("cells").checked) asked.set("cells", "");
  try {
    const found = await ask(`/api/list?${asked}`);
    list.entries = found.entries;
    at("folder").textContent = found.folder;
    const running = found.entries.filter((entry) => entry.status === "running").length;
    const none = found.all ? "No run fulfils the conditions." : "There are no runs in this folder yet. A run that is started here is shown as soon as it begins.";
    at("count").textContent = found.entries.length ? counted(found, running) : none;
    at("found").hidden = !found.entries.length;
    if (at("live").className) say("");
    lines();
    ticked();
  } catch (error) {
    say(error.message, true);
  }
}

// ---- what changes

function connect() {
  source?.close();
  source = new EventSource(`/events?${query(open.names)}`);
  source.addEventListener("runs", (event) => changed(JSON.parse(event.data)));
  source.addEventListener("curves", (event) => live(JSON.parse(event.data)));
  source.addEventListener("failed", (event) => {
    for (const [name, text] of Object.entries(JSON.parse(event.data))) say(`${name}: ${text}`, true);
  });
  source.addEventListener("open", () => at("live").textContent.startsWith("The server") && say(""));
  source.addEventListener("error", ({ target }) =>
    say(target.readyState === EventSource.CLOSED ? "arno ui was started anew: open the address that it has printed." : "The server does not answer; trying again.", true));
}

function changed({ changed: entries, gone }) {
  let whole = gone.some((name) => list.lines.has(name));
  for (const entry of entries) {
    const i = list.entries.findIndex((known) => known.name === entry.name);
    if (i < 0) whole = whole || !entry.part_of;
    else {
      const before = list.entries[i];
      list.entries[i] = entry;
      if (before.status !== entry.status) say(`${entry.name}: ${said(entry)}`, entry.status === "failed");
      const row = list.lines.get(entry.name);
      if (row && !row.contains(document.activeElement)) {
        const now = line(entry);
        row.replaceWith(now);
        list.lines.set(entry.name, now);
      } else if (row) row.querySelector(".status").replaceWith(line(entry).querySelector(".status"));
    }
    if (open.view && open.names.includes(entry.name)) update(entry);
  }
  if (whole && !later) later = setTimeout(() => ((later = 0), find()), 500);
}

const said = (entry) => `${state(entry)}${entry.why && entry.why !== "killed" ? ` (${entry.why})` : ""}${entry.status === "running" ? "" : `, round ${of(entry)}`}`;

function update(entry) {
  const i = open.names.indexOf(entry.name), before = open.view.entries[i];
  open.view.entries[i] = entry;
  facts();
  if (before.status === entry.status) return;
  say(`${entry.name}: ${said(entry)}`, entry.status === "failed");
  details(); // panels and tables are written when a run ends
}

function live({ names, metric, curves, log, error }) {
  if (!open.view) return void (open.names.length && open.asked !== open.names && details()); // the run was opened while its first files were written
  if (error || !curves) return;
  if (open.names.length === 1 && at("log")) logged(log);
  const places = open.view.places;
  if (!places.length || Object.keys(curves).length !== places.length) return void (names.length && details());
  open.view.names = chart.names = names;
  for (const place of places) {
    const parallel = place.curves.axes.parallel_seconds;
    if (parallel && open.view.entries.every((entry) => entry.status !== "running")) continue; // these curves have one more axis
    place.curves = curves[place.name] ?? place.curves;
  }
  open.metric ||= metric;
  curve();
}

// ---- details

function logged(texts) {
  const end = at("log").scrollTop + at("log").clientHeight >= at("log").scrollHeight - 4;
  at("log").textContent = texts.join("\n");
  if (end) at("log").scrollTop = at("log").scrollHeight;
}

function route(event) {
  open.names = opened();
  if (!at("live").className) say(""); // it was about the page that is left
  open.view = null;
  chart.figures.length = 0;
  at("list").hidden = open.names.length > 0;
  at("one").hidden = !open.names.length;
  const many = open.names.length > NAMED ? `${open.names.length} runs` : "";
  at("title").textContent = open.names.length ? many || open.names.join(" · ") : "Runs";
  document.title = open.names.length ? `${many || open.names.join(", ")} – Arno` : "Arno runs";
  if (open.names.length) {
    at("one").replaceChildren();
    add(add(at("one"), "p", { class: "actions" }), "a", { href: "#", "data-act": "back" }, "← All runs");
    add(at("one"), "p", { class: "note", role: "status" }, "Reading the records…");
  }
  connect();
  if (open.names.length) details(true);
  else find().then(() => event && at("list").focus({ preventScroll: true }));
}

async function details(first = false) {
  const names = (open.asked = open.names);
  try {
    const found = await ask(`/api/view?${query(names)}`).finally(() => (open.asked = null));
    if (names !== open.names) return; // another one was opened meanwhile
    open.view = found;
    chart.names = found.names;
    if (first || !open.metric) [open.metric, open.place] = [found.metric, 0];
    page();
    if (first) at("one").focus({ preventScroll: true });
  } catch (error) {
    at("one").replaceChildren();
    add(add(at("one"), "p", { class: "actions" }), "a", { href: "#", "data-act": "back" }, "← All runs");
    add(at("one"), "p", { class: "verdict warn" }, error.message);
  }
}

function section(id, title) {
  const part = add(at("one"), "section", { id });
  if (title) add(part, "h2", {}, title);
  return part;
}

function sheet(host, { title, columns, places, notes }) {
  const card = add(host, "div", { class: "card sheet" });
  add(card, "p", { class: "caption" }, title);
  const box = add(card, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title });
  add(box, "p", { class: "hint" }, "The table is wider than the screen: scroll it →");
  const table = add(box, "table", { class: "wide" }), head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  for (const text of ["", ...columns]) add(head, text ? "th" : "td", text ? { scope: "col" } : {}, text);
  for (const [place, rows] of Object.entries(places)) {
    if (place) add(add(body, "tr", { class: "place" }), "th", { colspan: columns.length + 1, scope: "colgroup" }, place);
    for (const [name, ...cells] of rows) {
      const row = add(body, "tr");
      add(row, "th", { scope: "row" }, name);
      for (const cell of cells) add(row, "td", {}, cell);
    }
  }
  for (const note of notes) add(card, "p", { class: "note" }, note);
}

function facts() {
  const host = at("facts"), { view } = open;
  host.replaceChildren();
  const several = view.entries.length > 1, found = add(host, "dl");
  for (const entry of view.entries) {
    add(found, "dt", {}, several ? entry.name : "status");
    const status = add(found, "dd");
    add(status, "span", { class: `status ${entry.status}` }, state(entry));
    const why = entry.why && entry.why !== "killed" ? ` ${entry.why};` : "", rest = left(entry) === null ? "" : `, about ${span(left(entry))} left`;
    const scored = several && entry.score !== null ? ` ${label(entry)} ${score(entry)},` : "";
    add(status, "span", {}, `${why}${scored} ${entry.kind === "run" ? "round " : ""}${of(entry)}, ${span(entry.seconds)}${rest}`);
    if (entry.status === "running" && entry.rounds) add(status, "progress", { class: "bar", max: entry.rounds, value: entry.round, "aria-label": "rounds done" });
    if (several || entry.score === null) continue;
    add(found, "dt", {}, label(entry));
    add(found, "dd", {}, score(entry));
  }
  buttons();
}

function buttons() {
  const [entry] = open.view.entries, host = at("actions"), focused = document.activeElement?.dataset?.act;
  host.replaceChildren();
  add(host, "a", { href: "#", "data-act": "back" }, "← All runs");
  if (open.view.entries.length === 1 && !entry.part_of) {
    if (entry.status === "running") button(host, "Stop", "stop", entry);
    else if (entry.status !== "done" && entry.status !== "damaged") button(host, "Resume", "resume", entry);
  }
  add(host, "a", { href: `/report?${query(open.names)}`, target: "_blank", rel: "noopener", "data-act": "report" }, "Report");
  if (entry.part_of) add(host, "a", { href: `#${query([entry.part_of])}`, "data-act": "whole" }, `Part of ${entry.part_of}`);
  if (focused) host.querySelector(`[data-act=${focused}]`)?.focus();
}

function button(host, text, act, entry) {
  const made = add(host, "button", { type: "button", class: act === "stop" ? "stop" : "main", "data-act": act }, text);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      say((await ask(`/api/${act}?${query([entry.name])}`, { method: "POST" })).said);
    } catch (error) {
      say(error.message, true);
      made.disabled = false;
    }
  });
}

const chosen = () => scoreOver(open.view.places[open.place].curves, open);

function curve() {
  const figure = chart.figures.find((one) => one.large);
  if (!figure) return;
  [figure.panel, figure.part] = [chosen(), Number(open.part)];
  legend(figure);
  draw(figure);
}

// Remembers the element with the focus; the returned function gives the focus back after the page was drawn again.
function focus() {
  const { dataset, name, value } = document.activeElement ?? {}, inside = at("one").contains(document.activeElement);
  const found = dataset?.act ? `[data-act="${dataset.act}"]` : name ? `input[name="${name}"][value="${value}"]` : "";
  return () => inside && ((found && at("one").querySelector(found)) || at("one")).focus({ preventScroll: true });
}

function page() {
  const { view } = open, host = at("one"), again = focus();
  chart.figures.length = 0;
  host.replaceChildren();
  add(host, "div", { id: "actions", class: "actions" });
  add(host, "div", { id: "facts", class: "card facts" });
  facts();
  if (view.where) add(host, "p", { class: "lead" }, view.where);
  warnings(view);
  if (view.places.length) drawn(view, view.places[open.place]);
  else add(host, "p", { class: "note" }, "No round is over yet.");
  if (view.sheets.length) {
    const tables = section("tables", view.names.length > 1 ? "Numbers" : "Single clients");
    view.sheets.forEach((one) => sheet(tables, one));
  }
  if (view.search.length) {
    const found = section("search", "Search for settings");
    view.search.forEach((one) => sheet(found, one));
    const figures = add(found, "div", { class: "figures" });
    view.trials.forEach((panel) => show(figures, panel));
  }
  if (view.entries.length === 1) about(view);
  redraw();
  again();
}

function warnings(view) {
  for (const [head, texts] of [["Not only the method differs.", view.apart], ["", view.budgets], ["Some runs are not complete.", view.problems]]) {
    if (!texts.length) continue;
    const box = add(at("one"), "div", { class: head ? "verdict warn" : "verdict", role: "note" });
    if (head) add(add(box, "p"), "strong", {}, head);
    for (const text of texts) add(box, "p", {}, text);
  }
}

function drawn(view, place) {
  const curves = section("curves", "Curves"), switches = add(curves, "div", { class: "switches" });
  const { metrics, axes } = place.curves;
  if (!(open.metric in metrics)) open.metric = Object.keys(metrics)[0];
  if (!(open.axis in axes)) open.axis = "round";
  choice(switches, open, "place", "Setting", Object.fromEntries(view.places.map((p, i) => [i, p.name])), page);
  choice(switches, open, "metric", "Score", Object.fromEntries(Object.entries(metrics).map(([name, m]) => [name, m.label])), curve);
  choice(switches, open, "axis", "over", axes, curve);
  choice(switches, open, "part", "Show", { 1: "all rounds", 0.5: "last half", 0.1: "last tenth" }, curve);
  show(curves, chosen(), true).part = Number(open.part);
  for (const [id, title] of [["methods", "What the method shows"], ["clients", "Clients"], ["drift", "Drift"]]) {
    if (!place.panels[id]?.length) continue;
    const host = add(section(id, title), "div", { class: "figures" });
    for (const panel of place.panels[id]) show(host, panel);
    for (const note of place.notes[id] || []) add(host, "p", { class: "note" }, note);
  }
}

function about(view) {
  const host = section("about", "Settings and messages"), card = add(host, "div", { class: "card" });
  const facts = [...view.scores, ...Object.entries(view.settings), ...Object.entries(view.about)];
  const listed = facts.length ? add(card, "dl") : null;
  for (const [name, value] of facts) {
    add(listed, "dt", {}, name);
    add(listed, "dd", {}, value);
  }
  if (view.command) add(add(card, "pre"), "code", {}, view.command);
  if (!view.log.length && view.entries[0].kind !== "run") return;
  add(host, "h3", {}, "Log");
  add(host, "pre", { id: "log", class: "log", tabindex: "0", "aria-label": "Log of the run" });
  logged(view.log);
}

at("find").addEventListener("submit", (event) => {
  event.preventDefault();
  find();
});
for (const id of ["sort", "cells"]) at(id).addEventListener("change", find);
at("more").addEventListener("click", () => ((list.most += PAGE), lines()));
at("compare").addEventListener("click", () => (location.hash = query([...list.ticked])));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the open runs
  at(open.names.length ? "one" : "list").focus();
});
window.addEventListener("hashchange", route);
route();
