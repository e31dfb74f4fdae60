// What scrolls can be scrolled by the keyboard: tables, and code that is wider than the page.
const focusable = () => {
  for (const code of document.querySelectorAll(".md-typeset pre > code")) {
    if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
    else code.removeAttribute("tabindex");
  }
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
};
document$.subscribe(() => setTimeout(() => {
  focusable();
  const labels = new Map();  // landmarks have names of their own: the API lists several "Functions"
  for (const nav of document.querySelectorAll("nav[aria-label]")) {
    const label = nav.getAttribute("aria-label"), name = label.trim().toLowerCase();
    const count = (labels.get(name) ?? 0) + 1;
    labels.set(name, count);
    if (count > 1) nav.setAttribute("aria-label", `${label} ${count}`);
  }
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code block ${index + 1}`));
}, 200));
addEventListener("resize", focusable);
// The theme keeps the colours of the first visit; without them the next page follows the system.
addEventListener("pagehide", () => {
  for (const key of Object.keys(localStorage)) if (key.endsWith(".__palette")) localStorage.removeItem(key);
});
