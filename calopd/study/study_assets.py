"""Style and script of the study page, in addition to those of all pages: thresholds, token forms, trajectories."""

STYLE = """
.plot{height:300px}
figure.tall .plot{height:380px}
select,.step{font:inherit;font-size:13.5px;padding:4px 8px;border:1px solid var(--line);border-radius:6px;
background:var(--card);color:var(--ink);max-width:100%}
.step{cursor:pointer}
.toolbar.plain{position:static;border:0}
.field{font-size:13px;color:var(--soft);display:inline-flex;gap:6px;align-items:center}
.lists{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}
.lists>div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;overflow:auto}
.lists table{margin:0}
.lists th{width:auto;font-size:12.5px;white-space:nowrap}
.lists td,.lists th{text-align:right;padding-left:12px}
.lists .left{text-align:left}
.lists tr.mean td{border-top:2px solid var(--line);color:var(--soft)}
#view{margin-top:12px}
#view .tokens{max-height:70vh;min-height:200px}
.block{content-visibility:auto;contain-intrinsic-size:auto 260px}
.question{padding:10px 16px;font-size:13.5px;border-bottom:1px solid var(--line);white-space:pre-wrap;
overflow-wrap:anywhere}
#tip{position:fixed;z-index:5;pointer-events:none;background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:8px 11px;font:12.5px/1.5 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;
box-shadow:0 4px 16px rgba(0,0,0,.18)}
#tip[hidden]{display:none}
@media (max-width:1000px){.lists{grid-template-columns:minmax(0,1fr)}}
"""

SCRIPT = """
const page = document.querySelector("main");
const known = JSON.parse(document.getElementById("known").textContent);
const byId = id => document.getElementById(id);

function pressed(buttons, chosen) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
}

function everyButton(selector, action) {
  const buttons = [...document.querySelectorAll(selector)];
  for (const button of buttons) button.addEventListener("click", () => { pressed(buttons, button); action(button); });
}

everyButton("button[data-tau]", button => {
  page.dataset.tau = button.dataset.tau;
  draw();
  if (byId("lists")) showForms();
});

function cell(row, text, left) {
  const made = row.insertCell();
  made.textContent = text;
  if (left) made.className = "left";
}

function formTable(title, rows, means) {
  const table = document.createElement("table");
  table.createCaption().textContent = title;
  const head = table.insertRow();
  for (const name of ["#", "form", "kind", "count", "ρ %", "mean |D|"]) {
    const made = document.createElement("th");
    made.textContent = name;
    if (name === "form" || name === "kind") made.className = "left";
    head.append(made);
  }
  rows.forEach((entry, place) => {
    const row = table.insertRow();
    cell(row, place + 1);
    cell(row, JSON.stringify(entry.form).slice(1, -1), true);
    cell(row, entry.kind, true);
    cell(row, entry.count.toLocaleString("en"));
    cell(row, (100 * entry.rho).toFixed(1));
    cell(row, entry.mean.toFixed(3));
  });
  if (means.rho !== null) {
    const row = table.insertRow();
    row.className = "mean";
    ["", "mean", "", "", (100 * means.rho).toFixed(1), means.mean.toFixed(3)].forEach((text, i) =>
      cell(row, text, i === 1 || i === 2));
  }
  return table;
}

function showForms() {
  const part = known.forms[page.dataset.tau], context = byId("form-context").value, lists = byId("lists");
  lists.replaceChildren(...["top", "bottom"].map(end => {
    const box = document.createElement("div");
    box.append(formTable(end === "top" ? "highest ρ under " + context : "lowest ρ under " + context,
      part[end][context], part.means[context][end]));
    return box;
  }));
}

if (byId("lists")) {
  byId("form-context").addEventListener("change", showForms);
  showForms();
}

// The trajectory view decodes one rollout at a time. Colours are classes: switching them does not change the layout.
const view = byId("view");
let shown = null, spans = [];

function unpacked(text, type) {
  return new type(Uint8Array.from(atob(text), character => character.charCodeAt(0)).buffer);
}

function load(index) {
  const raw = JSON.parse(byId("rollout-" + index).textContent);
  return {...raw, tokens: unpacked(raw.tokens, Int32Array), student: unpacked(raw.student, Float32Array),
    teacher: raw.teacher.map(row => unpacked(row, Float32Array))};
}

function visible(text) {
  if (text === "") return '<i class="ws">∅</i>';
  if (/^ +$/.test(text)) return '<i class="ws">' + "·".repeat(text.length) + "</i>";
  return [...text].map(character => {
    if (character === "\\n") return '<i class="ws">↵</i>\\n';
    if (character === "\\t") return '<i class="ws">⇥</i>\\t';
    if (character < " ") return '<i class="ws">' + String.fromCharCode(0x2400 + character.charCodeAt(0)) + "</i>";
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;"}[character] || character;
  }).join("");
}

function region(t) {
  const base = shown.teacher[0][t], relaxation = Number(byId("relaxation").value);
  let down = 0, up = 0;
  for (const place of known.probes[byId("probes").value]) {
    const deviation = shown.teacher[place][t] - base;
    down = Math.max(down, -deviation);
    up = Math.max(up, deviation);
  }
  return [base - relaxation * down, base + relaxation * up];
}

function advantages(t) {
  const own = shown.student[t], [lower, upper] = region(t);
  return [shown.teacher[0][t] - own, Math.max(0, lower - own) - Math.max(0, own - upper)];
}

function colour(t) {
  if (byId("trajectories").dataset.view === "deviation") {
    const deviation = shown.teacher[byId("context").value][t] - shown.teacher[0][t];
    const level = known.bands.filter(bound => Math.abs(deviation) > bound).length;
    return level ? (deviation < 0 ? "down" : "up") + level : "";
  }
  const [raw, kept] = advantages(t);
  if (Math.max(Math.abs(raw), Math.abs(kept)) <= known.agreement) return "";
  if (kept === 0) return "removed";
  const share = raw ? Math.abs(kept / raw) : 1;
  return (kept < 0 ? "less" : "more") + (1 + known.shares.filter(bound => share >= bound).length);
}

function paint() {
  for (let t = 0; t < spans.length; t++) spans[t].className = colour(t);
}

function show(index) {
  shown = load(index);
  const texts = shown.texts.map(visible), blocks = [];
  let block = [];
  shown.tokens.forEach((place, t) => {
    block.push('<span data-t="' + t + '">' + texts[place] + "</span>");
    // Blocks end at line breaks, so that the browser can skip the layout of blocks that are off screen.
    if ((block.length > 150 && shown.texts[place].includes("\\n")) || block.length > 1500) {
      blocks.push(block.join("").replace(/\\n<\\/span>$/, "</span>"));
      block = [];
    }
  });
  blocks.push(block.join(""));
  view.querySelector(".tokens").innerHTML = blocks.map(part => '<div class="block">' + part + "</div>").join("");
  view.querySelector(".tokens").scrollTop = 0;
  spans = [...view.querySelectorAll(".tokens span")];
  const verdict = shown.correct === null ? "not checked" : shown.correct ? "correct answer" : "wrong answer";
  const facts = ["rollout " + shown.index, "problem " + shown.problem_id, verdict,
    shown.count.toLocaleString("en") + " tokens" + (shown.truncated ? ", truncated" : "")];
  view.querySelector("header").replaceChildren(...facts.map((fact, i) => {
    const made = document.createElement("span");
    made.textContent = fact;
    if (i === 2) made.className = shown.correct ? "right" : shown.correct === null ? "" : "wrong";
    return made;
  }));
  const question = view.querySelector(".question");
  question.hidden = !shown.problem;
  question.textContent = shown.problem + (shown.answer ? "\\n\\ncorrect answer: " + shown.answer : "");
  paint();
}

function number(value, signed) {
  return ((signed && value >= 0 ? "+" : "") + value.toFixed(3)).padStart(8);
}

function tip(t) {
  const base = shown.teacher[0][t], [lower, upper] = region(t), [raw, kept] = advantages(t);
  const lines = [JSON.stringify(shown.texts[shown.tokens[t]]) + "   token " + (t + 1),
    "lS".padEnd(10) + number(shown.student[t]), "lT".padEnd(10) + number(base)];
  known.contexts.forEach((name, i) => {
    const value = shown.teacher[i + 1][t];
    lines.push(("lT(" + name + ")").padEnd(10) + number(value) + "   D" + number(value - base, true));
  });
  lines.push("[L, U] = [" + lower.toFixed(3) + ", " + upper.toFixed(3) + "]  " + byId("probes").value + ", λ " +
    byId("relaxation").value, "A_OPD " + number(raw, true) + "   A_Cal " + number(kept, true));
  return lines.join("\\n");
}

if (view) {
  const list = byId("rollout"), box = byId("tip"), all = [...list.options];
  list.addEventListener("change", () => show(list.value));
  for (const id of ["context", "probes", "relaxation"]) byId(id).addEventListener("change", paint);
  everyButton("button[data-show]", paint);
  everyButton("button[data-answer]", button => {
    const wanted = button.dataset.answer;
    list.replaceChildren(...all.filter(option => wanted === "all" || option.dataset.correct === wanted));
    if (list.options.length) { list.selectedIndex = 0; show(list.value); }
  });
  for (const [id, by] of [["before", -1], ["after", 1]]) byId(id).addEventListener("click", () => {
    const place = list.selectedIndex + by;
    if (place >= 0 && place < list.options.length) { list.selectedIndex = place; show(list.value); }
  });
  view.addEventListener("mousemove", event => {
    const span = event.target.closest("span[data-t]");
    box.hidden = !span;
    if (!span) return;
    if (box.dataset.t !== span.dataset.t) {
      box.dataset.t = span.dataset.t;
      box.textContent = tip(Number(span.dataset.t));
    }
    box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
    const below = event.clientY + 18;
    box.style.top = (below + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 12 : below) + "px";
  });
  view.addEventListener("mouseleave", () => { box.hidden = true; });
  show(list.value);
}
"""
