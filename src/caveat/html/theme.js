"use strict";
// All of this is convenience: the page says everything without it.
const root = document.documentElement;
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
