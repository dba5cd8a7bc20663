// The controls of the report. Without this script the page shows the same scores as tables and figures.
"use strict";

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  // ---- numbers and elements -------------------------------------------------------------------------------------

  function format(value, decimals, plus, percent) {
    if (percent && Math.abs(Math.round(10 * value) / 10) >= 100) decimals = 0;
    let text = value.toFixed(decimals);
    if (Number(text) === 0) text = text.replace("-", "");
    return (plus && value > 0 && Number(text) !== 0 ? "+" : "") + text.replace("-", "\u2212");
  }

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function drawn(tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function options(select, groups) {
    // groups: [[title or "", [[value, text], ...]], ...]
    for (const [title, choices] of groups) {
      const parent = title ? select.appendChild(element("optgroup", { label: title })) : select;
      for (const [value, text] of choices) parent.append(element("option", { value }, text));
    }
  }

  const seriesOf = new Map(data.series.map((series) => [series.key, series]));
  const numberOf = (key, kind, label, model) => {
    const series = seriesOf.get(key);
    const found = series && series.values[kind] && series.values[kind][data.slices[kind].labels.indexOf(label)];
    return found ? found[data.models.indexOf(model)] : null;
  };

  function fill(cell, series, number, mark) {
    cell.replaceChildren();
    if (!number) return cell.append("–");
    const percent = series.units === "%";
    cell.append(format(number[0], series.decimals, series.signed, percent) + (percent ? " %" : "") + (mark || ""));
    if (number.length > 1) {
      const ends = number.slice(1).map((end) => format(end, series.decimals, false, percent));
      cell.append(" ", element("span", { class: "ci" }, "[" + ends.join(", ") + "]"));
    }
  }

  function sampleText(size) {
    if (!size) return "";
    const many = (count, noun) => count.toLocaleString("en") + " " + noun + (count === 1 ? "" : "s");
    return many(size.n_dates, "start") + ", " + many(size.n_forecasts, "forecast") + ", " + many(size.cells, "cell");
  }

  // ---- tables of one slice --------------------------------------------------------------------------------------

  function setUpSlice() {
    const select = byId("slice"), cells = [...document.querySelectorAll("td[data-series]")];
    const original = cells.map((cell) => [...cell.childNodes].map((node) => node.cloneNode(true)));
    options(select, Object.entries(data.slices).map(([kind, slice]) => [
      kind === "all" ? "" : slice.title, slice.labels.map((label, k) => [kind + "|" + label, slice.titles[k]]),
    ]));
    select.addEventListener("change", () => {
      const [kind, label] = select.value.split("|");
      cells.forEach((cell, k) => {
        if (kind === "all") return cell.replaceChildren(...original[k].map((node) => node.cloneNode(true)));
        const { series, model, mark } = cell.dataset;
        fill(cell, seriesOf.get(series), numberOf(series, kind, label, model), mark);
      });
      for (const row of document.querySelectorAll("tr[data-all-only]")) row.hidden = kind !== "all";
      byId("sample").textContent = sampleText(data.slices[kind].sizes[data.slices[kind].labels.indexOf(label)]);
    });
  }

  // ---- one score over slices ------------------------------------------------------------------------------------

  function setUpExplorer() {
    const score = byId("score"), kind = byId("kind"), chosen = byId("models");
    const groups = new Map();
    for (const series of data.series) {
      if (!groups.has(series.menu)) groups.set(series.menu, []);
      groups.get(series.menu).push([series.key, series.title + (series.units ? " (" + series.units + ")" : "")]);
    }
    options(score, [...groups]);
    const kinds = Object.keys(data.slices).filter((name) => name !== "all");
    options(kind, [["", (kinds.length ? kinds : ["all"]).map((name) => [name, data.slices[name].title])]]);
    score.value = data.default;
    for (const model of data.models) {
      const box = element("input", { type: "checkbox", value: model });
      box.checked = !data.unchecked.includes(model);
      const swatch = element("span", { class: "swatch", style: "background:" + data.colours[model] });
      chosen.append(element("label", { class: "chip" }, box, swatch, model));
    }
    const redraw = () => {
      const series = seriesOf.get(score.value);
      const models = [...chosen.querySelectorAll("input:checked")].map((box) => box.value);
      drawChart(byId("chart"), series, kind.value, models);
      drawTable(byId("explored"), series, kind.value, models);
      byId("meaning").textContent = series.text;
    };
    for (const control of [score, kind, chosen]) control.addEventListener("change", redraw);
    let width = 0;
    new ResizeObserver(() => {
      if (byId("chart").clientWidth !== width) {
        width = byId("chart").clientWidth;
        redraw();
      }
    }).observe(byId("chart"));
    redraw();
  }

  function drawTable(place, series, kind, models) {
    const slice = data.slices[kind];
    const head = element("tr", {}, element("th", { scope: "col" }, slice.title));
    for (const model of models) head.append(element("th", { scope: "col" }, model));
    head.append(element("th", { scope: "col" }, "starts"));
    const body = element("tbody");
    slice.labels.forEach((label, k) => {
      const row = body.appendChild(element("tr", {}, element("th", { scope: "row" }, slice.titles[k])));
      for (const model of models) fill(row.appendChild(element("td")), series, numberOf(series.key, kind, label, model));
      row.append(element("td", {}, slice.sizes[k] ? slice.sizes[k].n_dates.toLocaleString("en") : "–"));
    });
    place.replaceChildren(element("table", {}, element("thead", {}, head), body));
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || 10 * power;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return [found, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
  }

  function drawChart(place, series, kind, models) {
    const slice = data.slices[kind], width = Math.max(280, place.clientWidth);
    const numbers = slice.labels.map((label) => models.map((model) => numberOf(series.key, kind, label, model)));
    const values = numbers.flat().filter(Boolean).flat();
    place.replaceChildren();
    if (!values.length) return place.append(element("p", { class: "note" }, "There is no such number for these models."));
    const ideal = { one: 1, zero: 0 }[series.best];
    const zero = series.signed ? 0 : ideal;
    let low = Math.min(...values, zero ?? Infinity), high = Math.max(...values, zero ?? -Infinity);
    if (!(high > low)) [low, high] = [low - 0.5 * Math.abs(low || 1), high + 0.5 * Math.abs(high || 1)];
    const margin = 0.04 * (high - low);
    [low, high] = [low - margin, high + margin];
    const lines = kind === "lead" && slice.labels.length > 2;
    const title = series.title + " by " + slice.title.toLowerCase();
    (lines ? drawCurves : drawRows)(place, { series, slice, models, numbers, width, low, high, zero, title });
  }

  function canvasOf(place, width, height, title) {
    const svg = drawn("svg", { viewBox: "0 0 " + width + " " + height, width, height, role: "img", "aria-label": title });
    return place.appendChild(svg);
  }

  function drawRows(place, { series, slice, models, numbers, width, low, high, zero, title }) {
    const left = width < 480 ? 84 : 132, right = 14, step = 13;
    const rowHeight = models.length * step + 14, height = slice.labels.length * rowHeight + 34;
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    const svg = canvasOf(place, width, height, title);
    const [marks, digits] = ticks(low, high, width < 480 ? 3 : 6);
    for (const mark of marks) {
      svg.append(drawn("line", { x1: x(mark), x2: x(mark), y1: 0, y2: height - 30, class: "grid" }));
      svg.append(drawn("text", { x: x(mark), y: height - 14, class: "tick", "text-anchor": "middle" }, format(mark, digits)));
    }
    if (zero !== undefined) svg.append(drawn("line", { x1: x(zero), x2: x(zero), y1: 0, y2: height - 30, class: "zero" }));
    slice.labels.forEach((label, row) => {
      const top = row * rowHeight + 7;
      if (row) svg.append(drawn("line", { x1: 0, x2: width, y1: row * rowHeight, y2: row * rowHeight, class: "grid" }));
      svg.append(drawn("text", { x: 0, y: top + (models.length * step) / 2 + 4, class: "label" }, slice.titles[row]));
      models.forEach((model, k) => {
        const number = numbers[row][k], y = top + (k + 0.5) * step;
        if (!number) return;
        const group = svg.appendChild(drawn("g", { style: "color:" + data.colours[model] }));
        if (number.length > 1) {
          group.append(drawn("line", { x1: x(number[1]), x2: x(number[2]), y1: y, y2: y, class: "interval" }));
        }
        group.append(drawn("circle", { cx: x(number[0]), cy: y, r: 4, class: "dot" }));
        group.append(drawn("title", {}, model + ", " + slice.titles[row] + ": " + format(number[0], series.decimals)));
      });
    });
  }

  function drawCurves(place, { series, slice, models, numbers, width, low, high, zero, title }) {
    const left = 54, right = 14, height = Math.min(360, Math.max(240, 0.5 * width)), bottom = height - 34;
    const leads = slice.labels.map(Number), first = Math.min(...leads), last = Math.max(...leads);
    const x = (lead) => left + 8 + ((lead - first) / (last - first)) * (width - left - right - 16);
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - 8);
    const svg = canvasOf(place, width, height, title);
    const [marks, digits] = ticks(low, high, 5);
    for (const mark of marks) {
      svg.append(drawn("line", { x1: left, x2: width - right, y1: y(mark), y2: y(mark), class: "grid" }));
      svg.append(drawn("text", { x: left - 8, y: y(mark) + 4, class: "tick", "text-anchor": "end" }, format(mark, digits)));
    }
    if (zero !== undefined) svg.append(drawn("line", { x1: left, x2: width - right, y1: y(zero), y2: y(zero), class: "zero" }));
    const every = Math.ceil(leads.length / (width < 480 ? 5 : 12));
    leads.forEach((lead, k) => {
      if (k % every) return;
      svg.append(drawn("text", { x: x(lead), y: bottom + 20, class: "tick", "text-anchor": "middle" }, slice.titles[k]));
    });
    models.forEach((model, k) => {
      const group = svg.appendChild(drawn("g", { style: "color:" + data.colours[model] }));
      const points = leads.map((lead, row) => [lead, numbers[row][k]]).filter(([, number]) => number);
      const path = points.map(([lead, number]) => x(lead) + "," + y(number[0])).join(" ");
      group.append(drawn("polyline", { points: path, class: "curve" }));
      for (const [lead, number] of points) {
        if (number.length > 1) {
          group.append(drawn("line", { x1: x(lead), x2: x(lead), y1: y(number[1]), y2: y(number[2]), class: "interval" }));
        }
        const dot = group.appendChild(drawn("circle", { cx: x(lead), cy: y(number[0]), r: 3.5, class: "dot" }));
        dot.append(drawn("title", {}, model + ", +" + lead + " h: " + format(number[0], series.decimals)));
      }
    });
  }

  document.documentElement.classList.add("scripted");
  for (const control of document.querySelectorAll("[data-script]")) control.hidden = false;
  for (const replaced of document.querySelectorAll("[data-static]")) replaced.hidden = true;
  setUpSlice();
  setUpExplorer();
})();
