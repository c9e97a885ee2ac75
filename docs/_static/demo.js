// The demo of the landing page. docs/build_demo.py writes demo/facts.js, ort.js and packed.js next to this file.
"use strict";
(() => {
  const demo = window.caveatDemo;
  const SIZE = 8, FINE = 32; // a digit has 8 x 8 pixels, each the ink of 4 x 4 fine ones, as in scikit-learn's digits
  const here = document.currentScript.src.replace(/[^/]*$/, "");

  function load(name) {
    return new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = `${here}demo/${name}`;
      script.onload = done;
      script.onerror = () => failed(new Error(`cannot load ${name}`));
      document.head.append(script);
    });
  }

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function start() {
    await load("ort.js");
    await load("packed.js");
    const glue = new TextDecoder().decode(await unpacked(demo.packed.glue)); // its own address is no base of addresses
    const script = new Blob([glue.replaceAll("import.meta.url", "document.baseURI")], { type: "text/javascript" });
    Object.assign(ort.env.wasm, {
      numThreads: 1,
      wasmBinary: await unpacked(demo.packed.wasm),
      wasmPaths: { mjs: URL.createObjectURL(script) },
    });
    return ort.InferenceSession.create(await unpacked(demo.packed.model), { executionProviders: ["wasm"] });
  }

  let session;
  let last = Promise.resolve(); // a session answers one request at a time
  demo.answer = (pixels) => {
    session ??= start();
    const now = last.then(async () => {
      const running = await session;
      const inputs = new ort.Tensor("uint8", Uint8Array.from(pixels), [1, SIZE, SIZE]);
      return running.run({ inputs });
    }).then((found) => (
      Object.fromEntries(Object.entries(found).map(([name, each]) => [name, Array.from(each.data, Number)]))
    ));
    last = now.catch(() => {});
    return now;
  };

  // An 8 x 8 digit, turned by an angle about its center, bilinear.
  demo.turned = (pixels, degrees) => {
    const c = Math.cos((degrees * Math.PI) / 180), s = Math.sin((degrees * Math.PI) / 180), middle = (SIZE - 1) / 2;
    const at = (i, j) => (i < 0 || j < 0 || i >= SIZE || j >= SIZE ? 0 : pixels[i * SIZE + j]);
    return Array.from({ length: SIZE * SIZE }, (_, k) => {
      const y = Math.floor(k / SIZE) - middle, x = (k % SIZE) - middle;
      const i = c * y - s * x + middle, j = s * y + c * x + middle, a = Math.floor(i), b = Math.floor(j);
      const p = i - a, q = j - b;
      const top = (1 - q) * at(a, b) + q * at(a, b + 1), bottom = (1 - q) * at(a + 1, b) + q * at(a + 1, b + 1);
      return Math.round((1 - p) * top + p * bottom);
    });
  };

  // Lines that were drawn, as 8 x 8 pixels: scaled to the height of a digit, turned, and counted in blocks of 4 x 4.
  demo.drawn = (lines, degrees) => {
    const all = lines.flat(), [left, right, top, bottom] = [
      Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0])),
      Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1])),
    ];
    const canvas = Object.assign(document.createElement("canvas"), { width: FINE, height: FINE });
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    const width = 5, scale = (FINE - width) / Math.max(right - left, bottom - top, 1);
    pen.translate(FINE / 2, FINE / 2);
    pen.rotate((degrees * Math.PI) / 180);
    pen.scale(scale, scale);
    pen.translate(-(left + right) / 2, -(top + bottom) / 2);
    Object.assign(pen, { lineWidth: width / scale, lineCap: "round", lineJoin: "round" });
    for (const line of lines) {
      pen.beginPath();
      pen.moveTo(...line[0]);
      for (const point of line) pen.lineTo(...point);
      pen.stroke();
    }
    const data = pen.getImageData(0, 0, FINE, FINE).data;
    return Array.from({ length: SIZE * SIZE }, (_, k) => {
      const row = 4 * Math.floor(k / SIZE), column = 4 * (k % SIZE);
      let ink = 0;
      for (let i = 0; i < 16; i++) ink += data[4 * ((row + (i >> 2)) * FINE + column + (i & 3)) + 3] > 127;
      return Math.round((ink * 255) / 16);
    });
  };

  const root = document.getElementById("demo");
  if (!root) return;
  if (demo.missing) {
    root.textContent = `The demo was not built: ${demo.missing}.`;
    root.hidden = false;
    return;
  }
  const part = (name) => root.querySelector(`[data-part=${name}]`);
  const board = part("board"), seen = part("seen"), angle = part("angle"), said = part("said"), bars = part("bars");
  let lines = [], example = 0, drawing = false;
  root.hidden = false;

  const pixels = () => (lines.length ? demo.drawn(lines, +angle.value) : demo.turned(demo.examples[example], +angle.value));

  function show(canvas, image) {
    const pen = canvas.getContext("2d"), cell = canvas.width / SIZE;
    image.forEach((value, k) => {
      pen.fillStyle = `rgb(${255 - value} ${255 - value} ${255 - value})`;
      pen.fillRect((k % SIZE) * cell, Math.floor(k / SIZE) * cell, cell, cell);
    });
  }

  function showLines() {
    const pen = board.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, board.width, board.height);
    Object.assign(pen, { lineWidth: 20, lineCap: "round", lineJoin: "round", strokeStyle: "#000" });
    for (const line of lines) {
      pen.beginPath();
      pen.moveTo(...line[0]);
      for (const point of line) pen.lineTo(...point);
      pen.stroke();
    }
  }

  async function refresh() {
    const image = pixels();
    lines.length ? showLines() : show(board, image);
    show(seen, image);
    if (!session) said.textContent = `Loading ${demo.megabytes} MB ...`;
    try {
      const found = await demo.answer(image);
      const best = found.label[0], reason = demo.reasons[found.reason[0]];
      const percent = (value) => `${(100 * value).toFixed(1)} %`;
      const decision = found.decision[0] === 2 ? `abstain: ${reason}` : "answer";
      said.textContent = `Decision: ${decision}. Most probable digit: ${best}, ${percent(found.probs[best])}. ` +
        `Familiarity p = ${found.familiarity[0].toFixed(2)}, novelty p = ${found.nearness[0].toFixed(2)}.`;
      bars.replaceChildren(...found.probs.map((value, k) => {
        const row = document.createElement("tr");
        row.innerHTML = `<th scope="row">${k}</th><td><meter value="${value}" aria-label="probability of ${k}"></meter></td>` +
          `<td>${percent(value)}</td>`;
        return row;
      }));
    } catch (error) {
      said.textContent = `The model could not answer: ${error.message}`;
    }
  }

  const place = (event) => {
    const box = board.getBoundingClientRect();
    return [((event.clientX - box.left) * board.width) / box.width, ((event.clientY - box.top) * board.height) / box.height];
  };
  board.addEventListener("pointerdown", (event) => {
    drawing = true;
    board.setPointerCapture(event.pointerId);
    lines.push([place(event)]);
    showLines();
  });
  board.addEventListener("pointermove", (event) => {
    if (!drawing) return;
    lines.at(-1).push(place(event));
    showLines();
  });
  board.addEventListener("pointerup", () => {
    drawing = false;
    refresh();
  });
  angle.addEventListener("change", refresh);
  part("example").addEventListener("click", () => {
    lines = [];
    example = session ? (example + 1) % demo.examples.length : 0;
    refresh();
  });
  part("scribble").addEventListener("click", () => {
    lines = [Array.from({ length: 15 }, () => [30 + 180 * Math.random(), 30 + 180 * Math.random()])];
    refresh();
  });
  part("clear").addEventListener("click", () => {
    lines = [];
    showLines();
    show(seen, Array(SIZE * SIZE).fill(0));
    said.textContent = "Draw a digit.";
    bars.replaceChildren();
  });
  show(board, demo.examples[0]);
  show(seen, demo.examples[0]);
})();
