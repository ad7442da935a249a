// How does a value look in a cell of a table? Each is written over; nothing is made anew.

const plain = (read) => (cell, row) => setText(cell, read(row));

// A sign and a word, coloured by what they mean.
function signed(cell, sign, word, meaning) {
  if (!cell.firstElementChild) cell.append(make("span", { "aria-hidden": "true" }), make("span"));
  const [first, second] = cell.children;
  setText(first, sign);
  setText(second, word);
  setAttributes(first, { class: `sign ${meaning}` });
}

// A share, with a bar for the eye; above `high` it is marked.
function metered(cell, ratio, high = 2) {
  if (!cell.firstElementChild) {
    cell.append(make("span", {}), make("span", { class: "bar", "aria-hidden": "true" }, make("i")));
  }
  const [words, bar] = cell.children;
  setText(words, percent(ratio));
  setAttributes(bar, { class: `bar${ratio > high ? " high" : ""}` });
  bar.firstElementChild.style.width = `${100 * Math.min(1, ratio ?? 0)}%`;
}

// A figure that stands out in a way named by a class, if it does.
function marked(cell, text, name, wanted) {
  setText(cell, text);
  cell.classList.toggle(name, wanted);
}

// A table that is too wide for the window scrolls by itself, also by keys.
const scrolling = (label, table) =>
  make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
