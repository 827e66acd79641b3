"use strict";
// Draws the lanes of a timeline on a canvas. In: #data (JSON, see timeline.py). A view is the span of ticks
// [from, to) across the canvas and the pixels scrolled down; only the events inside it are touched.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("lanes"), context = canvas.getContext("2d");
  const tip = document.getElementById("tip"), says = document.getElementById("view");
  const GUTTER = 118, AXIS = 20, LANE = 17, BOX = 15, LEAST_TICKS = 20;
  const FONT = "11px system-ui, sans-serif";

  const { start, length, name } = await columns();
  let first = 0;
  const lanes = data.lanes.map(([label, count]) => ({ label, first, end: (first += count) }));
  const whole = { from: 0, to: data.ticks * 1.01, top: 0 };
  let view = { ...whole };

  // Starts travel as distances from the start before in the same lane: small numbers pack well.
  async function columns() {
    const packed = Uint8Array.from(atob(data.columns), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const all = new Uint32Array(await new Response(stream).arrayBuffer());
    const n = all.length / 3, start = all.slice(0, n);
    let at = 0;
    for (const [, count] of data.lanes) {
      for (let i = at + 1; i < at + count; i++) start[i] += start[i - 1];
      at += count;
    }
    return { start, length: all.subarray(n, 2 * n), name: all.subarray(2 * n) };
  }

  // Events of a lane do not overlap, so their ends are in order: bisect.
  function firstEndingAfter(tick, low, high) {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] + length[middle] > tick) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  const width = () => canvas.clientWidth - GUTTER;
  const scale = () => width() / (view.to - view.from);
  const tickAt = (x) => view.from + (x - GUTTER) / scale();
  const colour = (variable) => getComputedStyle(document.body).getPropertyValue(variable);

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    if (canvas.clientWidth <= GUTTER) return; // not laid out yet
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
    drawAxis();
    let drawn = 0;
    context.save();
    context.beginPath();
    context.rect(0, AXIS, canvas.clientWidth, canvas.clientHeight - AXIS);
    context.clip();
    lanes.forEach((lane, index) => {
      const y = AXIS + index * LANE - view.top;
      if (y + LANE > AXIS && y < canvas.clientHeight) drawn += drawLane(lane, index, y);
    });
    context.restore();
    const span = `${time(view.from)} to ${time(view.to)}`;
    if (says.dataset.span !== span) says.textContent = says.dataset.span = span;
    Object.assign(canvas.dataset, { from: view.from * data.tick_s, to: view.to * data.tick_s, top: view.top, drawn });
  }

  function drawLane(lane, index, y) {
    if (lane.label) {
      context.fillStyle = colour("--line");
      if (index) context.fillRect(0, y - 1, canvas.clientWidth, 1);
      context.fillStyle = colour("--text");
      context.fillText(lane.label, 4, y + BOX / 2, GUTTER - 8);
    }
    const k = scale();
    let drawn = 0;
    let i = firstEndingAfter(view.from, lane.first, lane.end);
    while (i < lane.end && start[i] < view.to) {
      const left = Math.max(GUTTER, GUTTER + (start[i] - view.from) * k);
      const right = Math.min(canvas.clientWidth, GUTTER + (start[i] + length[i] - view.from) * k);
      const [, back, front] = data.kinds[data.names[name[i]][1]];
      context.fillStyle = back;
      const pixel = Math.floor(left), pixels = Math.floor(right) - pixel + 1;
      if (right - left >= 1) context.fillRect(left, y, Math.max(1, right - left - 0.5), BOX);
      else context.fillRect(pixel, y, pixels, BOX);
      drawn++;
      if (right - left > 24) {
        context.fillStyle = front;
        drawLabel(data.names[name[i]][0], left + 3, y + BOX / 2, right - left - 6);
      }
      // Below a pixel, one box stands for all that end in its pixels.
      if (right - left >= 1) i++;
      else i = firstEndingAfter(view.from + (pixel + pixels - GUTTER) / k, i + 1, lane.end);
    }
    return drawn;
  }

  function drawLabel(text, x, y, room) {
    const letters = Math.floor(room / 5.5);
    if (letters < 2) return;
    const short = text.length > letters ? text.slice(0, letters - 1) + "…" : text;
    context.fillText(short, x, y, room);
  }

  function drawAxis() {
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    const rough = (view.to - view.from) * data.tick_s / Math.max(2, width() / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || 10 * power;
    for (let n = Math.ceil(view.from * data.tick_s / step); n * step < view.to * data.tick_s; n++) {
      const x = GUTTER + (n * step / data.tick_s - view.from) * scale();
      context.fillStyle = colour("--line");
      context.fillRect(x, AXIS - 5, 1, canvas.clientHeight);
      context.fillStyle = colour("--text");
      context.fillText(seconds(n * step, step), x + 3, AXIS / 2);
    }
  }

  // Seconds in a unit that suits them, with as many digits as tell two values apart that differ by `step`.
  function seconds(value, step) {
    if (!value) return "0";
    const large = Math.max(Math.abs(value), step);
    const [unit, size] = large >= 1 ? ["s", 1] : large >= 1e-3 ? ["ms", 1e-3] : large >= 1e-6 ? ["µs", 1e-6] : ["ns", 1e-9];
    const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step / size) + 1e-9)));
    return `${(value / size).toFixed(digits)} ${unit}`;
  }
  const time = (ticks) => seconds(ticks * data.tick_s, Math.max(1e-9, (view.to - view.from) * data.tick_s / 1000));

  function show(from, to, top = view.top) {
    const span = Math.min(whole.to, Math.max(LEAST_TICKS, to - from));
    from = Math.max(0, Math.min(whole.to - span, from));
    const deepest = Math.max(0, lanes.length * LANE - (canvas.clientHeight - AXIS));
    view = { from, to: from + span, top: Math.max(0, Math.min(deepest, top)) };
    draw();
  }
  function zoom(factor, tick) {
    show(tick - (tick - view.from) * factor, tick + (view.to - tick) * factor);
  }
  function pan(share) {
    const ticks = share * (view.to - view.from);
    show(view.from + ticks, view.to + ticks);
  }

  function at(x, y) {
    const lane = lanes[Math.floor((y - AXIS + view.top) / LANE)];
    if (!lane || x < GUTTER || y < AXIS) return -1;
    const half = 0.7 / scale();
    const i = firstEndingAfter(tickAt(x) - half, lane.first, lane.end);
    return i < lane.end && start[i] <= tickAt(x) + half ? i : -1;
  }

  function showTip(event) {
    const i = at(event.offsetX, event.offsetY);
    tip.hidden = i < 0;
    if (i < 0) return;
    const [text, kind] = data.names[name[i]];
    const took = seconds(length[i] * data.tick_s, Math.max(1e-9, length[i] * data.tick_s / 1000));
    tip.textContent = `${text}\n${data.kinds[kind][0]}, ${took}, from ${time(start[i])}`;
    const room = canvas.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(0, Math.min(event.offsetX + 12, room))}px`;
    tip.style.top = `${canvas.offsetTop + event.offsetY + 14}px`;
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, ...view };
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return showTip(event);
    const ticks = (drag.x - event.offsetX) / scale();
    show(drag.from + ticks, drag.to + ticks, drag.top + drag.y - event.offsetY);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (drag = null));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("dblclick", (event) => {
    const i = at(event.offsetX, event.offsetY);
    if (i >= 0) show(start[i] - 0.05 * length[i], start[i] + 1.05 * length[i]);
  });
  // Unfocused, the wheel still scrolls the page around the timeline.
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    const turned = event.deltaY * (event.deltaMode ? 0.05 : 0.002);
    tip.hidden = true;
    zoom(Math.exp(Math.max(-1, Math.min(1, turned))), tickAt(Math.max(GUTTER, event.offsetX)));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = (view.from + view.to) / 2;
    const does = {
      ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1),
      ArrowUp: () => show(view.from, view.to, view.top - 3 * LANE),
      ArrowDown: () => show(view.from, view.to, view.top + 3 * LANE),
      "+": () => zoom(1 / 1.5, middle), "=": () => zoom(1 / 1.5, middle),
      "-": () => zoom(1.5, middle), _: () => zoom(1.5, middle),
      Home: () => show(whole.from, whole.to, 0), 0: () => show(whole.from, whole.to, 0),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    tip.hidden = true;
    does();
  });

  new ResizeObserver(() => show(view.from, view.to)).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.body.classList.add("alive");
  draw();
  canvas.dataset.ready = "yes";
})();
