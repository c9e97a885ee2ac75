// Without this the page shows every measure and setting, one below the other.
document.getElementById("choices").hidden = false;
const selects = ["measure", "column"].map((id) => document.getElementById(id));
const show = () => {
  const [measure, column] = selects.map((select) => select?.value ?? "");
  for (const part of document.querySelectorAll("[data-measure], [data-column]")) {
    const other = measure && part.dataset.measure && part.dataset.measure !== measure;
    part.hidden = Boolean(other || (column && part.dataset.column && part.dataset.column !== column));
  }
};
for (const select of selects) select?.addEventListener("change", show);
show();
