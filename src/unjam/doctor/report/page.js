"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => Number(value.toPrecision(3));
  // as units.duration in Python
  const time = (s) => (s >= 120 ? `${Math.floor(Math.round(s) / 60)} min ${Math.round(s) % 60} s` : s >= 0.9995 ? short(s) + " s" : s >= 0.9995e-3 ? short(s * 1e3) + " ms" : short(s * 1e6) + " µs");
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // -- timeline: rows of bars on a canvas; a view that is moved with buttons, keys, a drag or ctrl and the wheel
  function timeline(figure, d) {
    const canvas = figure.querySelector("canvas"), caption = figure.querySelector("figcaption");
    const LEFT = 78, ROW = 22, TOP = 2, AXIS = 20;
    let from = 0, to = d.span, chosen = null;
    const byRow = d.rows.map(() => []);
    d.bars.forEach((bar) => byRow[bar[0]].push(bar));
    d.waits.forEach((wait) => byRow[byRow.length - 1].push([byRow.length - 1, wait[0], wait[1], 0, 0, 0, "", 0, "", 0, 1]));
    const length = (bar) => bar[2] + bar[3] + bar[4] + bar[5];

    function draw() {
      const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = TOP + ROW * d.rows.length + AXIS;
      canvas.style.height = height + "px";
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      c.font = "12px system-ui,sans-serif";
      c.textBaseline = "middle";
      const wide = width - LEFT, scale = wide / (to - from);
      const soft = color("--soft"), line = color("--line");
      d.rows.forEach((name, row) => {
        c.fillStyle = soft;
        c.fillText(name, 0, TOP + row * ROW + ROW / 2);
        c.fillStyle = line;
        c.fillRect(LEFT, TOP + (row + 1) * ROW - 1, wide, 1);
      });
      c.save();
      c.beginPath();
      c.rect(LEFT, 0, wide, height);
      c.clip();
      const paints = [color("--fetch"), color("--collate"), color("--pack"), color("--copy")], wait = color("--wait");
      for (const bars of byRow)
        for (const bar of bars) {
          if (bar[1] > to || bar[1] + length(bar) < from) continue;
          const y = TOP + bar[0] * ROW + 3, tall = ROW - 7, last = bar[0] === d.rows.length - 1 && d.waits.length;
          let x = LEFT + (bar[1] - from) * scale;
          c.globalAlpha = 0.25 + 0.75 * bar[10];
          for (let part = 0; part < 4; part++) {
            const w = bar[2 + part] * scale;
            if (!w) continue;
            c.fillStyle = last ? wait : paints[part];
            c.fillRect(x, y, Math.max(w - (w > 3 ? 0.6 : 0), 0.7), tall);
            x += w;
          }
          c.globalAlpha = 1;
          if (bar === chosen) {
            c.strokeStyle = color("--ink");
            c.lineWidth = 2;
            c.strokeRect(LEFT + (bar[1] - from) * scale, y - 1, Math.max(length(bar) * scale, 2), tall + 2);
          }
        }
      c.restore();
      c.fillStyle = soft;
      for (let mark = 0; mark <= 4; mark++) {
        c.textAlign = mark === 4 ? "right" : mark ? "center" : "left";
        c.fillText(time(from + ((to - from) * mark) / 4), LEFT + (wide * mark) / 4, height - AXIS / 2);
      }
      c.textAlign = "left";
    }
    function say(bar) {
      chosen = bar;
      if (!bar) caption.textContent = figure.dataset.hint;
      else if (bar[0] === d.rows.length - 1 && d.waits.length) caption.textContent = `waited ${time(bar[2])} at ${time(bar[1])}`;
      else {
        const parts = [`${d.rows[bar[0]]}, ${bar[6]} at ${time(bar[1])}`];
        if (bar[10] < 1 || bar[6].endsWith("batches")) parts.push(`busy for ${(bar[10] * 100).toFixed(0)} % of ${time(length(bar))}`);
        else if (bar[5]) parts.push(`copy ${time(bar[5])}`);
        else parts.push(`fetch ${time(bar[2])}` + (bar[3] ? `, collate ${time(bar[3])}` : "") + (bar[4] ? `, pack ${time(bar[4])}` : ""));
        if (bar[7] > 1) parts.push(`${bar[7]} samples`);
        if (bar[8]) parts.push(`slowest: sample ${bar[8]} (${time(bar[9])})`);
        caption.textContent = parts.join("; ");
      }
      draw();
    }
    function zoom(factor, at) {
      const middle = at === undefined ? (from + to) / 2 : at, span = Math.min(d.span, Math.max((to - from) * factor, d.span / 1e5));
      from = Math.max(0, Math.min(d.span - span, middle - ((middle - from) / (to - from)) * span));
      to = from + span;
      draw();
    }
    function move(part) {
      const by = (to - from) * part, span = to - from;
      from = Math.max(0, Math.min(d.span - span, from + by));
      to = from + span;
      draw();
    }
    const at = (event) => {
      const box = canvas.getBoundingClientRect(), x = event.clientX - box.left - LEFT, y = event.clientY - box.top - TOP;
      return [from + (x / (box.width - LEFT)) * (to - from), Math.floor(y / ROW)];
    };
    function hit(event) {
      const [when, row] = at(event), near = ((to - from) / canvas.clientWidth) * 3;
      let best = null;
      for (const bar of byRow[row] || [])
        if (bar[1] - near <= when && when <= bar[1] + length(bar) + near && (!best || length(bar) < length(best))) best = bar;
      return best;
    }
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => { drag = [event.clientX, from, to]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && Math.abs(event.clientX - drag[0]) > 3) {
        const span = drag[2] - drag[1], by = ((drag[0] - event.clientX) / (canvas.clientWidth - LEFT)) * span;
        from = Math.max(0, Math.min(d.span - span, drag[1] + by));
        to = from + span;
        draw();
      } else if (!drag) {
        const bar = hit(event);
        if (bar !== chosen) say(bar);
      }
    });
    canvas.addEventListener("click", (event) => say(hit(event)));
    canvas.addEventListener("dblclick", (event) => zoom(0.4, at(event)[0]));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, at(event)[0]);
    }, { passive: false });
    function step(by) {
      const row = chosen ? chosen[0] : 0, bars = byRow[row];
      if (!bars.length) return;
      const next = bars[Math.max(0, Math.min(bars.length - 1, (chosen ? bars.indexOf(chosen) : -1) + by))];
      if (next[1] < from || next[1] > to) { const span = to - from; from = Math.max(0, Math.min(d.span - span, next[1] - span / 2)); to = from + span; }
      say(next);
    }
    function change(by) {
      const row = Math.max(0, Math.min(d.rows.length - 1, (chosen ? chosen[0] : 0) + by)), when = chosen ? chosen[1] : from;
      if (byRow[row].length) say(byRow[row].reduce((a, b) => (Math.abs(b[1] - when) < Math.abs(a[1] - when) ? b : a)));
    }
    const keys = {
      "+": () => zoom(0.6, chosen ? chosen[1] : undefined), "=": () => zoom(0.6, chosen ? chosen[1] : undefined), "-": () => zoom(1.7),
      0: () => { from = 0; to = d.span; draw(); }, ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => change(-1),
      ArrowDown: () => change(1), Home: () => move(-1e9), End: () => move(1e9), PageDown: () => move(0.8), PageUp: () => move(-0.8),
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    const acts = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.5), right: () => move(0.5), all: keys[0] };
    figure.querySelectorAll("button[data-act]").forEach((button) => button.addEventListener("click", () => acts[button.dataset.act]()));
    let wide = 0;
    new ResizeObserver(() => {
      if (canvas.clientWidth !== wide) { wide = canvas.clientWidth; requestAnimationFrame(draw); }
    }).observe(figure);
    draw();
    dark.addEventListener("change", draw);
    figure.view = () => [from, to, chosen];
  }

  // -- charts: drawn already; a cursor that reads them
  function chart(figure, d) {
    const svg = figure.querySelector("svg"), cursor = svg.querySelector(".cursor"), caption = figure.querySelector("figcaption");
    const rest = caption.textContent, lines = Object.entries(d.lines);
    const points = lines.reduce((a, b) => (b[1].length > a.length ? b[1] : a), []);
    let now = -1;
    function read(index) {
      now = Math.max(0, Math.min(points.length - 1, index));
      const when = points[now][0], x = d.left + ((when - d.start) / (d.end - d.start || 1)) * (d.width - d.left);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      const said = lines.map(([name, line]) => {
        const near = line.reduce((a, b) => (Math.abs(b[0] - when) < Math.abs(a[0] - when) ? b : a));
        return (lines.length > 1 ? name + " " : "") + near[1].toLocaleString("en", { maximumFractionDigits: near[1] < 10 ? 2 : 0 });
      });
      caption.textContent = `${time(when - d.start)}: ${said.join(", ")} ${d.unit}`;
    }
    function leave() { cursor.style.visibility = "hidden"; caption.textContent = rest; now = -1; }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * d.width;
      const when = d.start + ((x - d.left) / (d.width - d.left)) * (d.end - d.start);
      let best = 0;
      points.forEach((p, i) => { if (Math.abs(p[0] - when) < Math.abs(points[best][0] - when)) best = i; });
      read(best);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
      if (by) { event.preventDefault(); read(now + by); }
    });
  }

  // -- tables: sorted by a click on their head
  function sortable(table) {
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "descending";
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "ascending" : "descending");
        const value = (row) => { const cell = row.cells[column]; return cell.dataset.value !== undefined ? +cell.dataset.value : cell.textContent; };
        const rows = [...table.tBodies[0].rows].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? 1 : -1); });
        table.tBodies[0].append(...rows);
      });
    });
  }
  document.querySelectorAll("figure[data-timeline]").forEach((one) => timeline(one, data.timelines[one.dataset.timeline]));
  document.querySelectorAll("figure[data-chart]").forEach((one) => chart(one, data.charts[one.dataset.chart]));
  document.querySelectorAll("table.sortable").forEach(sortable);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
