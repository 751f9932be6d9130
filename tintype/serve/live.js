// One script for all live pages, after marks.js. The server renders; this keeps the parts fresh, draws curves and opens images.
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// ---- the event stream ----------------------------------------------------------------------------------------------

const FOCUSED = "a[href], button, select, input, [tabindex='0']";
let stream = null;
const listeners = {};

function connect() {
  const base = document.body.dataset.stream;
  if (!base) return;
  if (stream) stream.close();
  const asked = new URLSearchParams(base.split("?")[1] ?? "");
  if (chart.chosen) asked.set("metrics", [...chart.chosen].join(","));
  if (chart.axis === FLOPS) asked.set("over", "flops");
  stream = new EventSource(base.split("?")[0] + (asked.size ? "?" + asked : ""));
  stream.onopen = () => say(play ? "connected" : "live: this page follows the files");
  stream.onerror = () => say("the server does not answer; trying again …");
  for (const name of Object.keys(listeners)) {
    stream.addEventListener(name, (event) => listeners[name](JSON.parse(event.data)));
  }
}

function say(words) {
  const place = byId("connection");
  if (place && place.textContent !== words) place.textContent = words;
}

listeners.fragments = (parts) => {
  for (const [id, html] of Object.entries(parts)) {
    const place = byId(id);
    if (!place) continue;
    const open = [...place.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...place.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const kept = [...place.querySelectorAll("select, input")].map((one) => one.value);
    const focus = [...place.querySelectorAll(FOCUSED)].indexOf(document.activeElement);
    const images = new Map([...place.querySelectorAll("img")].map((one) => [one.outerHTML, one]));
    place.innerHTML = html; // rendered and escaped by the server; the content policy lets no script run in it
    for (const one of place.querySelectorAll("img")) { // one that is still there is not loaded again
      const before = images.get(one.outerHTML);
      if (before && images.delete(one.outerHTML)) one.replaceWith(before);
    }
    place.querySelectorAll("details").forEach((one, index) => { one.open = open[index] ?? one.open; });
    place.querySelectorAll(".scroll").forEach((one, index) => {
      if (scrolled[index]) [one.scrollLeft, one.scrollTop] = scrolled[index];
    });
    const inputs = [...place.querySelectorAll("select, input")];
    if (inputs.length === kept.length) inputs.forEach((one, index) => { one.value = kept[index]; });
    place.querySelectorAll(".grid-of-images").forEach(showStep);
    if (focus >= 0) [...place.querySelectorAll(FOCUSED)][focus]?.focus();
  }
  if (document.querySelector("#queue [data-over]")) queueLast();
  const unread = document.querySelector("#charts > .quiet"); // curves come after the parts, if there are any
  if (unread && !chart.names.length) unread.textContent = "No curve was logged yet.";
};

// A finished study begins with its verdicts, also where the page was answered before its files were read.
function queueLast() {
  const section = byId("s-queue"), verdicts = byId("s-verdicts");
  if (!verdicts || verdicts.nextElementSibling === section) return;
  verdicts.after(section);
  document.querySelector('a[href="#s-verdicts"]').after(document.querySelector('a[href="#s-queue"]'));
  for (const place of [byId("h-queue"), document.querySelector('a[href="#s-queue"]')]) place.textContent = "Runs";
}

listeners.problem = (words) => {
  const place = byId("problem");
  if (!place) return;
  place.textContent = words;
  place.hidden = !words;
};

// ---- curves --------------------------------------------------------------------------------------------------------

const chart = { chosen: null, names: [], labels: {}, colours: {}, bands: {}, events: [], hidden: new Set(), axis: 0, uncounted: {}, logx: false,
  logy: false, smooth: 0, showEvents: true };
const FLOPS = 5; // the place of a point's operations, counted on the server
const AXES = { 0: { each: "step", all: "steps" }, 1: { each: "second", all: "seconds" }, [FLOPS]: { each: "FLOP", all: "FLOPs" } };
const SIZE = { width: 520, height: 270, left: 52, right: 12, top: 12, bottom: 34 };

listeners.curves = (news) => {
  chart.colours = news.colours ?? chart.colours;
  chart.events = news.events ?? chart.events;
  chart.labels = news.labels ?? chart.labels;
  chart.uncounted = news.uncounted ?? {};
  for (const [name, arms] of Object.entries(news.bands)) {
    chart.bands[name] = { ...chart.bands[name], ...arms };
  }
  if (news.names && news.names.join() !== chart.names.join()) {
    chart.names = news.names;
    chart.chosen ??= new Set(news.shown);
    listMetrics();
  }
  listArms();
  drawCharts();
};

const label = (name) => chart.labels[name] ?? name;

function listMetrics() {
  const place = byId("metrics");
  place.querySelectorAll("label").forEach((one) => one.remove());
  for (const name of chart.names) {
    const box = make("input", { type: "checkbox", value: name });
    box.checked = chart.chosen.has(name);
    box.addEventListener("change", () => {
      if (box.checked) chart.chosen.add(name); else chart.chosen.delete(name);
      connect();
      drawCharts();
    });
    place.append(make("label", {}, box, " " + label(name)));
  }
}

function listArms() {
  const place = byId("legend");
  const arms = Object.keys(chart.colours);
  if (place.dataset.arms === arms.join("\n")) return;
  place.dataset.arms = arms.join("\n");
  place.replaceChildren(...arms.map((arm) => {
    const box = make("input", { type: "checkbox" });
    box.checked = !chart.hidden.has(arm);
    box.addEventListener("change", () => {
      if (box.checked) chart.hidden.delete(arm); else chart.hidden.add(arm);
      drawCharts();
    });
    return make("li", {}, make("label", {}, box, make("span", { class: "swatch " + chart.colours[arm] }), arm));
  }));
}

const shownNumber = (value) => {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace("-", "−");
  return value.toLocaleString("en-GB", { maximumSignificantDigits: 4 }).replace("-", "−");
};

function shownPlace(value) {
  if (chart.axis !== FLOPS || value < 1e6) return shownNumber(value);
  const [size, unit] = [[1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]].find(([one]) => value >= one);
  return `${shownNumber(value / size)} ${unit}`;
}

function sayUncounted() {
  const place = byId("uncounted");
  if (!place) return;
  const waiting = chart.axis === FLOPS && Object.values(chart.bands).some((arms) => Object.entries(arms).some(([arm, band]) => band.length && band[0][FLOPS] === null && !chart.uncounted[arm]));
  const words = Object.entries(chart.uncounted).map(([arm, parts]) => `${arm}: ${parts.join("; ")}`);
  const untimed = chart.axis === 1 && Object.values(chart.bands).some((arms) => Object.values(arms).some((band) => band.length && band[0][1] === null));
  place.hidden = chart.axis !== FLOPS && !untimed;
  place.textContent = untimed ? "A study that is kept without its runs has no seconds of single steps." : "FLOPs are counted from the plan, as tintype plan cost counts them." + (waiting ? " Counting …" : "") + (words.length ? ` ${words.join(". ")}.` : "");
}

function smoothed(band) {
  const keep = chart.smooth;
  if (!keep) return band;
  const state = [null, null, null];
  return band.map((point) => {
    const values = [2, 3, 4].map((at, index) => {
      state[index] = state[index] === null ? point[at] : keep * state[index] + (1 - keep) * point[at];
      return state[index];
    });
    return [point[0], point[1], ...values, point[FLOPS]];
  });
}

function scale(low, high, start, end, log) {
  const [a, b] = log ? [Math.log(low), Math.log(high)] : [low, high];
  const room = b - a || 1;
  const to = (value) => start + (((log ? Math.log(value) : value) - a) / room) * (end - start);
  to.back = (px) => { const at = a + ((px - start) / (end - start)) * room; return log ? Math.exp(at) : at; };
  return to;
}

function ticks(low, high, log) {
  if (log && high / low > 8) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const factor of high / low > 1000 ? [1] : [1, 3]) found.push(factor * 10 ** e);
    }
    return found.filter((tick) => tick >= low && tick <= high);
  }
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function drawCharts() {
  sayUncounted();
  const place = byId("charts");
  const names = chart.names.filter((name) => chart.chosen.has(name));
  const there = new Map([...place.querySelectorAll("figure")].map((one) => [one.dataset.name, one]));
  const figures = names.map((name) => {
    const figure = there.get(name) ?? newFigure(name);
    fill(figure, name);
    return figure;
  });
  const same = figures.length === place.children.length && figures.every((one, index) => place.children[index] === one);
  if (!same) place.replaceChildren(...(figures.length ? figures : [make("p", { class: "quiet" }, "No curve is chosen, or none was logged yet.")]));
}

function newFigure(name) {
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", tabindex: "0" });
  const values = make("p", { class: "values", "aria-live": "polite" });
  const figure = make("figure", { class: "drawn" }, make("figcaption", {}, label(name)), svg, values);
  figure.dataset.name = name;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    point(figure, ((event.clientX - box.left) / box.width) * SIZE.width);
  });
  svg.addEventListener("pointerleave", () => { figure.at = null; point(figure, null); });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -8, ArrowRight: 8 }[event.key];
    if (event.key === "Escape") point(figure, null);
    if (!by) return;
    event.preventDefault();
    point(figure, Math.min(SIZE.width - SIZE.right, Math.max(SIZE.left, (figure.at ?? SIZE.left) + by)));
  });
  return figure;
}

function fill(figure, name) {
  const arms = Object.entries(chart.bands[name] ?? {}).filter(([arm]) => !chart.hidden.has(arm));
  const usable = (p) => Number.isFinite(p[chart.axis]) && (!chart.logx || p[chart.axis] > 0) && (!chart.logy || p[3] > 0);
  const lines = arms.map(([arm, band]) => [arm, smoothed(band).filter(usable)]).filter(([, band]) => band.length);
  const svg = figure.querySelector("svg");
  const title = draw("title");
  const last = lines.map(([arm, band]) => `${arm} ${shownNumber(band.at(-1)[2])}`).join(", ");
  title.textContent = `${label(name)} over ${AXES[chart.axis].all}; newest: ${last || "none"}`;
  figure.lines = lines;
  if (!lines.length) { svg.replaceChildren(title); return; }
  const points = lines.flatMap(([, band]) => band);
  const xs = points.map((p) => p[chart.axis]);
  const span = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  let [x0, x1] = span(xs);
  if (!chart.logx) x0 = 0;
  let [y0, y1] = span(points.flatMap((p) => [p[3], p[4]]));
  const air = (y1 - y0) * 0.05 || Math.abs(y0) * 0.05 || 1;
  if (chart.logy) [y0, y1] = [y0 / 1.05, y1 * 1.05]; else [y0, y1] = [y0 - air, y1 + air];
  const x = scale(x0, x1 === x0 ? x0 + 1 : x1, SIZE.left, SIZE.width - SIZE.right, chart.logx);
  const y = scale(y0, y1, SIZE.height - SIZE.bottom, SIZE.top, chart.logy);
  figure.x = x;
  const parts = [title];
  for (const tick of ticks(y0, y1, chart.logy)) {
    parts.push(draw("line", { class: "grid", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y(tick), y2: y(tick) }));
    parts.push(words(SIZE.left - 6, y(tick) + 4, shownNumber(tick), "end"));
  }
  for (const tick of ticks(x0, x1, chart.logx)) {
    parts.push(words(x(tick), SIZE.height - SIZE.bottom + 15, shownPlace(tick), "middle"));
  }
  parts.push(words(SIZE.width - SIZE.right, SIZE.height - 3, `${AXES[chart.axis].all} →`, "end"));
  if (chart.showEvents && chart.axis === 0) {
    for (const [step, kind, arm] of chart.events) {
      if (step < x0 || step > x1 || chart.hidden.has(arm)) continue;
      const mark = draw("line", { class: "event", x1: x(step), x2: x(step), y1: SIZE.top, y2: SIZE.height - SIZE.bottom });
      const tip = draw("title");
      tip.textContent = `${kind} (${arm}) at step ${step}`;
      mark.append(tip);
      parts.push(mark);
    }
  }
  for (const [arm, band] of lines) {
    const at = (index) => band.map((p) => `${x(p[chart.axis]).toFixed(1)},${y(p[index]).toFixed(1)}`);
    parts.push(draw("g", { class: chart.colours[arm] ?? "arm-0" },
      draw("polygon", { class: "band", points: [...at(4), ...at(3).reverse()].join(" ") }),
      draw("polyline", { class: "curve", points: at(2).join(" ") }),
      ...(band.length === 1 ? [single(x(band[0][chart.axis]), ...[2, 3, 4].map((index) => y(band[0][index])))] : [])));
  }
  const cursor = draw("line", { class: "cursor", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, x1: 0, x2: 0, visibility: "hidden" });
  parts.push(cursor);
  svg.replaceChildren(...parts);
  figure.cursor = cursor;
  point(figure, figure.at ?? null);
}

// A line of one point would not be seen: a dot at the mean, with a bar from the lowest seed to the highest.
function single(x, mean, low, high) {
  return draw("g", { class: "single" }, draw("line", { x1: x, x2: x, y1: low, y2: high }), draw("circle", { class: "mean", cx: x, cy: mean, r: 4 }));
}

function words(x, y, content, anchor) {
  const text = draw("text", { x, y, "text-anchor": anchor, class: "tick" });
  text.textContent = content;
  return text;
}

function point(figure, px) {
  figure.at = px;
  const place = figure.querySelector(".values");
  if (px === null || !figure.x) {
    figure.cursor?.setAttribute("visibility", "hidden");
    place.replaceChildren(...(figure.lines ?? []).slice(0, 8).map(([arm, band]) => value(arm, band.at(-1))));
    return;
  }
  const wanted = figure.x.back(px);
  figure.cursor.setAttribute("x1", px);
  figure.cursor.setAttribute("x2", px);
  figure.cursor.setAttribute("visibility", "visible");
  const nearest = (band) => band.reduce((a, b) => Math.abs(b[chart.axis] - wanted) < Math.abs(a[chart.axis] - wanted) ? b : a);
  place.replaceChildren(make("span", {}, `${AXES[chart.axis].each} ${shownPlace(Math.max(0, Math.round(wanted)))}`),
    ...figure.lines.map(([arm, band]) => value(arm, nearest(band))));
}

function value(arm, p) {
  const range = p[3] !== p[4] ? ` (${shownNumber(p[3])} to ${shownNumber(p[4])})` : "";
  return make("span", {}, make("span", { class: "swatch " + (chart.colours[arm] ?? "arm-0") }), arm + " ", make("b", {}, shownNumber(p[2])), range);
}

const controls = byId("controls");
if (controls) {
  controls.addEventListener("input", () => {
    const counts = chart.axis !== FLOPS && Number(controls.axis.value) === FLOPS;
    chart.axis = Number(controls.axis.value);
    if (counts) connect(); // the server counts when a reader asks
    chart.logx = controls.logx.checked;
    chart.logy = controls.logy.checked;
    chart.smooth = Number(controls.smooth.value);
    chart.showEvents = controls.events.checked;
    drawCharts();
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
}

// ---- images --------------------------------------------------------------------------------------------------------

function stepOf(button, step) {
  const known = Object.keys(JSON.parse(button.dataset.at)).map(Number);
  const steps = known.filter((one) => one <= step);
  return steps.length ? Math.max(...steps) : Math.min(...known);
}

const imageAt = (button, step) => JSON.parse(button.dataset.at)[stepOf(button, step)];

// [start, end, words] of the words of the prompt that the image got wrong; undefined where it was not read
const wrongAt = (button, step) => JSON.parse(button.dataset.wrong ?? "{}")[stepOf(button, step)];

function chosenStep(grid) {
  const steps = grid.dataset.steps.split(",").map(Number);
  const slider = grid.querySelector(".step");
  return steps[slider ? Number(slider.value) : steps.length - 1];
}

function showStep(grid) {
  const step = chosenStep(grid);
  const output = grid.querySelector("output");
  if (output) output.textContent = step.toLocaleString("en-GB");
  for (const button of grid.querySelectorAll(".image")) {
    const source = imageAt(button, step);
    const image = button.querySelector("img");
    if (image.getAttribute("src") !== source) image.setAttribute("src", source);
    const wrong = wrongAt(button, step);
    button.parentElement.querySelector(".read")?.remove();
    if (wrong) button.after(read(button.dataset.prompt, wrong));
  }
}

document.addEventListener("input", (event) => {
  if (event.target.classList.contains("step")) showStep(event.target.closest(".grid-of-images"));
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.classList.contains("image")) zoom(button);
  if (button.classList.contains("wipe-open")) openWipe(button.closest(".grid-of-images"));
});

function zoom(button) {
  const { name, prompt } = button.dataset;
  const grid = button.closest(".grid-of-images");
  const wrong = (grid && wrongAt(button, chosenStep(grid))) ?? [];
  byId("zoom-title").replaceChildren(`${name}: `, ...markedPrompt(prompt, wrong));
  byId("zoom-image").src = button.querySelector("img").src;
  byId("zoom-image").alt = `${name}: ${prompt}`;
  byId("zoom-wrong").replaceChildren(...wrong.map(([start, end, remark]) => make("li", {}, make("b", {}, prompt.slice(start, end)), `: ${remark}`)));
  byId("zoom").showModal();
}

function openWipe(grid) {
  const row = grid.querySelectorAll("tbody tr")[Number(grid.querySelector(".wipe-prompt").value)];
  const cells = row.querySelectorAll("td");
  const [a, b] = ["from", "to"].map((end) => cells[Number(grid.querySelector(`.wipe-${end}`).value)].querySelector(".image"));
  if (!a || !b) return;
  [["a", a], ["b", b]].forEach(([end, button]) => {
    byId(`wipe-${end}`).src = imageAt(button, chosenStep(grid));
    byId(`wipe-${end}`).alt = `${button.dataset.name}: ${button.dataset.prompt}`;
    byId(`wipe-name-${end}`).textContent = button.dataset.name;
  });
  byId("wipe-title").textContent = a.dataset.prompt;
  wipeTo(50);
  byId("wipe").showModal();
}

function wipeTo(share) {
  byId("wipe-at").value = share;
  byId("wipe-b").style.clipPath = `inset(0 0 0 ${share}%)`;
  byId("wipe-line").style.left = `${share}%`;
}

if (byId("wipe")) {
  byId("wipe-at").addEventListener("input", () => wipeTo(Number(byId("wipe-at").value)));
  document.querySelector(".wipe").addEventListener("pointermove", (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    wipeTo(Math.round(Math.min(100, Math.max(0, ((event.clientX - box.left) / box.width) * 100))));
  });
}

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

// ---- playground ----------------------------------------------------------------------------------------------------

const play = byId("play");
let job = null;
const early = {};

async function send(address, content) {
  const answer = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function playProblem(words) {
  byId("play-problem").textContent = words;
  byId("play-problem").hidden = !words;
}

function settings() {
  const given = Object.fromEntries(new FormData(play));
  for (const name of ["seed", "steps", "guidance", "from_t", "to_t", "ema", "count"]) {
    if (name in given) given[name] = Number(given[name]); // a disabled one is not there
  }
  return given;
}

if (play) {
  const client = document.body.dataset.stream.split("/").at(-1);
  play.weights.addEventListener("change", () => { play.ema.disabled = play.weights.value !== "length"; });
  play.addEventListener("submit", async (event) => {
    event.preventDefault();
    playProblem("");
    const given = settings();
    try {
      job = { ...(await send("/play", { client, ...given })), given };
      byId("now").replaceChildren();
      byId("cancel").disabled = false;
      history.replaceState(null, "", "?" + new URLSearchParams(given));
      if (early[job.id]) listeners.play(early[job.id]); // the stream may be faster than the answer
    } catch (error) { playProblem(error.message); }
  });
  byId("cancel").addEventListener("click", () => { if (job) send("/play/stop", { client, id: job.id }).catch((error) => playProblem(error.message)); });

  listeners.play = (news) => {
    if (!job || news.id !== job.id) { early[news.id] = news; return; }
    byId("play-state").textContent = news.words;
    const progress = byId("play-progress");
    progress.hidden = news.state !== "sampling";
    progress.value = news.share;
    news.images.forEach((one, index) => {
      const figure = byId("now").children[index] ?? byId("now").appendChild(make("figure", {}, make("img", {}), make("figcaption")));
      figure.querySelector("img").src = one.source;
      figure.querySelector("img").alt = `${job.given.prompt}, by ${runWords(one.run)}`;
      figure.querySelector("figcaption").textContent = `${runWords(one.run)}, ${one.words}`;
    });
    if (news.state === "failed") playProblem(news.words);
    if (["done", "failed", "stopped"].includes(news.state)) {
      byId("cancel").disabled = true;
      if (news.state === "done") keep(news, job.given);
      job = null;
    }
  };
}

const runWords = (path) => [...play.run.options].find((one) => one.value === path)?.text ?? path;

function sender(client, id, index) {
  const button = make("button", { type: "button", class: "send" }, "send to report");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      button.replaceWith(make("span", { role: "status" }, (await send("/play/pick", { client, id, index })).words));
    } catch (error) { button.disabled = false; playProblem(error.message); }
  });
  return button;
}

function keep(news, given) {
  const link = "?" + new URLSearchParams(given);
  const client = document.body.dataset.stream.split("/").at(-1);
  const figures = news.images.map((one, index) => {
    const open = make("button", { type: "button", class: "image" }, make("img", { src: one.source, alt: `${given.prompt}, by ${runWords(one.run)}` }));
    open.dataset.name = runWords(one.run);
    open.dataset.prompt = given.prompt;
    return make("figure", {}, open, make("figcaption", {}, `${given.prompt} · ${runWords(one.run)}, ${one.words} · `, make("a", { href: link }, "link"), " · ",
      make("a", { href: one.source, download: `tintype-${news.id}.png` }, "save"), " · ", sender(client, news.id, index)));
  });
  byId("gallery").prepend(...figures);
}

connect();
