// One silo, highlighted in every picture and table that has it.
const choices = [...document.querySelectorAll(".highlight select")];
let chosen = "";
const highlight = (name) => {
  chosen = name;
  root.classList.toggle("chosen", Boolean(name));
  for (const choice of choices) choice.value = name;
  for (const mark of document.querySelectorAll("[data-silo]")) {
    mark.classList.toggle("focus", mark.dataset.silo === name);
  }
};
for (const choice of choices) {
  choice.parentElement.hidden = false;
  choice.addEventListener("change", () => highlight(choice.value));
}
if (choices.length) {
  for (const mark of document.querySelectorAll("tr[data-silo], .dots [data-silo]")) {
    mark.addEventListener("click", () => highlight(mark.dataset.silo === chosen ? "" : mark.dataset.silo));
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
