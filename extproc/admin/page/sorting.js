// How is a list of things shown as a table that can be sorted, and is written over rather than made anew?

const FEW = 25; // rows that are shown unless all are asked for

class Grid {
  // Columns: {title, hint, class, number, show(cell, row), value(row): to sort by, shown(rows): whether it is worth its
  // place}. `order`: {column, way} to sort by, 1 or -1; `short`: not all rows are shown before somebody asks.
  constructor(caption, columns, { order = null, short = false } = {}) {
    Object.assign(this, { columns, order, all: !short, find: "", shown: [], rows: new Map() });
    this.head = make("tr");
    this.body = make("tbody");
    const title = make("caption", { class: "unseen" }, caption);
    this.table = make("table", {}, title, make("thead", {}, this.head), this.body);
    this.headings = columns.map((column, i) => {
      const heading = make("th", { scope: "col", class: column.number ? "number" : "", title: column.hint ?? null });
      if (column.value) {
        const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
        const button = make("button", { type: "button" }, column.title, arrow);
        button.addEventListener("click", () => this.sortBy(i));
        heading.append(button);
      } else {
        heading.textContent = column.title;
      }
      this.head.append(heading);
      return heading;
    });
  }

  sortBy(column) {
    const first = this.columns[column].number ? -1 : 1; // the greatest first, the first letter first
    this.order = this.order?.column === column ? { column, way: -this.order.way } : { column, way: first };
    this.draw(this.shown);
  }

  // Rows: objects with a `key`.
  draw(rows) {
    this.shown = rows;
    let found = rows.filter((row) => row.key.toLowerCase().includes(this.find.toLowerCase()));
    const idle = this.columns.map((column) => column.shown !== undefined && !column.shown(rows));
    this.headings.forEach((heading, i) => {
      heading.hidden = idle[i];
      const way = this.order?.column === i ? this.order.way : 0;
      setAttributes(heading, { "aria-sort": way ? (way > 0 ? "ascending" : "descending") : null });
      const arrow = heading.querySelector(".arrow");
      if (arrow) setText(arrow, way ? (way > 0 ? " ▲" : " ▼") : "");
    });
    if (this.order !== null) {
      const { value } = this.columns[this.order.column];
      found = [...found].sort((a, b) => compare(value(a), value(b), this.order.way));
    }
    this.hidden = this.all ? 0 : Math.max(0, found.length - FEW);
    if (this.hidden) found = found.slice(0, FEW);
    const kept = new Map();
    for (const row of found) {
      const line = this.rows.get(row.key) ?? this.line();
      kept.set(row.key, line);
      this.columns.forEach((column, i) => {
        line.cells[i].hidden = idle[i];
        column.show(line.cells[i], row);
      });
    }
    this.rows = kept;
    arrange(this.body, [...kept.values()].map((line) => line.row));
  }

  line() {
    const cells = this.columns.map((column, i) =>
      make(i ? "td" : "th", { scope: i ? null : "row", class: column.number ? "number" : (column.class ?? "") }),
    );
    return { row: make("tr", {}, ...cells), cells };
  }
}

// What is unknown comes last, whichever way.
function compare(a, b, way) {
  if (!known(a) || !known(b)) return Number(!known(a)) - Number(!known(b));
  return way * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
}
