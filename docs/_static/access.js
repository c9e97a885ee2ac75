// What the theme leaves out for screen readers and keyboards: levels of captions, names of sidebars, and focus for
// blocks and tables that scroll.
function scrollable() {
  for (const each of document.querySelectorAll("pre, table.docutils, .table-wrapper")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
  }
}

addEventListener("DOMContentLoaded", () => {
  for (const each of document.querySelectorAll(".caption[role=heading]")) each.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  scrollable();
});
addEventListener("resize", scrollable);
