// What does each part of the page show?

const plain = (read) => (cell, row) => setText(cell, read(row));

// A sign and a word, coloured by what they mean.
function signed(cell, sign, word, meaning) {
  if (!cell.firstElementChild) cell.append(make("span", { class: "sign", "aria-hidden": "true" }), make("span"));
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

function named(cell, row) {
  if (!cell.firstElementChild) cell.append(make("span"), make("span", { class: "quiet" }));
  const [address, name] = cell.children;
  setText(address, row.address);
  setText(name, row.name ? ` ${row.name}` : "");
}

const models = (row) =>
  !row.models ? UNKNOWN : row.models.join(", ") + (row.more_models ? ` and ${row.more_models} more` : "");

const ENDPOINT_COLUMNS = [
  { title: "Endpoint", value: (row) => row.address, show: named, class: "name" },
  {
    title: "State",
    value: (row) => stateOf(row.state)[1],
    show: (cell, row) => signed(cell, stateOf(row.state)[0], row.state, stateOf(row.state)[2]),
  },
  { title: "Waiting", number: true, hint: "requests in its queue, as it said last", value: (row) => row.waiting,
    show: (cell, row) => { setText(cell, number(row.waiting)); cell.classList.toggle("some", row.waiting > 0); } },
  { title: "Running", number: true, hint: "requests, as it said last", value: (row) => row.running, show: plain((row) => number(row.running)) },
  { title: "In flight", number: true, hint: "requests picked for it that have not ended", value: (row) => row.in_flight, show: plain((row) => number(row.in_flight)) },
  { title: "KV usage", number: true, hint: "of its KV cache, as it said last", value: (row) => row.kv_usage_ratio, show: (cell, row) => metered(cell, row.kv_usage_ratio, 0.9) },
  { title: "Hit share", number: true, hint: "of the prompt tokens of the last minute, those that its prefix cache held", value: (row) => row.hit_ratio, show: (cell, row) => metered(cell, row.hit_ratio) },
  { title: "Heard", number: true, hint: "how long ago it told its load last", value: (row) => row.age_s,
    show: (cell, row) => { setText(cell, known(row.age_s) ? span(row.age_s) : "never"); cell.classList.toggle("old", !row.fresh); } },
  { title: "Models", value: models, show: plain(models), class: "models", shown: (rows) => rows.some((row) => row.models) },
  { title: "Why", show: plain((row) => row.why ?? ""), class: "why" },
];

// How many are in each state, the worst first; nothing when all are in one.
function states(endpoints) {
  const names = [...new Set(endpoints.map((each) => each.state))].sort((a, b) => stateOf(a)[1] - stateOf(b)[1]);
  const of = (name) => endpoints.filter((each) => each.state === name).length;
  return names.length > 1 ? `: ${names.map((name) => `${number(of(name))} ${name}`).join(", ")}` : "";
}

class PoolView {
  constructor(pool) {
    this.cards = {
      requests_per_s: new Card("Requests/s", { show: rough }),
      in_flight: new Card("In flight", { show: rough }),
      waiting: new Card("Waiting", { show: rough }),
      running: new Card("Running", { show: rough }),
      kv_usage_ratio: new Card("KV usage", { show: percent, top: 1 }),
      hit_ratio: new Card("Hit share", { show: percent, top: 1 }),
      servers: new Card("Servers", { show: rough, step: true }),
      ttft_p99_s: new Card("First token, p99", { show: seconds }),
    };
    this.grid = new Grid(`Endpoints of the pool ${pool.name}`, ENDPOINT_COLUMNS, { order: { column: 1, way: 1 }, short: true });
    this.name = make("span");
    this.about = make("span", { class: "quiet" });
    this.title = make("h2", {}, this.name, this.about);
    this.find = make("input", { type: "search", placeholder: "find an endpoint", "aria-label": "Find an endpoint" });
    this.find.addEventListener("input", () => { this.grid.find = this.find.value; this.again(); });
    this.all = make("button", { type: "button" });
    this.all.addEventListener("click", () => { this.grid.all = !this.grid.all; this.again(); });
    this.tools = make("div", { class: "tools" }, this.find, this.all);
    this.nobody = make("p", { class: "quiet" }, "There are no endpoints.");
    this.scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Endpoints of the pool ${pool.name}` }, this.grid.table);
    this.advice = new Advice();
    this.tiles = make("div", { class: "cards" });
    this.element = make("section", { class: "pool" }, this.title, this.tiles, this.tools, this.scroll, this.nobody, this.advice.element);
  }

  again() {
    this.draw(this.pool, this.history);
  }

  draw(pool, history) {
    Object.assign(this, { pool, history });
    setText(this.name, `Pool ${pool.name}`);
    setText(this.about, ` ${count(pool.servers, "endpoint")}${states(pool.endpoints)} · profile ${pool.profile}`);
    this.drawCards(pool, history);
    this.grid.draw(pool.endpoints.map((each) => ({ ...each, key: each.address })));
    this.tools.hidden = pool.servers <= FEW;
    setText(this.all, this.grid.all ? `Show only ${FEW}` : `Show all ${pool.servers}`);
    this.nobody.hidden = pool.servers > 0;
    this.scroll.hidden = pool.servers === 0;
    this.advice.draw(pool.autoscale, history);
  }

  drawCards(pool, { times, columns }) {
    const line = (name, key = name) => ({ name, values: columns[key] ?? [], kind: "line" });
    const aim = (name, values) => ({ name, values, kind: "aim" });
    const last = (key) => columns[key]?.[columns[key].length - 1] ?? null;
    const advice = pool.autoscale;
    const { cards } = this;
    cards.requests_per_s.draw(rough(last("requests_per_s")), "routed", times, [line("requests_per_s")]);
    cards.in_flight.draw(number(pool.in_flight), "picked and not ended", times, [line("in_flight")]);
    cards.waiting.draw(number(pool.waiting), "in the servers' queues", times, [line("waiting")]);
    cards.running.draw(number(pool.running), "on the servers", times, [line("running")]);
    cards.kv_usage_ratio.draw(percent(pool.kv_usage_ratio), "mean of the servers", times, [line("kv_usage_ratio")]);
    cards.hit_ratio.draw(percent(pool.hit_ratio), "of prompt tokens, 1 min", times, [line("hit_ratio")]);
    const wanted = advice ? `ready; ${number(advice.stale ? null : advice.desired)} recommended (dashed)` : `ready, of ${number(pool.servers)}`;
    const desired = advice ? [aim("recommended", columns.desired ?? [])] : [];
    cards.servers.draw(number(pool.serving), wanted, times, [line("ready"), ...desired]);
    const target = advice?.ttft_target_s ?? null;
    const targets = known(target) ? [aim("target", times.map(() => target))] : [];
    cards.ttft_p99_s.draw(seconds(advice?.ttft_p99_s), known(target) ? `target ${seconds(target)} (dashed)` : "no target is set", times, [line("ttft_p99_s"), ...targets]);
    arrange(this.tiles, Object.values(cards).filter((each) => advice || each !== cards.ttft_p99_s).map((each) => each.element));
  }
}

const VERDICTS = {
  ok: ["✓", "first token within its target", "good"],
  scaling: ["↻", "first token late; more servers are asked for or starting", "fair"],
  late: ["⚠", "first token late, and no signal asks for more servers", "bad"],
  early: ["⚠", "thresholds lower than they need be", "fair"],
  at_capacity: ["⚠", "first token late, and max_replicas is reached", "bad"],
};
const SIGNAL_WORDS = { kv_usage: percent };

// The recommendation, and what asks for it.
class Advice {
  constructor() {
    this.charts = new Map();
    this.title = make("h3", { class: "advice" });
    this.sentence = make("p");
    this.facts = make("p", { class: "quiet" });
    this.verdict = make("p");
    const value = (row, of) => (known(of) ? (SIGNAL_WORDS[row.name] ?? rough)(of) : UNKNOWN);
    this.grid = new Grid("What asks for servers", [
      { title: "Signal", show: plain((row) => row.name) },
      { title: "Now", number: true, show: plain((row) => value(row, row.value)) },
      { title: "A server may have", number: true, show: plain((row) => value(row, row.threshold)) },
      { title: "Asks for", number: true, show: plain((row) => (known(row.replicas) ? number(row.replicas) : "none")) },
      { title: "Asked for, over time", show: (cell, row) => this.trend(cell, row), class: "trend" },
      { title: "In words", show: plain((row) => row.reason), class: "why" },
    ]);
    this.element = make("div", { class: "recommendation" }, this.title, this.sentence, this.verdict, this.facts,
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What asks for servers" }, this.grid.table));
  }

  draw(advice, history) {
    this.element.hidden = !advice;
    if (!advice) return;
    this.history = history;
    setText(this.title, `Recommended servers: ${advice.error ? "no number now" : number(advice.desired)}`);
    setText(this.sentence, advice.error ?? advice.reason);
    const [sign, words, meaning] = VERDICTS[advice.verdict] ?? ["", "", "rest"];
    this.verdict.hidden = !words;
    signed(this.verdict, sign, words, meaning);
    const facts = [
      `${number(advice.provisioned)} there (${number(advice.ready)} ready, ${number(advice.starting)} starting, ${number(advice.stale_servers)} of unknown load)`,
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
    if (!chart) this.charts.set(row.name, (chart = new Chart(`Servers that ${row.name} asked for`, { show: rough, step: true })));
    if (cell.firstElementChild !== chart.element) cell.replaceChildren(chart.element);
    const { times, columns } = this.history;
    chart.draw(times, [{ name: row.name, values: columns.asked?.[row.name] ?? [], kind: "line" }]);
  }
}

const PICK_COLUMNS = [
  { title: "When", number: true, show: plain((row) => `${span(row.age_s)} ago`) },
  { title: "Pool", show: plain((row) => row.pool), shown: (rows) => rows.some((row) => row.pool !== rows[0].pool) },
  { title: "Request", show: plain((row) => [row.path, row.model].filter(Boolean).join(" ")), class: "models" },
  { title: "Prompt", number: true, hint: "tokens, estimated; and those that the server is believed to hold",
    show: plain((row) => (known(row.prompt_tokens) ? `${number(row.prompt_tokens)} (${number(row.held_tokens)} held)` : UNKNOWN)) },
  { title: "Sent to", show: plain((row) => row.picked), class: "name" },
  { title: "Ended", show: (cell, row) => {
    const [sign, meaning] = OUTCOMES[row.outcome] ?? ["?", "rest"];
    const elsewhere = row.served && row.served !== row.picked ? ` at ${row.served}` : "";
    const status = known(row.status) && row.status !== 200 ? ` ${row.status}` : "";
    const took = known(row.duration_s) ? `, ${seconds(row.duration_s)}` : "";
    signed(cell, sign, `${row.outcome.replace("_", " ")}${status}${took}${elsewhere}`, meaning);
  } },
  { title: "Why there", show: plain((row) => (row.panic ? "every endpoint looked bad; " : "") + row.why), class: "why" },
];
