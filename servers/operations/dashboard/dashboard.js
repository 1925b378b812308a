// The page of one server: draws the status that /events sends. Every text from the server enters the page as text.
"use strict";

const PHASES = ["select", "collect", "lock", "prove", "charge", "validate", "noise", "open", "commit"];
const SHADES = ["select", "collect", "lock", "charge", "validate", "noise", "open", "commit", "prove"];
const ROLES = {
  "aggregator-a": "Aggregation server A",
  "aggregator-b": "Aggregation server B",
  dealer: "Dealer",
};
const VIEWS = { one_server: "One server corrupted", clients_only: "Clients only corrupted" };
const LINKS = { to_peer: "To the other server", from_clients: "From clients", from_dealer: "From the dealer" };
const QUEUES = {
  uploads_receiving: "Uploads coming in",
  uploads_complete: "Uploads held whole",
  uploads_in_file: "Of these, in the spool file",
  events_to_clients: "Events on their way to clients",
  batches_half_dealt: "Batches that one server has asked for",
};
const REASONS = {
  norm_exceeded: "norm above the bound",
  not_connected: "not connected",
  incomplete: "no complete and equal upload at both servers",
  not_chosen: "not chosen for the round",
  wrong_round: "of another round",
  wrong_client: "in another client's name",
  wrong_binding: "binding does not fit",
  wrong_length: "wrong length",
  wrong_digest: "bytes differ from their digest",
  duplicate: "sent twice",
  late: "after the lock",
  malformed: "malformed",
  no_room: "no room on this server",
};
const SHOWN_ROUNDS = 10;
const SHOWN_EVENTS = 8;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const drawnRounds = new Map();
let clockOffset = 0;
let latest = null;
let showsOlder = false;

// -- building blocks ------------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function bar(label, value, limit, kind = "") {
  const share = limit > 0 ? Math.min(1, value / limit) : 0;
  const inner = element("span");
  inner.style.width = `${100 * share}%`;
  return element("div", {
    class: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(100 * share), "data-kind": kind,
  }, inner);
}

const count = (n) => n.toLocaleString("en");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
// An ε above it says nothing: the odds of a guess may change by e^100.
const LARGEST_USEFUL = 100;
const atMost = (epsilon) => {
  if (!Number.isFinite(epsilon)) return "no bound";
  return epsilon > LARGEST_USEFUL ? "no useful bound" : `ε ≤ ${(Math.ceil(epsilon * 100 - 1e-9) / 100).toFixed(2)}`;
};
const isDrawn = (epsilon) => Number.isFinite(epsilon) && epsilon <= LARGEST_USEFUL;
const reason = (name) => (Object.hasOwn(REASONS, name) ? REASONS[name] : name);
const total = (seconds) => Object.values(seconds).reduce((sum, s) => sum + s, 0);

function duration(seconds) {
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function elapsed(seconds) {
  return seconds < 60 ? `${Math.max(0, Math.floor(seconds))} s` : duration(seconds);
}

function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000 || unit === "TB") return `${unit === "B" || value >= 1000 ? Math.round(value) : value.toPrecision(3)} ${unit}`;
    value /= 1000;
  }
  return "";
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const now = () => Date.now() / 1000 + clockOffset;

const compact = (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
const widthOf = (id) => Math.max(260, byId(id).clientWidth);
const figure = (value) => (Math.abs(value) < 1000 ? value.toFixed(3) : compact(value));
const capital = (name) => name.charAt(0).toUpperCase() + name.slice(1);
const small = (value) => (value < 0.001 ? value.toExponential() : String(value));

function show(id, isShown) {
  byId(id).hidden = !isShown;
}

function facts(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// -- sections -------------------------------------------------------------------------------------------------------

function drawHeader(status) {
  const role = Object.hasOwn(ROLES, status.role) ? ROLES[status.role] : status.role;
  byId("role").textContent = role;
  byId("task").textContent = status.task || "no task yet";
  byId("version").textContent = `precad ${status.version}`;
  document.title = `${status.rounds_planned ? `${status.rounds_done}/${status.rounds_planned} · ` : ""}${role} · PRECAD`;
}

function drawBanner(status) {
  const banner = byId("banner");
  let [text, kind] = ["", ""];
  if (status.ended) [text, kind] = [`The task is over: ${status.ended}`, status.is_finished ? "good" : "bad"];
  else if (status.is_draining) text = "This server leaves after the round in flight.";
  if (banner.textContent !== text) banner.textContent = text;
  banner.dataset.kind = kind;
  banner.hidden = text === "";
}

function tile(name, value, note = "", { kind = "", extra = [], isWord = false } = {}) {
  const figure = element("dd", { class: `${kind}${isWord ? " word" : ""}` }, value);
  return element("div", { class: "tile" }, element("dt", {}, name), figure, ...extra,
    ...(note ? [element("dd", { class: "note" }, note)] : []));
}

function absence(status) {
  const named = status.absent.map((one) => `${one.client} since ${clock(one.since)}`);
  const more = status.n_enrolled - status.n_connected - named.length;
  return named.length ? `absent: ${named.join(", ")}${more > 0 ? ` and ${count(more)} more` : ""}` : "";
}

function drawTiles(status) {
  const readiness = status.is_ready ? "ready" : "not ready";
  const waits = waiting(status);
  const since = waits || `${readiness}, in this state for ${elapsed(now() - status.since)}`;
  const kind = status.is_ready && !waits ? "good" : "warn";
  const tiles = [tile("State", status.state, since, { kind, isWord: true })];
  if (status.role === "dealer") {
    tiles.push(tile("Aggregators connected", `${status.n_connected} of ${status.n_enrolled}`));
    tiles.push(tile("Parts of batches dealt", count(status.n_batches_dealt)));
  } else {
    const progress = element("dd", { class: "note" },
      bar("Rounds done", status.rounds_done, status.rounds_planned));
    tiles.push(tile("Rounds done", `${count(status.rounds_done)} of ${count(status.rounds_planned)}`, timeLeft(status),
      { extra: [progress] }));
    tiles.push(tile("Clients connected", `${count(status.n_connected)} of ${count(status.n_enrolled)}`, absence(status)));
    const uploads = status.uploads;
    tiles.push(tile("Uploads accepted", count(uploads.accepted ?? 0),
      `${count(uploads.rejected ?? 0)} rejected, ${count(uploads.missing ?? 0)} missing`
        + (status.checks_norms === false ? "; no norm is checked, and nothing is enforced" : ""),
      { kind: status.checks_norms === false ? "warn" : "" }));
    tiles.push(budgetTile(status));
    const quality = qualityTile(status);
    if (quality) tiles.push(quality);
    if (status.rounds_lost) tiles.push(lostTile(status));
  }
  byId("tiles").replaceChildren(...tiles);
}

// The rounds that every budget allows for certain: a lower bound, since no client need be drawn in each of them.
function budgetTile(status) {
  const left = status.rounds_left_in_budget;
  if (left === null || left === undefined) return tile("Rounds left in the budget", "no budget", "no ε ends this task", { isWord: true });
  const planned = status.rounds_planned - status.rounds_done;
  const note = left >= planned ? "all rounds that are planned" : `at least, of ${count(planned)} planned`;
  return tile("Rounds left in the budget", count(left), note, { kind: left === 0 && planned > 0 ? "warn" : "" });
}

// The latest figure on public or held-out records, with its curve; nothing where models are not measured.
function qualityTile(status) {
  const measured = status.rounds.filter((round) => Object.keys(round.quality ?? {}).length);
  const records = status.evaluation === "clients" ? "clients' held-out records" : "public records";
  const fault = status.measuring_fault ? `latest model not measured: ${status.measuring_fault.replace("_", " ")}` : "";
  if (!measured.length) return fault ? tile("Quality on public records", "none", fault, { kind: "warn", isWord: true }) : null;
  const last = measured[measured.length - 1];
  const names = figureNames(last.quality);
  const name = names.includes("accuracy") ? "accuracy" : names[0];
  const others = names.filter((one) => one !== name).map((one) => `${one} ${withBar(last.quality, one)}`);
  const points = measured.filter((round) => name in round.quality).map((round) => [round.round, round.quality[name]]);
  const bar = errorBar(last.quality, name);
  const note = [...(bar ? [`${bar} at 95 %`] : []), `on ${records}, round ${last.round}`, ...others, ...(fault ? [fault] : [])].join("; ");
  return tile(capital(name), figure(last.quality[name]), note,
    { extra: points.length > 1 ? [element("dd", { class: "note" }, spark(points, name))] : [] });
}

// Names of figures, without the ends of their error bars.
function figureNames(quality) {
  const isEnd = (name) => /_(low|high)$/.test(name) && name.replace(/_(low|high)$/, "") in quality;
  return Object.keys(quality).filter((name) => !isEnd(name));
}

function errorBar(quality, name) {
  const [low, high] = [quality[`${name}_low`], quality[`${name}_high`]];
  return low === undefined || high === undefined ? "" : `[${figure(low)}, ${figure(high)}]`;
}

function withBar(quality, name) {
  return [figure(quality[name]), errorBar(quality, name)].filter(Boolean).join(" ");
}

function spark(points, name) {
  const [width, height, edge] = [200, 36, 3];
  const values = points.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const x = (round) => edge + ((width - 2 * edge) * (round - first)) / Math.max(1, last - first);
  const y = (value) => height - edge - ((height - 2 * edge) * (value - low)) / (high - low || 1);
  const [endX, endY] = [x(last), y(values[values.length - 1])];
  return shape("svg", {
    class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${name} from round ${first} to ${last}: ${figure(values[0])} to ${figure(values[values.length - 1])}, `
      + `between ${figure(low)} and ${figure(high)}`,
  }, shape("polyline", { points: points.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }),
  shape("circle", { cx: endX.toFixed(1), cy: endY.toFixed(1), r: 2.5 }));
}

function lostTile(status) {
  const clients = Object.entries(status.verdicts_unknown);
  const names = clients.slice(0, 5).map(([client, n]) => n > 1 ? `${client} (${n})` : client).join(", ");
  const more = clients.length > 5 ? ` and ${clients.length - 5} more` : "";
  const note = clients.length ? `verdicts unknown of ${names}${more}` : "no check had begun in them";
  return tile("Rounds lost", `${count(status.rounds_lost)} of ${count(status.rounds_lost_at_most)}`, note,
    { kind: clients.length ? "bad" : "warn" });
}

// Rounds in which clients prove nothing have no such phase.
function phasesOf(status) {
  const hasProofs = status.live?.phase === "prove" || status.rounds.some((round) => "prove" in round.seconds);
  return PHASES.filter((phase) => phase !== "prove" || hasProofs);
}

function drawLive(status) {
  const live = status.live;
  show("live", live !== null);
  if (live === null) return;
  byId("live-title").textContent = `Round ${live.round} in flight`;
  const phases = phasesOf(status), at = phases.indexOf(live.phase);
  byId("phases").replaceChildren(...phases.map((phase, i) => {
    const kind = i < at ? "done" : i === at ? "now" : "";
    const item = element("li", { "data-kind": kind }, phase);
    if (kind === "now") item.setAttribute("aria-current", "step");
    return item;
  }));
  const receiving = live.n_receiving ? `, ${live.n_receiving} coming in` : "";
  const proofs = typeof live.n_active === "number" ? `, ${live.n_proved} of ${plural(live.n_active, "proof")}` : "";
  byId("live-text").textContent = live.n_chosen || at > 0
    ? `${plural(live.n_chosen, "client")} chosen, ${live.n_complete} complete${proofs}${receiving}; `
      + `running for ${elapsed(now() - live.began_at)}`
    : "Clients are being drawn.";
  const chips = live.outcomes.length
    ? live.outcomes.map(chip)
    : [...live.waiting_for.map((client) => element("li", { class: "chip" }, `${client}: waiting`)),
      ...live.absent.map((client) => element("li", { class: "chip", "data-verdict": "missing" }, `${client}: not connected`))];
  byId("live-clients").replaceChildren(...chips);
}

function chip(outcome) {
  const text = outcome.reason
    ? `${outcome.client}: ${outcome.verdict}, ${reason(outcome.reason)}`
    : `${outcome.client}: ${outcome.verdict}`;
  return element("li", { class: "chip", "data-verdict": outcome.verdict }, text);
}

// Clients and how they fared, those that were left out most often first.
function drawClients(status) {
  const clients = status.clients ?? [];
  show("clients", clients.length > 0);
  const more = status.n_enrolled - clients.length;
  byId("clients-note").textContent = "Uploads of all committed rounds; those left out most often first"
    + `${more > 0 ? `, ${count(more)} more not shown` : ""}.`;
  byId("clients-rows").replaceChildren(...clients.map((one) => element("tr", {},
    element("th", { scope: "row" }, one.client),
    element("td", { class: one.absent_since === null ? "good" : "warn" },
      one.absent_since === null ? "connected" : clock(one.absent_since)),
    element("td", {}, count(one.accepted)),
    element("td", one.rejected ? { class: "bad" } : {}, count(one.rejected)),
    element("td", one.missing ? { class: "warn" } : {}, count(one.missing)))));
}

// What the status tells of the last minutes, newest first.
function drawHappened(status) {
  const found = status.rounds.filter((round) => round.committed_at !== null).map((round) => {
    const left = [...(round.n_rejected ? [`${round.n_rejected} rejected`] : []), ...(round.n_missing ? [`${round.n_missing} missing`] : [])];
    return [round.committed_at, `Round ${round.round} was committed: ${[`${round.n_accepted} accepted`, ...left].join(", ")}.`];
  });
  for (const one of status.clients ?? []) {
    if (one.absent_since !== null && one.absent_since > status.started_at + 1) found.push([one.absent_since, `${one.client} left.`]);
  }
  if (status.ended) found.push([status.since, `The task ended: ${status.ended}`]);
  found.sort((a, b) => b[0] - a[0]);
  show("happened", found.length > 0);
  byId("happened-list").replaceChildren(...found.slice(0, SHOWN_EVENTS).map(([at, text]) =>
    element("li", {}, element("span", { class: "quiet" }, clock(at)), element("span", {}, text))));
}

// How long the rounds that are left take, by those that this process committed and by what the budgets allow.
function timeLeft(status) {
  const left = status.seconds_left;
  if (left === null || left === undefined) return "";
  return left < 60 ? "less than a minute left" : `about ${duration(left)} left`;
}

// For whom the round in flight waits; then the state is amber, with the seconds that are left.
function waiting(status) {
  const { live } = status;
  if (live === null || live.waits_until === null || live.waits_until === undefined) return "";
  const missing = typeof live.n_active === "number" ? live.n_active - live.n_proved : live.n_chosen - live.n_complete;
  const n = missing - live.absent.length;
  if (n <= 0) return "";
  const seconds = Math.max(0, Math.ceil(live.waits_until - now()));
  return `waits for ${plural(n, "client")}, ${seconds} s at most`;
}

function drawPrivacy(status) {
  show("privacy", status.epsilons.length > 0);
  byId("epsilons").replaceChildren(...status.epsilons.map((epsilon) => epsilonCard(epsilon, status.audit)));
  show("epsilon-figure", status.rounds.length > 1);
  if (status.rounds.length > 1) drawEpsilonChart(status);
}

function epsilonCard(epsilon, audit) {
  const children = [
    element("h3", {}, VIEWS[epsilon.view] ?? epsilon.view),
    ...(epsilon.unit === "client"
      ? [element("p", { class: "quiet" }, `of a whole client${epsilon.is_level ? ", drawn or not" : ""}`)] : []),
    ...(epsilon.group_size > 1
      ? [element("p", { class: "quiet" }, `of ${epsilon.group_size} records of one person`)] : []),
    ...(epsilon.if_discarded === null || epsilon.if_discarded === undefined ? [] : [
      element("p", { class: "big" }, atMost(Number(epsilon.if_discarded))),
      element("p", { class: "quiet" }, "in the end, draws discarded or not"),
    ]),
    element("p", {}, `${atMost(Number(epsilon.spent))} so far, if no draw is discarded`),
  ];
  if (epsilon.budget === null) {
    children.push(element("p", { class: "quiet" }, `no budget set · δ = ${small(epsilon.delta)}`));
  } else {
    const share = epsilon.spent / epsilon.budget;
    const left = Math.max(0, Math.floor((epsilon.budget - epsilon.spent) * 100) / 100).toFixed(2);
    children.push(bar(`Budget spent, ${VIEWS[epsilon.view] ?? epsilon.view}`, epsilon.spent, epsilon.budget,
      share >= 0.95 ? "full" : share >= 0.8 ? "near" : ""));
    children.push(element("p", { class: "quiet" }, `of a budget of ${epsilon.budget}, ${left} left${roundsLeft(epsilon)} · δ = ${small(epsilon.delta)}`));
  }
  if (epsilon.rests_on) children.push(element("p", { class: "quiet" }, `rests on: ${epsilon.rests_on}`));
  if (epsilon.no_bound) children.push(element("p", { class: "quiet" }, epsilon.no_bound));
  children.push(...auditLines(epsilon, audit));
  return element("div", { class: "card epsilon", "data-view": epsilon.is_level ? "client" : epsilon.view }, ...children);
}

const METHODS = { lower: "per round", f_dp: "f-DP in one run", strict: "strict in one run" };

// Lower figures are rounded down, and never drawn as bounds.
function auditLines(epsilon, audit) {
  const found = epsilon.is_level || !audit ? undefined : audit.views.find((one) => one.view === epsilon.view);
  if (found === undefined) return [];
  const label = `audit (${Math.floor(10000 * audit.confidence + 1e-6) / 100} %)`;
  const lower = Object.entries(METHODS).filter(([name]) => Number.isFinite(found[name]))
    .map(([name, how]) => [how, `ε\u00a0≥\u00a0${(Math.floor(found[name] * 100) / 100).toFixed(2)}`]);
  const list = element("dl", { class: "list" });
  facts(list, lower);
  const lines = [
    element("p", { class: "audit" },
      `${label}: what an attack showed, of ${atMost(found.proved)} proved for the same ${plural(found.participation, "round")}`),
    list,
  ];
  if (!audit.passed) lines.push(element("p", { class: "audit", "data-kind": "bad" }, "The audit contradicts what is proved: precad audit privacy says where."));
  return lines;
}

function roundsLeft(epsilon) {
  const left = epsilon.rounds_left;
  if (left === null || left === undefined) return "";
  return `, for ${epsilon.is_level ? plural(left, "more round") : `${plural(left, "more draw")} of a client`}`;
}

function drawEpsilonChart(status) {
  const [width, height, left, bottom, top] = [widthOf("epsilon-chart"), 220, 44, 26, 12];
  const rounds = status.rounds;
  const budgets = status.epsilons.filter((e) => e.budget !== null);
  const ofClient = rounds.filter((r) => isDrawn(r.epsilon_client));
  const peak = Math.max(...rounds.flatMap((r) => Object.values(r.epsilon)).filter(isDrawn), ...budgets.map((e) => e.budget), ...ofClient.map((r) => r.epsilon_client), 1e-9) * 1.05;
  const [first, last] = [rounds[0].round, rounds[rounds.length - 1].round];
  const x = (round) => left + ((width - left - 8) * (round - first)) / Math.max(1, last - first);
  const y = (value) => height - bottom - ((height - bottom - top) * value) / peak;
  const chart = shape("svg", {
    class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": status.epsilons.map((e) => `${VIEWS[e.view] ?? e.view}: ${atMost(Number(e.spent))}`).join("; "),
  });
  for (const value of ticks(peak)) {
    chart.append(
      shape("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, compact(value)),
    );
  }
  chart.append(
    shape("text", { x: left, y: height - 6 }, `round ${first}`),
    shape("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, `round ${last}`),
  );
  for (const view of Object.keys(VIEWS)) {
    const points = rounds.filter((r) => isDrawn(r.epsilon[view])).map((r) => `${x(r.round).toFixed(1)},${y(r.epsilon[view]).toFixed(1)}`);
    chart.append(shape("polyline", { class: `line ${view}`, points: points.join(" ") }));
  }
  if (ofClient.length) {
    const points = ofClient.map((r) => `${x(r.round).toFixed(1)},${y(r.epsilon_client).toFixed(1)}`);
    chart.append(shape("polyline", { class: "line of_client", points: points.join(" ") }));
  }
  for (const { view, budget } of budgets) {
    chart.append(shape("line", { class: `budget ${view}`, x1: left, x2: width - 8, y1: y(budget), y2: y(budget) }));
  }
  byId("epsilon-chart").replaceChildren(chart);
  byId("epsilon-legend").replaceChildren(...Object.entries(VIEWS).map(([view, name]) =>
    element("li", {}, element("span", { class: `key k-${view}` }), name)),
    ...(ofClient.length ? [element("li", {}, element("span", { class: "key k-of_client" }), "A whole client, drawn or not")] : []),
    ...(budgets.length ? [element("li", {}, "dashed: budget")] : []));
}

function ticks(peak) {
  const raw = peak / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let i = 0; i * step <= peak; i += 1) found.push(Number((i * step).toPrecision(6)));
  return found;
}

function drawRounds(status) {
  show("rounds", status.rounds.length > 0);
  const newest = [...status.rounds].reverse().slice(0, showsOlder ? undefined : SHOWN_ROUNDS);
  byId("rounds-note").textContent = status.rounds_done > newest.length
    ? `The latest ${newest.length} of ${count(status.rounds_done)}, newest first.` : "Newest first.";
  show("older", !showsOlder && status.rounds.length > SHOWN_ROUNDS);
  const items = newest.map((round) => {
    const mark = `${round.outcomes.length}/${round.committed_at}/${round.model_digest}/${JSON.stringify(round.quality ?? {})}`;
    const known = drawnRounds.get(round.round);
    if (known && known.mark === mark) return known.node;
    const node = roundItem(round);
    drawnRounds.set(round.round, { mark, node });
    return node;
  });
  for (const round of [...drawnRounds.keys()]) {
    if (round < status.rounds[0]?.round) drawnRounds.delete(round);
  }
  const list = byId("rounds-list");
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) {
    list.replaceChildren(...items);
  }
}

function roundItem(round) {
  const counts = element("span", { class: "counts" },
    element("span", { class: "chip", "data-verdict": "accepted" }, `${round.n_accepted} accepted`));
  if (round.n_rejected) counts.append(element("span", { class: "chip", "data-verdict": "rejected" }, `${round.n_rejected} rejected`));
  if (round.n_missing) counts.append(element("span", { class: "chip", "data-verdict": "missing" }, `${round.n_missing} missing`));
  const bounds = [
    ...(Number.isFinite(round.epsilon_client) ? [round.epsilon_client] : []),
    ...Object.keys(VIEWS).filter((v) => v in round.epsilon).map((v) => round.epsilon[v]),
  ].map((epsilon) => atMost(Number(epsilon)).replace("ε ≤ ", "")).join(" / ");
  const cells = [
    element("strong", {}, String(round.round)),
    element("span", { class: "quiet" }, round.committed_at === null ? "" : clock(round.committed_at)),
    counts,
    element("span", { class: "eps quiet" }, `ε ${bounds}`),
    element("span", { class: "seconds" }, duration(total(round.seconds))),
  ];
  if (!round.outcomes.length) return element("li", {}, element("div", { class: "row" }, ...cells));
  const quality = figureNames(round.quality ?? {}).map((name) => ` · ${name} ${withBar(round.quality, name)}`).join("");
  const hiddenClients = round.n_chosen - round.outcomes.length;
  const inside = element("div", { class: "inside" },
    element("p", { class: "quiet" }, `${plural(round.n_chosen, "client")} chosen · model ${round.model_digest.slice(0, 16)}…${quality}`),
    element("ul", { class: "chips" }, ...round.outcomes.map(chip),
      ...(hiddenClients > 0 ? [element("li", { class: "chip" }, `and ${count(hiddenClients)} more`)] : [])));
  return element("li", {}, element("details", {}, element("summary", {}, ...cells), inside));
}

function drawTimings(status) {
  const rounds = status.rounds.slice(-30);
  show("timings", rounds.length > 0);
  if (!rounds.length) return;
  byId("timings-note").textContent = `${rounds.length === 1 ? "One round" : `The latest ${rounds.length} rounds`}, seconds by phase.`;
  byId("timings-chart").replaceChildren(timingsChart(rounds));
  byId("timings-rows").replaceChildren(...phasesOf(status).map((phase) => {
    const seconds = rounds.map((r) => r.seconds[phase] ?? 0);
    return element("tr", {},
      element("th", { scope: "row" }, element("span", { class: `key f${SHADES.indexOf(phase)}` }), phase),
      element("td", {}, duration(median(seconds))), element("td", {}, duration(Math.max(...seconds))));
  }));
}

function timingsChart(rounds) {
  const [width, height, left, bottom, top] = [widthOf("timings-chart"), 180, 44, 26, 8];
  const peak = Math.max(...rounds.map((r) => total(r.seconds)), 1e-9) * 1.05;
  const slot = (width - left - 8) / Math.max(rounds.length, 8);
  const y = (value) => height - bottom - ((height - bottom - top) * value) / peak;
  const chart = shape("svg", {
    class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Duration of ${rounds.length} rounds; the latest took ${duration(total(rounds[rounds.length - 1].seconds))}`,
  });
  for (const value of ticks(peak)) {
    chart.append(
      shape("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, compact(value)),
    );
  }
  rounds.forEach((round, index) => {
    let base = 0;
    PHASES.forEach((phase) => {
      const seconds = round.seconds[phase] ?? 0;
      const box = { x: left + index * slot + slot * 0.12, width: slot * 0.76, y: y(base + seconds), height: y(base) - y(base + seconds) };
      base += seconds;
      const name = shape("title", {}, `round ${round.round}, ${phase}: ${duration(seconds)}`);
      chart.append(shape("rect", { class: `f${SHADES.indexOf(phase)}`, ...box }, name));
    });
  });
  chart.append(shape("text", { x: left, y: height - 6 }, `round ${rounds[0].round}`));
  if (rounds.length > 1) {
    const end = Math.max(left + 110, left + rounds.length * slot);
    chart.append(shape("text", { x: end, y: height - 6, "text-anchor": "end" }, `round ${rounds[rounds.length - 1].round}`));
  }
  return chart;
}

function drawLists(status) {
  const isDealer = status.role === "dealer";
  show("refused", !isDealer);
  const refused = Object.entries(status.refused).map(([name, n]) => [reason(name), count(n)]);
  facts(byId("refused-list"), refused.length ? refused : [["None since this process began", "0"]]);
  show("traffic", !isDealer);
  const sent = Object.entries(status.bytes).filter(([link, n]) => link !== "from_dealer" || n > 0); // mode proved has none
  const traffic = sent.map(([link, n]) => [LINKS[link] ?? link, size(n)]);
  facts(byId("traffic-list"), traffic.length ? traffic : [["No round yet", "0 B"]]);
  facts(byId("queues-list"), status.queues.map((q) => [QUEUES[q.name] ?? q.name, count(q.depth)]));
  show("checkpoints", status.checkpoints.length > 0);
  const mark = JSON.stringify(status.checkpoints);
  if (byId("checkpoints-list").dataset.mark === mark) return; // whoever is on a link stays there
  byId("checkpoints-list").dataset.mark = mark;
  byId("checkpoints-list").replaceChildren(...status.checkpoints.map((file) => element("li", {},
    element("a", { href: `/checkpoints/${encodeURIComponent(file.name)}`, download: "" }, file.name),
    element("span", { class: "quiet" }, `${size(file.n_bytes)}, ${clock(file.modified_at)}`))));
}

function announce(before, status) {
  if (before === null || status.rounds_done <= before.rounds_done || !status.rounds.length) return;
  const round = status.rounds[status.rounds.length - 1];
  byId("announcer").textContent =
    `Round ${round.round} committed: ${round.n_accepted} accepted, ${round.n_rejected} rejected, ${round.n_missing} missing.`;
}

function draw(status) {
  drawHeader(status);
  drawBanner(status);
  drawTiles(status);
  drawLive(status);
  drawPrivacy(status);
  drawClients(status);
  drawHappened(status);
  drawRounds(status);
  drawTimings(status);
  drawLists(status);
}

// -- the stream -----------------------------------------------------------------------------------------------------

function connection(kind, text) {
  const badge = byId("connection");
  badge.dataset.kind = kind;
  if (badge.textContent !== text) badge.textContent = text;
}

async function afterLoss() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store" });
    if (answer.status === 401) {
      window.location.assign("/login");
      return;
    }
  } catch {
    // the server is gone, for now or for good
  }
  window.setTimeout(listen, 3000);
}

function listen() {
  const events = new EventSource("/events");
  events.onmessage = (event) => {
    const message = JSON.parse(event.data);
    clockOffset = message.now - Date.now() / 1000;
    const before = latest;
    latest = message.status;
    connection("live", "Live");
    draw(latest);
    announce(before, latest);
  };
  events.onerror = () => {
    events.close();
    const hasEnded = latest !== null && latest.ended;
    connection(hasEnded && latest.is_finished ? "over" : "lost", hasEnded ? "Server has ended" : "No connection");
    afterLoss();
  };
}

byId("older").addEventListener("click", () => {
  showsOlder = true;
  drawRounds(latest);
});
window.addEventListener("resize", () => latest !== null && draw(latest));
window.setInterval(() => {
  if (latest === null || byId("connection").dataset.kind !== "live") return;
  drawTiles(latest);
  drawLive(latest);
}, 1000);
listen();
