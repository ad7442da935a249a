// How is an hour drawn? Lines over time as SVG; what is unknown leaves a gap. Pointing at a line tells its value then.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [300, 60];
const LEAST_S = 300; // that is drawn, however short the history is

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  return element;
}

// The next of 1, 2, 5, 10, 20, ...
function above(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= value * 0.999);
}

class Chart {
  // `show` writes a value; `top`: what the upper edge is, null: as the values need.
  constructor(title, { show, top = null, step = false }) {
    Object.assign(this, { title, show, top, step, times: [], series: [], at: null });
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.start = make("span");
    this.range = make("span");
    const axis = make("div", { class: "axis", "aria-hidden": "true" }, this.start, this.range, make("span", {}, "now"));
    this.element = make("div", { class: "chart" }, this.picture, axis);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.pointed = () => {};
  }

  // `series`: {name, values, kind}; of the kinds `line` and `aim` (dashed) the first one named `line` is filled below.
  draw(times, series) {
    Object.assign(this, { times, series });
    const values = series.flatMap((each) => each.values).filter(known);
    const last = times.at(-1) ?? 0;
    const first = Math.min(times.length ? times[0] : 0, last - LEAST_S);
    const most = this.top ?? above(Math.max(0, ...values));
    this.x = (time) => (WIDTH * (time - first)) / (last - first || 1);
    const y = (value) => HEIGHT - 1 - ((HEIGHT - 4) * Math.min(value, most)) / most;
    const paths = [];
    for (const { values: of, kind } of series) {
      const pieces = this.pieces(times, of, y);
      if (kind === "line") {
        const area = pieces.map((each) => `${each.line}V${HEIGHT}H${each.from}Z`).join("");
        paths.push(svg("path", { class: "area", d: area }));
      }
      paths.push(svg("path", { class: kind, d: pieces.map((each) => each.line).join("") }));
    }
    this.mark = svg("path", { class: "mark", d: "" });
    this.picture.replaceChildren(...paths, this.mark);
    const length = span(last - (times[0] ?? last));
    setAttributes(this.picture, { "aria-label": `${this.title}, the last ${length}: ${this.inWords()}` });
    setText(this.range, values.length ? `0 – ${this.show(most)}` : "");
    setText(this.start, times.length ? `${span(last - first)} ago` : "");
    this.point(this.at);
  }

  inWords() {
    const values = this.series[0].values.filter(known);
    if (!values.length) return "nothing is known";
    const [now, least, most] = [values.at(-1), Math.min(...values), Math.max(...values)].map(this.show);
    return `now ${now}, least ${least}, most ${most}`;
  }

  pieces(times, values, y) {
    const found = [];
    let open = null;
    values.forEach((value, i) => {
      if (!known(value)) {
        open = null;
        return;
      }
      const [x, at] = [this.x(times[i]).toFixed(1), y(value).toFixed(1)];
      if (open === null) found.push((open = { from: x, line: `M${x} ${at}h0.1` }));
      else open.line += this.step ? `H${x}V${at}` : `L${x} ${at}`;
    });
    return found;
  }

  point(event) {
    this.at = event;
    if (event === null || !this.times.length) {
      this.mark?.setAttribute("d", "");
      this.pointed(null);
      return;
    }
    const box = this.picture.getBoundingClientRect();
    const x = (WIDTH * (event.clientX - box.left)) / (box.width || 1);
    let near = 0;
    this.times.forEach((time, i) => {
      if (Math.abs(this.x(time) - x) < Math.abs(this.x(this.times[near]) - x)) near = i;
    });
    this.mark.setAttribute("d", `M${this.x(this.times[near]).toFixed(1)} 0V${HEIGHT}`);
    this.pointed(near);
  }
}

// A figure with its last hour: the value of now in large, or of the time pointed at.
class Card {
  constructor(title, options) {
    this.show = options.show;
    this.chart = new Chart(title, options);
    this.value = make("p", { class: "value" });
    this.note = make("p", { class: "quiet note" });
    this.element = make("article", { class: "card" }, make("h3", {}, title), this.value, this.note, this.chart.element);
    this.chart.pointed = (i) => this.tell(i);
  }

  draw(value, note, times, series) {
    Object.assign(this, { now: value, said: note });
    this.chart.draw(times, series);
  }

  tell(i) {
    const { times, series } = this.chart;
    if (i === null) {
      setText(this.value, this.now);
      setText(this.note, this.said);
      return;
    }
    setText(this.value, this.show(series[0].values[i]));
    const others = series.slice(1).map((each) => `, ${each.name} ${this.show(each.values[i])}`);
    setText(this.note, `at ${clock(times[i])}${others.join("")}`);
  }
}
