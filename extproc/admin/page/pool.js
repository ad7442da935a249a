// How is one pool doing? Its figures with their last hour, and its endpoints.

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
  {
    title: "Waiting",
    number: true,
    hint: "requests in its queue, as it said last",
    value: (row) => row.waiting,
    show: (cell, row) => marked(cell, number(row.waiting), "some", row.waiting > 0),
  },
  {
    title: "Running",
    number: true,
    hint: "requests, as it said last",
    value: (row) => row.running,
    show: plain((row) => number(row.running)),
  },
  {
    title: "In flight",
    number: true,
    hint: "requests picked for it that have not ended",
    value: (row) => row.in_flight,
    show: plain((row) => number(row.in_flight)),
  },
  {
    title: "KV usage",
    number: true,
    hint: "of its KV cache, as it said last",
    value: (row) => row.kv_usage_ratio,
    show: (cell, row) => metered(cell, row.kv_usage_ratio, 0.9),
  },
  {
    title: "Hit share",
    number: true,
    hint: "of the prompt tokens of the last minute, those that its prefix cache held",
    value: (row) => row.hit_ratio,
    show: (cell, row) => metered(cell, row.hit_ratio),
  },
  {
    title: "Heard",
    number: true,
    hint: "how long ago it told its load last",
    value: (row) => row.age_s,
    show: (cell, row) => marked(cell, known(row.age_s) ? `${span(row.age_s)} ago` : "never", "stale", !row.fresh),
  },
  {
    title: "Models",
    value: models,
    show: plain(models),
    class: "models",
    shown: (rows) => rows.some((row) => row.models),
  },
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
    const words = `Endpoints of the pool ${pool.name}`;
    this.figures = new Figures();
    this.grid = new Grid(words, ENDPOINT_COLUMNS, { order: { column: 1, way: 1 }, short: true });
    this.name = make("span");
    this.about = make("span", { class: "quiet" });
    this.find = make("input", { type: "search", placeholder: "find an endpoint", "aria-label": "Find an endpoint" });
    this.find.addEventListener("input", () => {
      this.grid.find = this.find.value;
      this.draw(this.pool, this.history);
    });
    this.all = make("button", { type: "button" });
    this.all.addEventListener("click", () => {
      this.grid.all = !this.grid.all;
      this.draw(this.pool, this.history);
    });
    this.tools = make("div", { class: "tools" }, this.find, this.all);
    this.nobody = make("p", { class: "quiet" }, "There are no endpoints.");
    this.scroll = scrolling(words, this.grid.table);
    this.advice = new Advice();
    const title = make("h2", {}, this.name, this.about);
    const parts = [this.tools, this.scroll, this.nobody, this.advice.element];
    this.element = make("section", { class: "pool" }, title, this.figures.element, ...parts);
  }

  // `history`: {times, columns}, of this pool.
  draw(pool, history) {
    Object.assign(this, { pool, history });
    setText(this.name, `Pool ${pool.name}`);
    setText(this.about, ` ${count(pool.servers, "endpoint")}${states(pool.endpoints)} · profile ${pool.profile}`);
    this.figures.draw(pool, history);
    this.grid.draw(pool.endpoints.map((each) => ({ ...each, key: each.address })));
    this.tools.hidden = pool.servers <= FEW;
    setText(this.all, this.grid.all ? `Show only ${FEW}` : `Show all ${pool.servers}`);
    this.nobody.hidden = pool.servers > 0;
    this.scroll.hidden = pool.servers === 0;
    this.advice.draw(pool.autoscale, history);
  }
}

// The figures of a pool, each with its last hour.
class Figures {
  constructor() {
    this.cards = {
      requests_per_s: new Card("Requests/s", { show: rough }),
      in_flight: new Card("In flight", { show: rough }),
      waiting: new Card("Waiting", { show: rough }),
      running: new Card("Running", { show: rough }),
      kv_usage_ratio: new Card("KV usage", { show: percent, top: 1 }),
      hit_ratio: new Card("Hit share", { show: percent, top: 1 }),
      servers: new Card("Servers", { show: rough, step: true }),
      first_token: new Card("First token, p99", { show: seconds }),
    };
    this.element = make("div", { class: "cards" });
  }

  draw(pool, { times, columns }) {
    const { cards } = this;
    const draw = (name, value, note) => cards[name].draw(value, note, times, [line(columns, name)]);
    draw("requests_per_s", rough(columns.requests_per_s?.at(-1)), "routed");
    draw("in_flight", number(pool.in_flight), "picked and not ended");
    draw("waiting", number(pool.waiting), "in the servers' queues");
    draw("running", number(pool.running), "on the servers");
    draw("kv_usage_ratio", percent(pool.kv_usage_ratio), "mean of the servers");
    draw("hit_ratio", percent(pool.hit_ratio), "of prompt tokens, 1 min");
    this.drawAdvised(pool, times, columns);
    const shown = Object.values(cards).filter((each) => pool.autoscale || each !== cards.first_token);
    arrange(this.element, shown.map((each) => each.element));
  }

  // What has another line beside it: where there is advice, what is advised.
  drawAdvised(pool, times, columns) {
    const advice = pool.autoscale;
    const desired = advice ? [{ name: "recommended", values: columns.desired ?? [], kind: "aim" }] : [];
    const wanted = advice
      ? `ready; ${number(advice.stale ? null : advice.desired)} recommended (dashed)`
      : `ready, of ${number(pool.servers)}`;
    this.cards.servers.draw(number(pool.serving), wanted, times, [line(columns, "ready"), ...desired]);
    const target = advice?.ttft_target_s;
    const targets = known(target) ? [{ name: "target", values: times.map(() => target), kind: "aim" }] : [];
    const aimed = known(target) ? `target ${seconds(target)} (dashed)` : "no target is set";
    this.cards.first_token.draw(seconds(advice?.ttft_p99_s), aimed, times, [line(columns, "ttft_p99_s"), ...targets]);
  }
}

const line = (columns, name) => ({ name, values: columns[name] ?? [], kind: "line" });
