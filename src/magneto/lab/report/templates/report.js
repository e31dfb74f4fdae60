"use strict";
// Hide placements, sort tables, download figures, and show values in tooltips.
const hits = JSON.parse(document.getElementById("hits").textContent);
const tip = document.getElementById("tip");
const buttons = [...document.querySelectorAll(".legend button")];
const hidden = new Set();

function hide(button, away) {
  const index = Number(button.dataset.series);
  if (away) hidden.add(index); else hidden.delete(index);
  button.setAttribute("aria-pressed", String(!away));
  document.body.classList.toggle("hide-" + index, away);
}

// The address lists hidden placements, so that a view can be shared.
const address = new URL(location.href);
const absent = address.searchParams.getAll("hide");
for (const button of buttons) {
  hide(button, absent.includes(button.dataset.name));
  button.addEventListener("click", () => {
    hide(button, button.getAttribute("aria-pressed") === "true");
    clear();
    address.searchParams.delete("hide");
    const gone = buttons.filter((one) => hidden.has(Number(one.dataset.series)));
    for (const one of gone) address.searchParams.append("hide", one.dataset.name);
    address.hash = location.hash;
    try { history.replaceState(null, "", address); } catch { /* a frame without an address */ }
  });
}

// A heading sorts its column; entries without a number come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.key;
      const order = (a, b) => (up ? 1 : -1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (key(a) === "") - (key(b) === "") || order(key(a), key(b)));
      table.tBodies[0].append(...rows);
    });
  });
}

// Downloads contain the figure as shown, and work without the figure files.
for (const link of document.querySelectorAll('a[href^="figures/"][href$=".svg"]')) {
  link.addEventListener("click", () => {
    const svg = link.closest("figure").querySelector("svg").cloneNode(true);
    svg.querySelectorAll(".dot").forEach((dot) => dot.remove());
    for (const index of hidden) svg.querySelectorAll(`[data-series="${index}"]`).forEach((line) => line.remove());
    link.href = URL.createObjectURL(new Blob([svg.outerHTML], { type: "image/svg+xml" }));
  });
}

// Open all details for printing.
const folds = [...document.querySelectorAll("details")];
let closed = [];
addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  for (const fold of closed) fold.open = true;
});
addEventListener("afterprint", () => {
  for (const fold of closed) fold.open = false;
});

function clear() {
  tip.hidden = true;
  document.querySelectorAll(".dot").forEach((dot) => dot.remove());
}

function show(plot, title, [x, y, text]) {
  clear();
  const svg = plot.querySelector("svg");
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  for (const [name, value] of [["class", "dot"], ["cx", x], ["cy", y], ["r", 5]]) dot.setAttribute(name, value);
  svg.append(dot);
  tip.textContent = title + ", " + text;
  tip.hidden = false;
  const box = svg.getBoundingClientRect();
  const scale = box.width / svg.viewBox.baseVal.width;
  const left = box.left + x * scale + 10;
  const most = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(4, Math.min(left, most)) + window.scrollX + "px";
  tip.style.top = box.top + y * scale + 12 + window.scrollY + "px";
}

for (const plot of document.querySelectorAll(".plot")) {
  const all = hits[plot.id] || [];
  const visible = () => all.filter((line) => !hidden.has(line.series) && line.points.length);
  let line = 0, point = -1;

  function seek(event) {
    const svg = plot.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = null, least = (event.pointerType === "touch" ? 40 : 24) ** 2;
    for (const entry of visible()) {
      for (const candidate of entry.points) {
        const far = (candidate[0] - at[0]) ** 2 + (candidate[1] - at[1]) ** 2;
        if (far < least) [best, least] = [[entry.title, candidate], far];
      }
    }
    if (best) show(plot, ...best); else clear();
  }
  plot.addEventListener("pointermove", seek);
  // After a touch the tooltip stays; a touch elsewhere clears it.
  plot.addEventListener("pointerdown", seek);
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") clear(); });
  plot.addEventListener("blur", clear);
  plot.addEventListener("keydown", (event) => {
    const lines = visible();
    if (event.key === "Escape") return clear();
    if (!lines.length || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    if (event.key === "ArrowDown") line += 1;
    if (event.key === "ArrowUp") line -= 1;
    line = (line + lines.length) % lines.length;
    const points = lines[line].points;
    if (event.key === "ArrowRight") point += 1;
    if (event.key === "ArrowLeft") point -= 1;
    point = Math.max(0, Math.min(point, points.length - 1));
    show(plot, lines[line].title, points[point]);
  });
}
