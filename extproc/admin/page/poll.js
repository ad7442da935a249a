// What is now? Asks the service again and again, and says so when it does not answer.

const EVERY_MS = 2000;
const PATIENCE_MS = 10000;

const pools = new Map();
const picks = new Grid("Recent picks", PICK_COLUMNS);
byId("picks-table").replaceWith(picks.table);
const warningLines = [];
const warningList = make("ul");
const calm = make("p", { class: "calm" });
signed(calm, "✓", "Nothing to warn of.", "good");
let past = { times: [], pools: {} };
let heard = null; // when it answered last
let paused = false;
let timer = null;
let asking = false;

// Joins what is new to what is known of the last hour.
function remember(news) {
  const { times } = past;
  const end = news.times.length ? news.times[0] : Infinity;
  const keep = times.map((time, i) => i).filter((i) => times[i] >= (news.from ?? Infinity) && times[i] < end);
  const joined = { times: [...keep.map((i) => times[i]), ...news.times], pools: {} };
  const join = (old, fresh) => [
    ...keep.map((i) => old?.[i] ?? null),
    ...(fresh ?? news.times.map(() => null)),
  ];
  for (const name of new Set([...Object.keys(past.pools), ...Object.keys(news.pools)])) {
    const [old, fresh] = [past.pools[name] ?? {}, news.pools[name] ?? {}];
    const columns = { asked: {} };
    for (const key of new Set([...Object.keys(old), ...Object.keys(fresh)])) {
      if (key !== "asked") columns[key] = join(old[key], fresh[key]);
    }
    for (const key of new Set([...Object.keys(old.asked ?? {}), ...Object.keys(fresh.asked ?? {})])) {
      columns.asked[key] = join(old.asked?.[key], fresh.asked?.[key]);
    }
    joined.pools[name] = columns;
  }
  past = joined;
}

function draw(shown) {
  setText(byId("version"), shown.version);
  signed(byId("ready"), shown.ready ? "●" : "◌", shown.ready ? "ready" : "not ready", shown.ready ? "good" : "bad");
  const { picks: made, in_flight } = shown.requests;
  setText(byId("since"), `up ${span(shown.uptime_s)} · ${number(made)} picks · ${number(in_flight)} in flight`);
  drawWarnings(shown.warnings);
  const names = shown.pools.map((each) => each.name);
  for (const name of pools.keys()) if (!names.includes(name)) pools.delete(name);
  for (const pool of shown.pools) {
    if (!pools.has(pool.name)) pools.set(pool.name, new PoolView(pool));
    pools.get(pool.name).draw(pool, { times: past.times, columns: past.pools[pool.name] ?? {} });
  }
  arrange(byId("pools"), names.map((name) => pools.get(name).element));
  picks.draw(shown.picks.map((each, i) => ({ ...each, key: String(i) })));
  byId("picks").hidden = shown.picks.length === 0;
  const loud = shown.warnings.filter((each) => each.level !== "note").length;
  document.title = `${loud ? `(${loud}) ` : ""}extproc`;
}

function drawWarnings(warnings) {
  const place = byId("warnings");
  const lines = warnings.map(({ level, text }, i) => {
    const line = (warningLines[i] ??= warningLine());
    const [sign, meaning] = LEVELS[level] ?? LEVELS.warning;
    setAttributes(line.element, { class: meaning });
    setAttributes(line.sign, { class: `sign ${meaning}` });
    setText(line.sign, sign);
    setText(line.level, `${level}: `);
    setText(line.text, text);
    return line.element;
  });
  arrange(warningList, lines);
  arrange(place, [lines.length ? warningList : calm]);
}

function warningLine() {
  const [sign, level, text] = [make("span", { "aria-hidden": "true" }), make("strong"), make("span")];
  return { element: make("li", {}, sign, make("span", {}, level, text)), sign, level, text };
}

async function ask() {
  if (asking) return;
  asking = true;
  try {
    const last = past.times[past.times.length - 1];
    const url = `status.json${known(last) ? `?since=${last}` : ""}`;
    const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`it answers ${answer.status} ${answer.statusText}`);
    const shown = await answer.json();
    remember(shown.history);
    draw(shown);
    heard = Date.now() / 1000;
    byId("away").hidden = true;
    document.body.classList.remove("old");
    setText(byId("fresh"), `as of ${clock(heard)}`);
  } catch (error) {
    const since = heard === null ? "" : ` Shown is what it said at ${clock(heard)}.`;
    const again = `It is asked again every ${EVERY_MS / 1000} s.`;
    setText(byId("away"), `The service does not answer (${error.message}).${since} ${again}`);
    byId("away").hidden = false;
    document.body.classList.add("old");
  } finally {
    asking = false;
  }
}

async function again() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  await ask();
  clearTimeout(timer);
  timer = setTimeout(again, EVERY_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  setAttributes(byId("pause"), { "aria-pressed": paused });
  again();
});
document.addEventListener("visibilitychange", again);
again();
