// What a script adds to a report: a slider over steps for all images, and the values of curves where one points at them.

// ---- the slider: the page shows the last step without it

for (const control of document.querySelectorAll(".steps")) {
  const slider = control.querySelector("input");
  const steps = slider.dataset.steps.split(",").map(Number);
  const images = [...control.nextElementSibling.querySelectorAll("img[data-at]")];
  const last = new Map(images.map((image) => [image, image.getAttribute("src")]));
  control.hidden = false;
  slider.addEventListener("input", () => {
    const step = steps[Number(slider.value)];
    control.querySelector("output").textContent = step.toLocaleString("en-GB");
    for (const image of images) {
      const earlier = JSON.parse(image.dataset.at)[step];
      image.src = earlier ?? last.get(image);
      if (!image.dataset.wrong) continue;
      const words = JSON.parse(image.dataset.wrong);
      const wrong = words[earlier ? step : Math.max(...Object.keys(words))]; // none where the image was not read
      const sample = image.closest(".sample");
      sample.querySelector(".prompt").replaceChildren(...markedPrompt(image.dataset.prompt, wrong ?? []));
      sample.querySelector(".read").replaceWith(wrong ? read(image.dataset.prompt, wrong) : make("span", { class: "read" }));
    }
  });
}

// ---- values of curves

const written = (value) => Number(value).toLocaleString("en-GB", { maximumSignificantDigits: 4 }).replace("-", "−");

for (const svg of document.querySelectorAll("svg.chart:has([data-points])")) {
  const lines = [...svg.querySelectorAll("[data-points]")].map((group) => ({
    name: group.dataset.name,
    colour: group.getAttribute("class"),
    px: group.querySelector("polyline").getAttribute("points").split(" ").map((point) => Number(point.split(",")[0])),
    points: group.dataset.points.split(" ").map((point) => point.split(",")),
  }));
  const places = [...new Set(lines.flatMap((line) => line.px))].sort((a, b) => a - b);
  const values = make("p", { class: "values", "aria-live": "polite" });
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", 10);
  cursor.setAttribute("y2", svg.viewBox.baseVal.height - 40);
  svg.append(cursor);
  svg.after(values);
  svg.setAttribute("tabindex", "0");
  let at = -1;

  const nearest = (px, wanted) => px.reduce((best, one, index) => (Math.abs(one - wanted) < Math.abs(px[best] - wanted) ? index : best), 0);

  const show = (index) => {
    at = index;
    cursor.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    if (index < 0) { values.replaceChildren(); return; }
    const wanted = places[index];
    cursor.setAttribute("x1", wanted);
    cursor.setAttribute("x2", wanted);
    const found = lines.map((line) => [line, line.points[nearest(line.px, wanted)]]);
    const place = lines.map((line) => line.points[line.px.indexOf(wanted)]).find(Boolean);
    values.replaceChildren(make("span", {}, `${svg.dataset.over} ${written(place[0])}`), ...found.map(([line, [, mean, low, high]]) => make("span", {},
      make("span", { class: `swatch ${line.colour}` }), `${line.name} `, make("b", {}, written(mean)), low === high ? "" : ` (${written(low)} to ${written(high)})`)));
  };

  show(-1);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(places, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width));
  });
  svg.addEventListener("pointerleave", () => show(-1));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") show(-1);
    if (!by) return;
    event.preventDefault();
    show(Math.min(places.length - 1, Math.max(0, at + by)));
  });
}
