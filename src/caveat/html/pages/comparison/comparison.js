// Without this the page shows every measure and setting, one below the other.
document.getElementById("choices").hidden = false;
const chosen = (id) => document.getElementById(id)?.value ?? "";
const show = () => {
  const measure = chosen("measure");
  const column = chosen("column");
  for (const part of document.querySelectorAll("[data-measure], [data-column]")) {
    const other = measure && part.dataset.measure && part.dataset.measure !== measure;
    part.hidden = Boolean(other || (column && part.dataset.column && part.dataset.column !== column));
  }
};
const highlight = () => {
  const row = chosen("row");
  root.classList.toggle("chosen", Boolean(row));
  for (const mark of document.querySelectorAll("[data-row]")) {
    mark.classList.toggle("focus", mark.dataset.row === row);
  }
};
document.getElementById("measure")?.addEventListener("change", show);
document.getElementById("column")?.addEventListener("change", show);
document.getElementById("row").addEventListener("change", highlight);
show();
highlight();
