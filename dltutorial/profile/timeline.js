"use strict";
// Draws the lanes of a timeline on a canvas. Its data are the JSON in #data, which timeline.py describes. All times are
// in ns. The view is the time [from, to) across the canvas, and the pixels that the lanes are scrolled down. Only the
// boxes in the view are drawn.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("lanes"), context = canvas.getContext("2d");
  const tip = document.getElementById("tip"), viewText = document.getElementById("view");
  const GUTTER = 118, AXIS = 20, LANE = 17, BOX = 15, LEAST_NS = 20;
  const FONT = "11px system-ui, sans-serif";

  const lanes = data.lanes.map(({ label, boxes }) => ({
    label,
    boxes: boxes.map(([start, length, name]) => ({ start, length, end: start + length, name: data.names[name] })),
  }));
  const whole = { from: 0, to: Math.max(1, data.end_ns * 1.01), top: 0 };
  let view = { ...whole };

  // Boxes of a lane do not overlap, so their ends are in order, and bisection finds the first one.
  function firstEndingAfter(boxes, time, low = 0) {
    let high = boxes.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (boxes[middle].end > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  const width = () => canvas.clientWidth - GUTTER;
  const scale = () => width() / (view.to - view.from);
  const timeAt = (x) => view.from + (x - GUTTER) / scale();
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
    viewText.textContent = `${text(view.from)} to ${text(view.to)}`;
    Object.assign(canvas.dataset, { from: view.from, to: view.to, top: view.top, drawn });
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
    let i = firstEndingAfter(lane.boxes, view.from);
    while (i < lane.boxes.length && lane.boxes[i].start < view.to) {
      const { start, end, name: [name, kind] } = lane.boxes[i];
      const left = Math.max(GUTTER, GUTTER + (start - view.from) * k);
      const right = Math.min(canvas.clientWidth, GUTTER + (end - view.from) * k);
      const [, back, front] = data.kinds[kind];
      context.fillStyle = back;
      const pixel = Math.floor(left), pixels = Math.floor(right) - pixel + 1;
      if (right - left >= 1) context.fillRect(left, y, Math.max(1, right - left - 0.5), BOX);
      else context.fillRect(pixel, y, pixels, BOX);
      drawn++;
      if (right - left > 24) {
        context.fillStyle = front;
        drawLabel(name, left + 3, y + BOX / 2, right - left - 6);
      }
      // If a box is narrower than a pixel, it stands for all boxes that end in its pixels.
      if (right - left >= 1) i++;
      else i = firstEndingAfter(lane.boxes, view.from + (pixel + pixels - GUTTER) / k, i + 1);
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
    const rough = (view.to - view.from) / Math.max(2, width() / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || 10 * power;
    for (let n = Math.ceil(view.from / step); n * step < view.to; n++) {
      const x = GUTTER + (n * step - view.from) * scale();
      context.fillStyle = colour("--line");
      context.fillRect(x, AXIS - 5, 1, canvas.clientHeight);
      context.fillStyle = colour("--text");
      context.fillText(text(n * step, step), x + 3, AXIS / 2);
    }
  }

  // A time in a suitable unit, with enough digits to distinguish two times whose difference is `step`.
  function text(time, step = (view.to - view.from) / 1000) {
    if (!time) return "0";
    const large = Math.max(Math.abs(time), step);
    const [unit, size] = large >= 1e9 ? ["s", 1e9] : large >= 1e6 ? ["ms", 1e6] : large >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(Math.max(1, step) / size) + 1e-9)));
    return `${(time / size).toFixed(digits)} ${unit}`;
  }

  function show(from, to, top = view.top) {
    const span = Math.min(whole.to, Math.max(LEAST_NS, to - from));
    from = Math.max(0, Math.min(whole.to - span, from));
    const deepest = Math.max(0, lanes.length * LANE - (canvas.clientHeight - AXIS));
    view = { from, to: from + span, top: Math.max(0, Math.min(deepest, top)) };
    draw();
  }
  function zoom(factor, time) {
    show(time - (time - view.from) * factor, time + (view.to - time) * factor);
  }
  function pan(share) {
    const shift = share * (view.to - view.from);
    show(view.from + shift, view.to + shift);
  }

  // The box at a position, or undefined.
  function boxAt(x, y) {
    const lane = lanes[Math.floor((y - AXIS + view.top) / LANE)];
    if (!lane || x < GUTTER || y < AXIS) return undefined;
    const half = 0.7 / scale();
    const box = lane.boxes[firstEndingAfter(lane.boxes, timeAt(x) - half)];
    return box && box.start <= timeAt(x) + half ? box : undefined;
  }

  function showTip(event) {
    const box = boxAt(event.offsetX, event.offsetY);
    tip.hidden = !box;
    if (!box) return;
    const [name, kind] = box.name;
    tip.textContent = `${name}\n${data.kinds[kind][0]}, ${text(box.length, box.length / 1000)}, from ${text(box.start)}`;
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
    const shift = (drag.x - event.offsetX) / scale();
    show(drag.from + shift, drag.to + shift, drag.top + drag.y - event.offsetY);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (drag = null));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("dblclick", (event) => {
    const box = boxAt(event.offsetX, event.offsetY);
    if (box) show(box.start - 0.05 * box.length, box.end + 0.05 * box.length);
  });
  // Without the focus, the wheel scrolls the page around the timeline.
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    const turned = event.deltaY * (event.deltaMode ? 0.05 : 0.002);
    tip.hidden = true;
    zoom(Math.exp(Math.max(-1, Math.min(1, turned))), timeAt(Math.max(GUTTER, event.offsetX)));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = (view.from + view.to) / 2;
    const action = {
      ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1),
      ArrowUp: () => show(view.from, view.to, view.top - 3 * LANE),
      ArrowDown: () => show(view.from, view.to, view.top + 3 * LANE),
      "+": () => zoom(1 / 1.5, middle), "=": () => zoom(1 / 1.5, middle),
      "-": () => zoom(1.5, middle), _: () => zoom(1.5, middle),
      Home: () => show(whole.from, whole.to, 0), 0: () => show(whole.from, whole.to, 0),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    tip.hidden = true;
    action();
  });

  new ResizeObserver(() => show(view.from, view.to)).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.body.classList.add("alive");
  draw();
  canvas.dataset.ready = "yes";
})();
