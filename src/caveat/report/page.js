"use strict";
// All of this is convenience: the page says everything without it.
const root = document.documentElement;
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

const choice = document.getElementById("silo");
const highlight = (name) => {
  root.classList.toggle("chosen", Boolean(name));
  for (const mark of document.querySelectorAll("[data-silo]")) {
    mark.classList.toggle("focus", mark.dataset.silo === name);
  }
};
if (choice) {
  choice.parentElement.hidden = false;
  choice.addEventListener("change", () => highlight(choice.value));
  for (const row of document.querySelectorAll("tr[data-silo]")) {
    row.addEventListener("click", () => {
      choice.value = choice.value === row.dataset.silo ? "" : row.dataset.silo;
      highlight(choice.value);
    });
  }
}
