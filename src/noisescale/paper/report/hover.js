"use strict";
// The value nearest to the pointer, at once. Without this script a browser shows the titles.
(() => {
  const REACH = 30; // pixels
  const shown = document.createElement("div");
  shown.className = "at-pointer";
  shown.hidden = true;
  shown.setAttribute("aria-hidden", "true"); // the tables have the numbers
  document.body.append(shown);
  let chosen = null;
  const choose = (point) => {
    if (chosen) chosen.element.classList.remove("chosen");
    chosen = point;
    shown.hidden = point === null;
    if (point) point.element.classList.add("chosen");
  };
  for (const svg of document.querySelectorAll(".picture")) {
    const points = [...svg.querySelectorAll(".values circle")].map((element) => {
      const title = element.querySelector("title");
      const text = title.textContent;
      title.remove();
      const [x, y] = ["cx", "cy"].map((name) => Number(element.getAttribute(name)));
      return { element, text, x, y };
    });
    svg.addEventListener("pointermove", (event) => {
      const scale = svg.getScreenCTM();
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(scale.inverse());
      let nearest = null, least = REACH / scale.a;
      for (const point of points) {
        const far = Math.hypot(point.x - at.x, point.y - at.y);
        if (far < least) [nearest, least] = [point, far];
      }
      choose(nearest);
      if (!nearest) return;
      shown.textContent = nearest.text;
      const { width, height } = shown.getBoundingClientRect();
      shown.style.left = `${Math.max(0, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
      shown.style.top = `${Math.max(0, event.clientY - height - 12)}px`;
    });
    svg.addEventListener("pointerleave", () => choose(null));
  }
})();
