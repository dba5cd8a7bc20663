// The controls of the report. Without this script the page shows the same scores as tables and figures.
"use strict";

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const COAST = 0xff333333, MISSING = 0x40808080; // alpha, blue, green, red

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

  // ---- map ------------------------------------------------------------------------------------------------------

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function fieldOf(map) {
    // Differences of neighbouring cells modulo 2^32: all lowest bytes, then the next ones; the largest number is no value.
    const bytes = await inflate(map.data), count = bytes.length / 4, field = new Float64Array(count);
    for (let k = 0, sum = 0; k < count; k++) {
      const low = bytes[k] + 256 * bytes[count + k], high = bytes[2 * count + k] + 256 * bytes[3 * count + k];
      sum = (sum + low + 65536 * high) % 4294967296;
      field[k] = sum === 4294967295 ? NaN : (map.first + sum) / map.per;
    }
    return field;
  }

  function nearest(sorted, value) {
    // Index of the nearest number in an increasing list.
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] > value) high = middle; else low = middle;
    }
    return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
  }

  function projectionOf(grid) {
    const rad = Math.PI / 180;
    if (grid.globe) {
      return {
        aspect: 0.5,
        place(u, v) {
          // Mollweide; u and v from -1 to 1, west to east and south to north.
          const theta = Math.asin(v), latitude = Math.asin((2 * theta + Math.sin(2 * theta)) / Math.PI) / rad;
          const longitude = (180 * u) / Math.cos(theta);
          return Math.abs(longitude) <= 180 ? [latitude, longitude] : null;
        },
        plane(latitude, longitude) {
          let theta = latitude * rad;
          for (let k = 0; k < 30; k++) {
            const slope = 2 + 2 * Math.cos(2 * theta);
            if (slope < 1e-9) break;
            theta -= (2 * theta + Math.sin(2 * theta) - Math.PI * Math.sin(latitude * rad)) / slope;
          }
          return [(longitude / 180) * Math.cos(theta), Math.sin(theta)];
        },
      };
    }
    const [south, north, west, east] = grid.limits, middle = Math.cos(((south + north) / 2) * rad);
    return {
      aspect: Math.min(1.2, (north - south) / ((east - west) * Math.max(middle, 0.1))),
      place: (u, v) => [south + ((v + 1) / 2) * (north - south), west + ((u + 1) / 2) * (east - west)],
      plane: (latitude, longitude) => [
        (2 * (longitude - west)) / (east - west) - 1, (2 * (latitude - south)) / (north - south) - 1,
      ],
    };
  }

  function setUpMap() {
    const maps = data.maps;
    if (!maps || typeof DecompressionStream === "undefined") return;
    byId("map").hidden = document.querySelector("[href='#map']").parentElement.hidden = false;
    const grid = maps.grid, projection = projectionOf(grid), canvas = byId("map-canvas"), readout = byId("map-value");
    // A map of a region is not taller than a screen.
    for (const part of [canvas, byId("map-bar"), byId("map-ends")]) part.style.maxWidth = 44 / projection.aspect + "rem";
    const selects = { field: byId("map-field"), model: byId("map-model"), lead: byId("map-lead") };
    options(selects.field, [["", maps.fields.map((field) => [field.key, field.title])]]);
    options(selects.model, [["", maps.models.map((model) => [model, model])]]);
    options(selects.lead, [["", maps.leads.map((lead) => [lead, "+" + lead + " h"])]]);
    selects.model.value = data.best;
    selects.lead.value = String(maps.leads[maps.leads.length - 1]);
    selects.lead.parentElement.hidden = maps.leads.length < 2;
    const columns = grid.longitudes.length, rows = grid.points ? 1 : grid.latitudes.length;
    const latitudes = grid.points ? [] : [...grid.latitudes].map((value, k) => [value, k]).sort((a, b) => a[0] - b[0]);
    const ascending = latitudes.map(([value]) => value);
    const eastward = (value) => (((value - grid.west) % 360) + 360) % 360 + grid.west;
    const longitudes = grid.points ? [] : grid.longitudes.map((value, k) => [eastward(value), k]).sort((a, b) => a[0] - b[0]);
    const rising = longitudes.map(([value]) => value);
    let field = null, shown = null, scale = null, cursor = 0, order = 0, lookup = { width: 0 }, drawn = null;

    function cellAt(u, v) {
      const place = projection.place(u, v);
      if (!place) return null;
      if (grid.points) {
        let best = null, least = 0.06;
        grid.longitudes.forEach((longitude, k) => {
          const [x, y] = projection.plane(grid.latitudes[k], longitude);
          const far = Math.hypot(x - u, (y - v) * projection.aspect);
          if (far < least) [best, least] = [k, far];
        });
        return best;
      }
      const row = latitudes[nearest(ascending, place[0])][1];
      const around = eastward(place[1]);
      let column = nearest(rising, around);
      if (grid.globe && Math.abs(rising[0] + 360 - around) < Math.abs(rising[column] - around)) column = 0;
      return row * columns + longitudes[column][1];
    }

    function cellsOf(width, height) {
      // The cell of every pixel, -1 outside the map, and whether a coast passes between the pixel and its neighbours.
      const cells = new Int32Array(width * height).fill(-1), coast = new Uint8Array(width * height), land = maps.land;
      for (let j = 0, k = 0; j < height; j++) {
        const v = 1 - (2 * (j + 0.5)) / height;
        for (let i = 0; i < width; i++, k++) {
          const cell = cellAt((2 * (i + 0.5)) / width - 1, v);
          if (cell === null) continue;
          cells[k] = cell;
          const beside = [i ? cells[k - 1] : -1, j ? cells[k - width] : -1];
          if (land && beside.some((other) => other >= 0 && land[other] !== land[cell])) coast[k] = 1;
        }
      }
      return { width, cells, coast };
    }

    function colour(value) {
      const position = (scale.log ? Math.log(value) : value) - scale.low;
      const k = Math.max(0, Math.min(255, Math.floor((256 * position) / (scale.high - scale.low))));
      return maps.colours[scale.cmap][k];
    }

    function draw() {
      // Draws the field; `drawCursor` draws the chosen cell over it.
      const width = Math.max(1, Math.round(canvas.clientWidth * Math.min(2, window.devicePixelRatio || 1)));
      const height = Math.max(1, Math.round(width * projection.aspect));
      canvas.width = width;
      canvas.height = height;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      if (grid.points) {
        if (maps.coast) drawCoast(context, width, height);
        drawPoints(context, width, height);
      } else drawCells(context, width, height);
      drawn = context.getImageData(0, 0, width, height);
      drawCursor();
    }

    function drawCells(context, width, height) {
      if (lookup.width !== width) lookup = cellsOf(width, height);
      const picture = context.createImageData(width, height), pixels = new Uint32Array(picture.data.buffer);
      const table = maps.packed[scale.cmap];
      for (let k = 0; k < pixels.length; k++) {
        const cell = lookup.cells[k], value = cell < 0 ? 0 : field[cell];
        if (cell < 0) continue;
        const position = ((scale.log ? Math.log(value) : value) - scale.low) / (scale.high - scale.low);
        const missing = Number.isNaN(position);
        pixels[k] = lookup.coast[k] ? COAST : missing ? MISSING : table[Math.max(0, Math.min(255, Math.floor(256 * position)))];
      }
      context.putImageData(picture, 0, 0);
      if (maps.coast) drawCoast(context, width, height);
    }

    function drawCoast(context, width, height) {
      const { degrees, ends } = maps.coast, count = degrees.length / 2;
      context.beginPath();
      for (let k = 0, line = 0, before = null; k < count; k++) {
        if (k === ends[line]) [line, before] = [line + 1, null];
        const [u, v] = projection.plane(degrees[count + k], degrees[k]);
        const x = ((u + 1) / 2) * width, y = ((1 - v) / 2) * height;
        // A step across the whole globe is the seam at the date line, not a coast.
        const seam = before !== null && grid.globe && Math.abs(degrees[k] - before) > 180;
        if (before === null || seam) context.moveTo(x, y); else context.lineTo(x, y);
        before = degrees[k];
      }
      context.strokeStyle = grid.points ? "#808080" : "#333";
      context.lineWidth = 0.8 * Math.min(2, window.devicePixelRatio || 1);
      context.stroke();
    }

    function drawPoints(context, width, height) {
      const radius = Math.max(2, Math.min(9, 60 / Math.sqrt(columns))) * Math.min(2, window.devicePixelRatio || 1);
      grid.longitudes.forEach((longitude, k) => {
        const [x, y] = projection.plane(grid.latitudes[k], longitude);
        context.beginPath();
        context.arc(((x + 1) / 2) * width, ((1 - y) / 2) * height, radius, 0, 2 * Math.PI);
        context.strokeStyle = "#808080";
        if (!Number.isNaN(field[k])) {
          context.fillStyle = colour(field[k]);
          context.fill();
        }
        context.stroke();
      });
    }

    function placeOf(cell) {
      if (grid.points) return [grid.latitudes[cell], grid.longitudes[cell]];
      return [grid.latitudes[Math.floor(cell / columns)], grid.longitudes[cell % columns]];
    }

    function drawCursor() {
      const { width, height } = canvas, context = canvas.getContext("2d");
      context.putImageData(drawn, 0, 0);
      const [latitude, longitude] = placeOf(cursor);
      const [u, v] = projection.plane(latitude, grid.globe ? ((longitude + 540) % 360) - 180 : eastward(longitude));
      const x = ((u + 1) / 2) * width, y = ((1 - v) / 2) * height, ratio = Math.min(2, window.devicePixelRatio || 1);
      for (const [style, line] of [["#fff", 4], ["#000", 2]]) {
        context.strokeStyle = style;
        context.lineWidth = line * ratio;
        context.beginPath();
        context.arc(x, y, 7 * ratio, 0, 2 * Math.PI);
        context.stroke();
      }
    }

    function tell() {
      const [latitude, longitude] = placeOf(cursor), east = ((longitude + 540) % 360) - 180, value = field[cursor];
      const name = grid.names && grid.names[cursor] ? grid.names[cursor] + ", " : "";
      const degrees = (number, positive, negative) =>
        format(Math.abs(number), 2).replace(/\.?0+$/, "") + "° " + (number < 0 ? negative : positive);
      const where = name + degrees(latitude, "N", "S") + ", " + degrees(east, "E", "W");
      const unit = shown.units ? " " + shown.units : "";
      const text = Number.isNaN(value) ? "no value" : format(value, shown.decimals, shown.signed) + unit;
      readout.replaceChildren(element("b", {}, text), " at " + where);
    }

    async function choose() {
      const number = ++order;
      let model = selects.model.value;
      const kind = maps.fields.find((one) => one.key === selects.field.value);
      for (const option of selects.model.options) option.disabled = !maps.maps[kind.key][option.value];
      if (!maps.maps[kind.key][model]) model = selects.model.value = Object.keys(maps.maps[kind.key])[0];
      const decoded = await fieldOf(maps.maps[kind.key][model][maps.leads.indexOf(Number(selects.lead.value))]);
      if (number !== order) return;
      [field, shown, scale] = [decoded, kind, kind.scale];
      const bar = maps.colours[scale.cmap].filter((_, k) => k % 15 === 0).join(",");
      byId("map-bar").style.background = "linear-gradient(90deg," + bar + ")";
      const middle = (scale.low + scale.high) / 2, ends = [scale.low, middle, scale.high];
      [...byId("map-ends").children].forEach((end, k) => {
        const value = scale.log ? Math.exp(ends[k]) : ends[k];
        const beyond = (k === 0 && !scale.closed ? "≤ " : "") + (k === 2 ? "≥ " : "");
        end.textContent = beyond + format(value, shown.decimals, shown.signed) + (shown.units ? " " + shown.units : "");
      });
      byId("map-note").textContent = kind.note;
      canvas.setAttribute("aria-label", kind.title + " of " + model + ", +" + selects.lead.value + " h. " +
        "Arrow keys move from cell to cell.");
      draw();
      tell();
      byId("map").dataset.ready = number;
    }

    for (const select of Object.values(selects)) select.addEventListener("change", choose);
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      const u = (2 * (event.clientX - box.left)) / box.width - 1, v = 1 - (2 * (event.clientY - box.top)) / box.height;
      const cell = Math.abs(v) < 1 && Math.abs(u) <= 1 ? cellAt(u, v) : null;
      if (cell === null || !field) return;
      cursor = cell;
      tell();
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", (event) => { point(event); if (field) drawCursor(); });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
      if (!move || !field) return;
      event.preventDefault();
      if (grid.points) cursor = (cursor + move[0] + move[1] + columns) % columns;
      else {
        const row = latitudes.findIndex(([, k]) => k === Math.floor(cursor / columns));
        const column = longitudes.findIndex(([, k]) => k === cursor % columns);
        const next = Math.max(0, Math.min(rows - 1, row + move[0])), count = longitudes.length;
        const beside = grid.globe ? (column + move[1] + count) % count : Math.max(0, Math.min(count - 1, column + move[1]));
        cursor = latitudes[next][1] * columns + longitudes[beside][1];
      }
      drawCursor();
      tell();
    });
    const decode = Object.entries(maps.colours).map(([name, packed]) => [name, packed.match(/.{6}/g)]);
    maps.packed = {};
    for (const [name, colours] of decode) {
      maps.colours[name] = colours.map((colour) => "#" + colour);
      maps.packed[name] = Uint32Array.from(colours, (colour) => {
        const [red, green, blue] = colour.match(/../g).map((pair) => parseInt(pair, 16));
        return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
      });
    }
    if (!grid.points) cursor = cellAt(0, 0.6) ?? 0;
    new ResizeObserver(() => { if (field) draw(); }).observe(canvas);
    const start = async () => {
      if (maps.land) maps.land = await inflate(maps.land);
      if (maps.coast) maps.coast.degrees = await fieldOf(maps.coast);
      await choose();
    };
    start();
  }

  document.documentElement.classList.add("scripted");
  for (const control of document.querySelectorAll("[data-script]")) control.hidden = false;
  for (const replaced of document.querySelectorAll("[data-static]")) replaced.hidden = true;
  setUpSlice();
  setUpExplorer();
  setUpMap();
})();
