"use strict";
// Show and hide placements, and read values off the figures with a pointer or the arrow keys.
const hits = JSON.parse(document.getElementById("hits").textContent);
const tip = document.getElementById("tip");
const hidden = new Set();

for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const index = Number(button.dataset.series);
    const shown = !hidden.delete(index);
    if (shown) hidden.add(index);
    button.setAttribute("aria-pressed", String(!hidden.has(index)));
    document.body.classList.toggle("hide-" + index, hidden.has(index));
    clear();
  });
}

// On paper everything is open.
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

  plot.addEventListener("pointermove", (event) => {
    const svg = plot.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = null, least = 24 ** 2;
    for (const entry of visible()) {
      for (const candidate of entry.points) {
        const far = (candidate[0] - at[0]) ** 2 + (candidate[1] - at[1]) ** 2;
        if (far < least) [best, least] = [[entry.title, candidate], far];
      }
    }
    if (best) show(plot, ...best); else clear();
  });
  plot.addEventListener("pointerleave", clear);
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
