// Where did the last requests go, why, and how did they end?

function end(cell, row) {
  const [sign, meaning] = OUTCOMES[row.outcome] ?? ["?", "rest"];
  const status = known(row.status) && row.status !== 200 ? ` ${row.status}` : "";
  const took = known(row.duration_s) ? `, ${seconds(row.duration_s)}` : "";
  const elsewhere = row.served && row.served !== row.picked ? ` at ${row.served}` : "";
  signed(cell, sign, `${row.outcome.replace("_", " ")}${status}${took}${elsewhere}`, meaning);
}

const PICK_COLUMNS = [
  { title: "When", number: true, show: plain((row) => `${span(row.age_s)} ago`) },
  { title: "Pool", show: plain((row) => row.pool), shown: (rows) => rows.some((row) => row.pool !== rows[0].pool) },
  { title: "Request", show: plain((row) => [row.path, row.model].filter(Boolean).join(" ")), class: "models" },
  {
    title: "Prompt",
    number: true,
    hint: "tokens, estimated; and those that the server is believed to hold",
    show: plain((row) =>
      known(row.prompt_tokens) ? `${number(row.prompt_tokens)} (${number(row.held_tokens)} held)` : UNKNOWN,
    ),
  },
  { title: "Sent to", show: plain((row) => row.picked), class: "name" },
  { title: "Ended", show: end },
  {
    title: "Why there",
    show: plain((row) => (row.panic ? "every endpoint looked bad; " : "") + row.why),
    class: "why",
  },
];
