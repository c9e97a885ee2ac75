"use strict";
// All of this is convenience: the page says everything without it.
const root = document.documentElement;
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// Names the columns that a narrow screen shows only after scrolling.
const hint = (scroll) => {
  const right = scroll.getBoundingClientRect().right;
  const heads = [...scroll.querySelectorAll("thead th")].filter((head) => head.getBoundingClientRect().right > right + 2);
  const note = scroll.nextElementSibling?.matches(".more") ? scroll.nextElementSibling : document.createElement("p");
  note.className = "more";
  note.textContent = `Scroll right for: ${heads.map((head) => head.textContent).join(", ")}`;
  if (heads.length && scroll.checkVisibility()) scroll.after(note);
  else note.remove();
};
const nameAll = () => document.querySelectorAll(".scroll").forEach(hint);
addEventListener("resize", nameAll);
document.addEventListener("toggle", nameAll, true);
nameAll();

// One silo or method, highlighted in every picture and table that has it.
const choices = [...document.querySelectorAll(".highlight select")];
const highlight = (name) => {
  root.classList.toggle("chosen", Boolean(name));
  for (const choice of choices) choice.value = name;
  for (const mark of document.querySelectorAll("[data-name]")) {
    mark.classList.toggle("focus", mark.dataset.name === name);
  }
};
for (const choice of choices) {
  choice.parentElement.hidden = false;
  choice.addEventListener("change", () => highlight(choice.value));
}
if (choices.length) {
  highlight(choices[0].value);  // a browser may keep what was chosen before the page was loaded again
  for (const mark of document.querySelectorAll("tr[data-name], .dots [data-name]")) {
    mark.addEventListener("click", () => highlight(mark.classList.contains("focus") ? "" : mark.dataset.name));
  }
}

// Cards of each silo from the least certain to the most, by decision; and back as they were.
const order = document.querySelector(".order");
const byDecision = (ends) => {
  const cards = [...ends.querySelectorAll("li")].sort((a, b) => b.dataset.total - a.dataset.total);
  const sorted = document.createElement("div");
  sorted.className = "decided";
  for (const decision of [...new Set(cards.map((card) => card.dataset.decision))].sort()) {
    const title = document.createElement("h3");
    const list = document.createElement("ul");
    title.textContent = decision || "no decision";
    list.className = "cards";
    list.append(...cards.filter((card) => card.dataset.decision === decision).map((card) => card.cloneNode(true)));
    sorted.append(title, list);
  }
  ends.after(sorted);
};
if (order) {
  order.hidden = false;
  order.addEventListener("change", (event) => {
    const decided = event.target.value === "decision";
    for (const sorted of document.querySelectorAll(".decided")) sorted.remove();
    for (const ends of document.querySelectorAll(".ends")) {
      ends.hidden = decided;
      if (decided) byDecision(ends);
    }
  });
}
