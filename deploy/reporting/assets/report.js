"use strict";
// Draws the charts of #data into their figures, at the width there is. Text goes in as text, never as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = { solid: "", dashed: "7 4", dotted: "2 3", dashdot: "8 3 2 3" };
  const HEIGHT = 250, TOP = 26, BOTTOM = 40, RIGHT = 14, LETTER = 6.9, ALMOST = 0.9995;

  const make = (name, attributes = {}, text = null) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== null) element.textContent = text;
    return element;
  };
  const html = (name, className, text = null) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== null) element.textContent = text;
    return element;
  };

  // Numbers, as numbers.py writes them.
  const digits = (value) => String(Number(value.toPrecision(3)));
  const grouped = (value, places) =>
    value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  const roundedUp = (value) => {
    if (value === 0) return "0";
    const places = 2 - Math.floor(Math.log10(value));
    if (places < 0) return String(Math.ceil(value / 10 ** -places) * 10 ** -places);
    let text = value.toFixed(places);
    if (Number(text) < value) text = (Number(text) + 10 ** -places).toFixed(places);
    return text;
  };
  const bytes = (value) => {
    for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (value >= size * ALMOST) return `${digits(value / size)} ${unit}`;
    }
    return `${Math.round(value)} B`;
  };
  // An ε above it says nothing (deploy/shown/figures.py).
  const LARGEST_USEFUL = 100;
  const FORMATS = {
    share: (value) => value.toFixed(3),
    epsilon: (value) => (value > LARGEST_USEFUL ? "no useful bound" : roundedUp(value)),
    count: (value) => grouped(value, Number.isInteger(value) ? 0 : 1),
    seconds: (value) => (value >= 100 ? `${grouped(value, 0)} s` : value >= ALMOST ? `${digits(value)} s` : `${digits(value * 1e3)} ms`),
    bytes,
  };
  const AXES = { ...FORMATS, share: digits, epsilon: digits, count: (value) => grouped(value, Number.isInteger(value) ? 0 : 1) };

  // About n round numbers from low to high.
  const ticks = (low, high, n, integers = false) => {
    const raw = (high - low) / Math.max(n, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    let step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) ?? 10);
    if (integers) step = Math.max(1, Math.round(step));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9) || 0; i * step <= high + step * 1e-9; i += 1) found.push(i * step + 0);
    return found;
  };

  // The least distance of neighbours; 1 where there is but one.
  const gap = (xs) => (xs.length > 1 ? Math.min(...xs.slice(1).map((x, i) => x - xs[i])) : 1);

  const swatch = (chart, series) => {
    const icon = make("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" });
    icon.append(
      ["columns", "bars", "intervals"].includes(chart.kind)
        ? make("rect", { class: `fill-${series.colour}`, x: 6, y: 0, width: 12, height: 12, rx: 2 })
        : make("line", { class: `line stroke-${series.colour}`, x1: 0, x2: 26, y1: 6, y2: 6, "stroke-dasharray": DASHES[series.dash] }),
    );
    return icon;
  };

  class Chart {
    constructor(place, chart) {
      Object.assign(this, { place, chart, hidden: { run: new Set(), what: new Set() }, zoom: null, at: null, width: 0 });
      this.plot = html("div", "plot");
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "group");
      this.plot.setAttribute("aria-label", `${chart.title}, a plot. Arrow keys read its values; they are in the table below, too.`);
      this.tip = html("div", "tip");
      this.tip.hidden = true;
      this.tip.setAttribute("role", "status");
      this.reset = html("button", "reset", "Show all");
      this.reset.type = "button";
      this.reset.hidden = true;
      this.reset.addEventListener("click", () => this.zoomTo(null));
      place.append(this.reset, this.plot, this.legend());
      this.plot.append(this.tip);
      this.listen();
      new ResizeObserver(() => this.draw()).observe(place);
    }

    // Buttons for what there is more than one of: runs, by colour; kinds of lines, by dash; or both.
    legend() {
      const { series } = this.chart;
      const runs = [...new Set(series.map(({ run }) => run))], whats = [...new Set(series.map(({ what }) => what))];
      const list = html("div", "legend");
      list.setAttribute("role", "group");
      list.setAttribute("aria-label", "What is shown");
      if (runs.length > 1) for (const run of runs) list.append(this.button("run", run, runs.length, { colour: series.find((one) => one.run === run).colour, dash: "solid" }));
      if (whats.length > 1) {
        if (runs.length > 1) list.append(html("span", "break"));
        for (const what of whats) {
          const one = series.find((found) => found.what === what);
          list.append(this.button("what", what, whats.length, runs.length > 1 ? { colour: "ink", dash: one.dash } : one));
        }
      }
      list.hidden = list.childElementCount === 0;
      return list;
    }

    button(key, name, n, look) {
      const button = html("button", ""), hidden = this.hidden[key];
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(swatch(this.chart, look), html("span", "", name));
      button.addEventListener("click", () => {
        if (hidden.has(name)) hidden.delete(name);
        else if (hidden.size < n - 1) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        this.draw(true);
      });
      return button;
    }

    get shown() {
      return this.chart.series.filter(({ run, what }) => !this.hidden.run.has(run) && !this.hidden.what.has(what));
    }

    // All x of what is shown, within the zoom.
    get xs() {
      const all = new Set(this.shown.flatMap((series) => series.points.map(([x]) => x)));
      const [low, high] = this.zoom ?? [-Infinity, Infinity];
      return [...all].filter((x) => x >= low && x <= high).sort((a, b) => a - b);
    }

    draw(force = false) {
      const width = Math.floor(this.place.clientWidth);
      if (width < 40 || (width === this.width && !force)) return;
      this.width = width;
      this.plot.querySelector("svg")?.remove();
      const svg = this.chart.kind === "bars" ? this.bars(width) : this.axes(width);
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", this.summary());
      this.plot.prepend(svg);
      this.svg = svg;
      this.point(null);
    }

    summary() {
      const { chart } = this;
      const ends = this.shown.map((series) => {
        const known = series.points.filter(([, y]) => y !== null);
        if (chart.kind === "bars") return `${series.name}: ${known.map(([x, y]) => `${chart.categories[x]} ${FORMATS[chart.format](y)}`).join(", ")}`;
        if (chart.kind === "intervals") return `${series.name}: ${known.map((point) => `${this.name(point[0])} ${this.text(series, point)}`).join(", ")}`;
        const last = known.at(-1);
        return last ? `${series.name}: ${FORMATS[chart.format](last[1])} at ${chart.x_label} ${last[0]}` : `${series.name}: no useful bound`;
      });
      return `${chart.title}. ${ends.join("; ")}.`;
    }

    axes(width) {
      const { chart } = this;
      const xs = this.xs, isColumns = chart.kind === "columns", hasRanges = chart.kind === "intervals";
      const spread = isColumns ? gap(xs) : hasRanges ? Math.max(...this.shown.map((series) => gap(series.points.map(([x]) => x)))) : 0;
      let low = this.zoom ? this.zoom[0] : xs[0] ?? 0, high = this.zoom ? this.zoom[1] : xs.at(-1) ?? 1;
      [low, high] = [low - spread / 2, high + spread / 2];
      if (low === high) [low, high] = [low - 0.5, high + 0.5];
      const top = this.top(xs), floor = this.floor(xs);
      const marks = ticks(floor, top, 5, chart.format === "count");
      const names = marks.map(AXES[chart.format]);
      const left = 10 + LETTER * Math.max(...names.map((name) => name.length));
      const right = width - RIGHT, bottom = HEIGHT - BOTTOM;
      this.x = (x) => left + ((x - low) / (high - low)) * (right - left);
      this.inverse = (at) => low + ((at - left) / (right - left)) * (high - low);
      this.y = (y) => bottom - ((y - floor) / (top - floor)) * (bottom - TOP);
      Object.assign(this, { left, right, bottom });
      const svg = make("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT });
      svg.append(make("text", { x: 0, y: 12 }, chart.y_label));
      marks.forEach((mark, i) => {
        svg.append(make("line", { class: "grid", x1: left, x2: right, y1: this.y(mark), y2: this.y(mark) }));
        svg.append(make("text", { x: left - 7, y: this.y(mark) + 4, "text-anchor": "end" }, names[i]));
      });
      svg.append(make("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
      if (floor < 0) svg.append(make("line", { class: "axis", x1: left, x2: right, y1: this.y(0), y2: this.y(0) }));
      const n = Math.max(2, Math.min(10, Math.floor((right - left) / 60)));
      for (const mark of ticks(low, high, n, !hasRanges)) {
        svg.append(make("line", { class: "axis", x1: this.x(mark), x2: this.x(mark), y1: bottom, y2: bottom + 4 }));
        svg.append(make("text", { x: this.x(mark), y: bottom + 17, "text-anchor": "middle" }, hasRanges ? String(Number(mark.toPrecision(6))) : grouped(mark, 0)));
      }
      svg.append(make("text", { x: (left + right) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, chart.x_label));
      const body = make("g");
      if (isColumns) this.columns(body, xs, Math.max(1, this.x(low + spread) - this.x(low)));
      else if (hasRanges) this.intervals(body, new Set(xs));
      else for (const series of [...this.shown].reverse()) this.line(body, series, new Set(xs));
      this.marks = make("g");
      svg.append(body, this.marks);
      return svg;
    }

    // Where the y axis ends: at what is given, or above the largest value that is shown.
    top(xs) {
      if (this.chart.y_max !== null) return this.chart.y_max;
      const within = new Set(xs);
      const values = this.shown.map((series) => new Map(series.points));
      const heights = this.chart.kind === "columns"
        ? xs.map((x) => values.reduce((sum, map) => sum + (map.get(x) ?? 0), 0))
        : this.chart.kind === "intervals" ? this.ends(within) : values.flatMap((map) => [...map].filter(([x, y]) => within.has(x) && y !== null).map(([, y]) => y));
      const most = heights.reduce((a, b) => Math.max(a, b), 0);
      return most > 0 ? most * 1.06 : 1;
    }

    // Where the y axis begins: at zero, or below the lowest error bar.
    floor(xs) {
      return this.chart.kind === "intervals" ? Math.min(0, ...this.ends(new Set(xs))) * 1.06 : 0;
    }

    // Both ends of every error bar that is shown.
    ends(within) {
      return this.shown.flatMap((series) => series.band.filter(([x]) => within.has(x)).flatMap(([, low, high]) => [low, high]));
    }

    // A column from zero, as wide as its range, and its error bar; those of several runs stand a little apart.
    intervals(body, within) {
      const shown = this.shown;
      shown.forEach((series, i) => {
        const pitch = this.x(gap(series.points.map(([x]) => x))) - this.x(0);
        const width = Math.max(1, pitch * 0.84), cap = Math.min(4, width / 3), apart = Math.min(6, width / (shown.length + 1));
        const bars = new Map(series.band.map(([x, low, high]) => [x, [low, high]]));
        for (const [x, y] of series.points.filter(([x]) => within.has(x))) {
          const middle = this.x(x), at = middle + (i - (shown.length - 1) / 2) * apart, [zero, end] = [this.y(0), this.y(y)];
          const place = { x: middle - width / 2, y: Math.min(zero, end), width, height: Math.abs(zero - end) };
          body.append(make("rect", { class: `bin fill-${series.colour}`, ...place }));
          const [low, high] = bars.get(x).map((value) => this.y(value));
          const path = `M${at} ${low}V${high}M${at - cap} ${low}h${2 * cap}M${at - cap} ${high}h${2 * cap}`;
          body.append(make("path", { class: `bar stroke-${series.colour}`, d: path }));
        }
      });
    }

    line(body, series, within) {
      const isStepped = this.chart.kind === "steps";
      const band = series.band.filter(([x]) => within.has(x));
      if (band.length > 1) {
        const upper = band.map(([x, , y]) => `${this.x(x)},${this.y(y)}`);
        const lower = band.map(([x, y]) => `${this.x(x)},${this.y(y)}`).reverse();
        body.append(make("polygon", { class: `band fill-${series.colour}`, points: [...upper, ...lower].join(" ") }));
      }
      let path = "", before = null;
      const known = series.points.filter(([x]) => within.has(x));
      for (const [x, y] of known) {
        if (y === null) { before = null; continue; }
        const [px, py] = [this.x(x).toFixed(2), this.y(y).toFixed(2)];
        if (before === null) path += `M${px} ${py}`;
        else path += isStepped ? `V${py}H${px}` : `L${px} ${py}`;
        before = y;
      }
      if (isStepped) path = this.steps(known);
      body.append(make("path", { class: `line stroke-${series.colour}`, d: path, "stroke-dasharray": DASHES[series.dash] }));
      if (isStepped || (known.length <= 15 && series.dash === "solid") || known.length === 1) {
        for (const [x, y] of known) {
          if (y !== null) body.append(make("circle", { class: `dot fill-${series.colour}`, cx: this.x(x), cy: this.y(y), r: 3.4 }));
        }
      }
    }

    // A level holds from its x up to the next one.
    steps(known) {
      let path = "";
      known.forEach(([x, y], i) => {
        const [px, py] = [this.x(x).toFixed(2), this.y(y).toFixed(2)];
        path += i === 0 ? `M${px} ${py}` : `H${px}V${py}`;
      });
      return path;
    }

    columns(body, xs, pitch) {
      const width = Math.max(1, pitch * 0.78), base = new Map();
      for (const series of this.shown) {
        const found = new Map(series.points);
        for (const x of xs) {
          const from = base.get(x) ?? 0, to = from + (found.get(x) ?? 0);
          base.set(x, to);
          if (to > from) {
            const place = { x: this.x(x) - width / 2, y: this.y(to), width, height: this.y(from) - this.y(to) };
            body.append(make("rect", { class: `column fill-${series.colour}`, ...place }));
          }
        }
      }
    }

    bars(width) {
      const { chart } = this, shown = this.shown;
      const names = chart.categories, thick = 14, gap = 11;
      const left = 8 + LETTER * Math.max(...names.map((name) => name.length));
      const most = Math.max(...shown.flatMap((series) => series.points.map(([, y]) => y ?? 0)), 1e-12);
      const longest = Math.max(0, ...shown.flatMap((series) => series.points.map(([, y]) => FORMATS[chart.format](y ?? 0).length)));
      const right = width - 8 - LETTER * longest, group = shown.length * thick + gap;
      const height = 8 + names.length * group;
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height });
      names.forEach((name, row) => {
        const y = 6 + row * group;
        svg.append(make("text", { x: left - 8, y: y + (shown.length * thick) / 2 + 4, "text-anchor": "end" }, name));
        shown.forEach((series, i) => {
          const value = new Map(series.points).get(row) ?? 0;
          const length = (value / most) * (right - left);
          const place = { x: left, y: y + i * thick, width: Math.max(length, 1), height: thick - 1.5, rx: 1.5 };
          svg.append(make("rect", { class: `fill-${series.colour}`, ...place }));
          svg.append(make("text", { class: "value", x: left + length + 5, y: y + i * thick + thick / 2 + 3.5 }, FORMATS[chart.format](value)));
        });
      });
      svg.append(make("line", { class: "axis", x1: left, x2: left, y1: 2, y2: height - 2 }));
      this.x = null;
      return svg;
    }

    // Reads the values at the x with that number among xs; null: nothing.
    point(number) {
      const xs = this.xs;
      this.at = number === null || xs.length === 0 ? null : Math.max(0, Math.min(xs.length - 1, number));
      this.marks?.replaceChildren();
      this.tip.hidden = this.at === null;
      if (this.at === null) return;
      const x = xs[this.at], { chart } = this;
      this.marks.append(make("line", { class: "cursor", x1: this.x(x), x2: this.x(x), y1: TOP, y2: this.bottom }));
      const rows = [html("p", "", `${chart.x_label} ${this.name(x)}`)];
      for (const series of this.shown) {
        const found = series.points.find(([other]) => other === x);
        if (!found) continue;
        const row = html("p", "");
        row.append(swatch(chart, series), html("span", "", series.name), html("b", "", this.text(series, found)));
        rows.push(row);
        if (found[1] !== null && chart.kind !== "columns" && chart.kind !== "intervals") {
          this.marks.append(make("circle", { class: `dot fill-${series.colour}`, cx: this.x(x), cy: this.y(found[1]), r: 4.5 }));
        }
      }
      this.tip.replaceChildren(...rows);
      const at = this.x(x), room = this.tip.offsetWidth;
      const side = at + 12 + room <= this.width ? at + 12 : at - 12 - room;
      this.tip.style.left = `${Math.max(0, Math.min(side, this.width - room))}px`;
    }

    // The name of an x: its range, or its number.
    name(x) {
      if (this.chart.kind !== "intervals") return grouped(x, 0);
      const all = new Set(this.chart.series.flatMap((series) => series.points.map(([other]) => other)));
      return this.chart.categories[[...all].sort((a, b) => a - b).indexOf(x)];
    }

    // What a series says at a point, in words of the table.
    text(series, [x, y]) {
      const format = FORMATS[this.chart.format];
      if (y === null) return "no useful bound";
      if (this.chart.kind !== "intervals") return format(y);
      const [, low, high] = series.band.find(([other]) => other === x);
      return `${format(y)} [${format(low)}, ${format(high)}]`;
    }

    nearest(event) {
      const at = event.clientX - this.plot.getBoundingClientRect().left, xs = this.xs;
      let best = 0;
      xs.forEach((x, i) => { if (Math.abs(this.x(x) - at) < Math.abs(this.x(xs[best]) - at)) best = i; });
      return best;
    }

    zoomTo(range) {
      this.zoom = range;
      this.reset.hidden = range === null;
      this.draw(true);
    }

    listen() {
      if (this.chart.kind === "bars") return;
      let start = null;
      const place = (event) => Math.max(this.left, Math.min(this.right, event.clientX - this.plot.getBoundingClientRect().left));
      this.plot.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse" && event.button === 0) {
          start = place(event);
          this.plot.setPointerCapture(event.pointerId);
        } else this.point(this.nearest(event));
      });
      this.plot.addEventListener("pointermove", (event) => {
        this.point(this.nearest(event));
        if (start === null) return;
        const [from, to] = [start, place(event)].sort((a, b) => a - b);
        this.marks.append(make("rect", { class: "selection", x: from, y: TOP, width: to - from, height: this.bottom - TOP }));
      });
      this.plot.addEventListener("pointerup", (event) => {
        if (start === null) return;
        const [from, to] = [start, place(event)].sort((a, b) => a - b);
        start = null;
        const ends = [this.inverse(from), this.inverse(to)];
        const range = this.chart.kind === "intervals" ? ends : [Math.ceil(ends[0]), Math.floor(ends[1])];
        if (to - from > 8 && range[1] > range[0]) this.zoomTo(range);
      });
      this.plot.addEventListener("pointercancel", () => { start = null; });
      this.plot.addEventListener("dblclick", () => this.zoomTo(null));
      this.plot.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "mouse" && start === null && document.activeElement !== this.plot) this.point(null);
      });
      this.plot.addEventListener("blur", () => this.point(null));
      this.plot.addEventListener("keydown", (event) => {
        const last = this.xs.length - 1, now = this.at;
        const to = { ArrowRight: now === null ? 0 : now + 1, ArrowLeft: now === null ? last : now - 1, Home: 0, End: last, Escape: null }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        if (event.key === "Escape") this.zoomTo(null);
        this.point(to);
      });
    }
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  for (const place of document.querySelectorAll("[data-chart]")) new Chart(place, data[place.dataset.chart]);
})();
