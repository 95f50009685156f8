"use strict";
// The page is complete without this; it sorts and filters the table, and joins it with the pictures.
// Everything is read from the document and written as text, so nothing of a sweep is ever taken for HTML.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const body = document.querySelector("tbody");
  if (!body) return;
  const heads = all("thead th");
  const names = heads.map((head) => head.dataset.name);
  const rows = all("tr", body);
  const rowOf = new Map(rows.map((row) => [row.dataset.job, row]));
  const marksOf = new Map();
  for (const mark of all("[data-job]")) {
    if (!marksOf.has(mark.dataset.job)) marksOf.set(mark.dataset.job, []);
    marksOf.get(mark.dataset.job).push(mark);
  }
  document.documentElement.classList.add("live");

  // Sorting: what has no value stays at the end, whichever way it goes.
  const keyOf = (row, column) => row.cells[column].dataset.v ?? row.cells[column].textContent;
  function compare(a, b) {
    if (a === "" || b === "") return 0;
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  }
  function sort(head) {
    const column = heads.indexOf(head);
    const falls = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const keys = new Map(rows.map((row) => [row, keyOf(row, column)]));
    rows.sort((first, second) => {
      const [a, b] = [keys.get(first), keys.get(second)];
      return (a === "") - (b === "") || compare(a, b) * (falls ? -1 : 1);
    });
    body.append(...rows);
  }
  for (const head of heads) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(head); }
    });
  }

  // Filtering: by words, each of which a row must have (key=value finds one parameter), and by ranges of axes.
  const words = new Map(rows.map((row) => [
    row, [...row.cells].map((cell, index) => `${names[index]}=${cell.textContent}`).join("\n").toLowerCase(),
  ]));
  const lines = all("svg.parallel [data-at]");
  const places = new Map(lines.map((line) => [
    line.dataset.job, line.dataset.at.split(",").map((place) => (place === "" ? null : Number(place))),
  ]));
  const ranges = new Map();
  const search = document.querySelector("#search");
  const count = document.querySelector("#count");
  const reset = document.querySelector("#reset");
  function filter() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const at = places.get(row.dataset.job) ?? [];
      const isIn = wanted.every((word) => words.get(row).includes(word)) &&
        [...ranges].every(([axis, [low, high]]) => at[axis] != null && at[axis] >= low && at[axis] <= high);
      shown += isIn;
      for (const mark of marksOf.get(row.dataset.job)) mark.classList.toggle("off", !isIn);
    }
    count.textContent = shown === rows.length ? `${shown} jobs` : `${shown} of ${rows.length} jobs`;
    reset.hidden = shown === rows.length && !wanted.length && !ranges.size;
  }
  search.addEventListener("input", filter);
  reset.addEventListener("click", () => {
    search.value = "";
    ranges.clear();
    for (const brush of all(".brush")) brush.setAttribute("height", 0);
    filter();
  });
  filter();

  // One job is in the light: in the table, in every picture, and in a box beside the pointer.
  const tip = document.querySelector("#tip");
  let lit = null;
  function light(job, event) {
    if (job !== lit) {
      for (const copy of all(".over")) copy.remove();
      for (const other of all(".on, .hot")) other.classList.remove("on", "hot");
      lit = job;
      for (const mark of marksOf.get(job) ?? []) {
        mark.classList.add("on");
        const picture = mark.closest("svg");
        if (!picture) continue;
        const copy = mark.cloneNode();
        copy.classList.add("over");
        mark.parentNode.append(copy);
        picture.classList.add("hot");
      }
    }
    tip.hidden = !(job && event);
    if (!tip.hidden) tell(rowOf.get(job), event);
  }
  function tell(row, event) {
    const list = document.createElement("dl");
    [...row.cells].forEach((cell, index) => {
      const what = names[index];
      if (cell.classList.contains("id") || cell.textContent === "" || cell.textContent === "–") return;
      const term = document.createElement("dt"), told = document.createElement("dd");
      term.textContent = what;
      told.textContent = cell.textContent;
      list.append(term, told);
    });
    tip.replaceChildren(list);
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 18 + box.width > innerWidth ? event.clientX - 18 - box.width : event.clientX + 18;
    tip.style.left = `${Math.max(6, right)}px`;
    tip.style.top = `${Math.max(6, Math.min(event.clientY + 14, innerHeight - box.height - 6))}px`;
  }
  for (const row of all("tbody tr, li[data-job]")) {
    row.addEventListener("pointerenter", () => light(row.dataset.job));
    row.addEventListener("pointerleave", () => light(null));
  }
  function pointIn(picture, event) {
    return new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
  }
  function nearest(candidates, distance, within) {
    let [best, job] = [within, null];
    for (const mark of candidates) {
      if (mark.classList.contains("off")) continue;
      const far = distance(mark);
      if (far < best) [best, job] = [far, mark.dataset.job];
    }
    return job;
  }
  function follow(picture, jobAt) {
    picture.addEventListener("pointermove", (event) => light(event.buttons ? null : jobAt(pointIn(picture, event)), event));
    picture.addEventListener("pointerleave", () => light(null));
    picture.addEventListener("click", (event) => {
      const job = jobAt(pointIn(picture, event));
      if (job) rowOf.get(job).scrollIntoView({ block: "center", behavior: "smooth" });
    });
  }

  for (const picture of all("svg.parallel")) {
    const [left, gap, top, height] = ["left", "gap", "top", "height"].map((name) => Number(picture.dataset[name]));
    follow(picture, (point) => nearest(lines, (line) => {
      const at = places.get(line.dataset.job);
      const across = Math.max(0, Math.min((point.x - left) / gap, at.length - 1.000001));
      const [from, to] = [at[Math.floor(across)], at[Math.floor(across) + 1]];
      if (from == null || to == null) return Infinity;
      const part = across - Math.floor(across);
      return Math.abs(top + ((from + (to - from) * part) / 1000) * height - point.y);
    }, 10));
    for (const grip of all(".grip", picture)) {
      const axis = Number(grip.dataset.axis);
      const brush = grip.parentNode.querySelector(".brush");
      const placeAt = (event) => Math.max(-10, Math.min(((pointIn(picture, event).y - top) / height) * 1000, 1010));
      let start = null;
      grip.addEventListener("pointerdown", (event) => {
        grip.setPointerCapture(event.pointerId);
        start = placeAt(event);
      });
      grip.addEventListener("pointermove", (event) => {
        if (start === null) return;
        const [low, high] = [start, placeAt(event)].sort((a, b) => a - b);
        if (high - low < 12) ranges.delete(axis); else ranges.set(axis, [low, high]);
        const range = ranges.get(axis) ?? [0, 0];
        brush.setAttribute("y", top + (range[0] / 1000) * height);
        brush.setAttribute("height", ((range[1] - range[0]) / 1000) * height);
        filter();
      });
      grip.addEventListener("pointerup", (event) => {
        if (Math.abs(placeAt(event) - start) < 12) {
          ranges.delete(axis);
          brush.setAttribute("height", 0);
          filter();
        }
        start = null;
      });
    }
  }
  for (const picture of all("svg.panel")) {
    const marks = all("[data-job]", picture);
    const where = new Map(marks.map((mark) => [
      mark, [mark.getAttribute("cx") ?? mark.dataset.x, mark.getAttribute("cy") ?? mark.dataset.y].map(Number),
    ]));
    follow(picture, (point) => nearest(marks, (mark) => Math.hypot(where.get(mark)[0] - point.x, where.get(mark)[1] - point.y), 14));
  }
})();
