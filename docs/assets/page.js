// A table that scrolls can be scrolled by the keyboard; the buttons of each block have a name.
document$.subscribe(() => setTimeout(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code block ${index + 1}`));
}, 200));
