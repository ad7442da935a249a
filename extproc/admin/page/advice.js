// How many servers are recommended, and what asks for them?

const VERDICTS = {
  ok: ["✓", "first token within its target", "good"],
  scaling: ["↻", "first token late; more servers are asked for or starting", "fair"],
  late: ["⚠", "first token late, and no signal asks for more servers", "bad"],
  early: ["⚠", "thresholds lower than they need be", "fair"],
  at_capacity: ["⚠", "first token late, and max_replicas is reached", "bad"],
};
const measured = (row, value) => (row.name === "kv_usage" ? percent(value) : rough(value));

class Advice {
  constructor() {
    this.charts = new Map(); // by signal
    this.title = make("h3", { class: "advice" });
    this.sentence = make("p");
    this.verdict = make("p");
    this.facts = make("p", { class: "quiet" });
    const words = "What asks for servers";
    this.grid = new Grid(words, [
      { title: "Signal", show: plain((row) => row.name) },
      { title: "Now", number: true, show: plain((row) => measured(row, row.value)) },
      { title: "A server may have", number: true, show: plain((row) => measured(row, row.threshold)) },
      { title: "Asks for", number: true, show: plain((row) => (known(row.replicas) ? number(row.replicas) : "none")) },
      { title: "Asked for, over time", show: (cell, row) => this.trend(cell, row), class: "trend" },
      { title: "In words", show: plain((row) => row.reason), class: "why" },
    ]);
    const said = [this.title, this.sentence, this.verdict, this.facts];
    this.element = make("div", { class: "recommendation" }, ...said, scrolling(words, this.grid.table));
  }

  // `advice` null: the pool gets none.
  draw(advice, history) {
    this.element.hidden = !advice;
    if (!advice) return;
    this.history = history;
    setText(this.title, `Recommended servers: ${advice.error ? "no number now" : number(advice.desired)}`);
    setText(this.sentence, advice.error ?? advice.reason);
    const [sign, words, meaning] = VERDICTS[advice.verdict] ?? ["", "", "rest"];
    this.verdict.hidden = !words;
    signed(this.verdict, sign, words, meaning);
    const there = [
      `${number(advice.ready)} ready`,
      `${number(advice.starting)} starting`,
      `${number(advice.stale_servers)} of unknown load`,
    ];
    const facts = [
      `${number(advice.provisioned)} there (${there.join(", ")})`,
      `${number(advice.draining)} draining`,
      `between ${number(advice.min_replicas)} and ${number(advice.max_replicas)}`,
      advice.calibrated ? "thresholds from a load test" : "default thresholds, no load test",
      known(advice.lead_s) ? `a server takes ${span(advice.lead_s)} to come` : null,
      advice.held ? `held: ${advice.held}` : null,
    ];
    setText(this.facts, facts.filter(known).join(" · "));
    this.grid.draw(advice.signals.map((each) => ({ ...each, key: each.name })));
  }

  trend(cell, row) {
    let chart = this.charts.get(row.name);
    if (!chart) {
      chart = new Chart(`Servers that ${row.name} asked for`, { show: rough, step: true });
      this.charts.set(row.name, chart);
    }
    if (cell.firstElementChild !== chart.element) cell.replaceChildren(chart.element);
    const { times, columns } = this.history;
    chart.draw(times, [line(columns.asked ?? {}, row.name)]);
  }
}
