"use strict";
(() => {
  const form = document.querySelector(".calculator");
  const numbers = [...form.querySelectorAll("input[type=number]")];
  const value = (name) => Number(form.querySelector(`input[type=number][name=${name}]`).value);
  // Sliders are logarithmic: in the quantity itself, or in 1 - m.
  const toSlider = (name, v) => (name === "momentum" ? -Math.log10(1 - v) : Math.log10(v));
  const fromSlider = (name, s) => {
    if (name === "momentum") return Number((1 - 10 ** -s).toPrecision(4));
    const v = 10 ** s;
    return name === "learning_rate" ? Number(v.toPrecision(3)) : Math.max(1, Math.round(v));
  };
  const told = (v) => (Math.abs(v) >= 1e5 || Math.abs(v) < 1e-4) && v !== 0
    ? v.toExponential(3) : String(Number(v.toPrecision(5)));
  const show = (name, v, words) => {
    const output = form.querySelector(`output[name=${name}]`);
    output.value = words ?? (Number.isFinite(v) ? told(v) : "-");
    output.dataset.value = String(v);
  };
  const update = () => {
    const [e, B, N, m, next] =
      ["learning_rate", "batch_size", "n_train", "momentum", "new_batch"].map(value);
    const fine = e > 0 && B >= 1 && N >= 1 && m >= 0 && m < 1 && B <= N;
    const complaint = B > N ? "B cannot exceed N" : "give ε > 0, B and N at least 1, 0 ≤ m < 1";
    const effective = e / (1 - m);
    // Written as in the library, so that both round alike.
    show("g", fine ? effective * ((N - B) / B) : NaN, fine ? undefined : complaint);
    show("approximate", fine ? effective * (N / B) : NaN);
    show("effective", fine ? effective : NaN);
    show("steps", fine ? N / B : NaN);
    const grows = fine && next >= 1 && next <= N;
    show("linear", grows ? e * next / B : NaN);
    const silent = next === N || B === N;
    show("exact", grows && !silent ? e * ((N - B) / B) / ((N - next) / next) : NaN,
      grows && silent ? "none: at B = N there is no noise" : undefined);
    const slow = 1 - (1 - m) * B / next;
    show("via_momentum", grows && slow >= 0 ? slow : NaN,
      grows && slow < 0 ? "none: it would be below 0" : undefined);
  };
  for (const number of numbers) {
    const slider = form.querySelector(`input[type=range][data-for=${number.name}]`);
    number.addEventListener("input", () => {
      slider.value = toSlider(number.name, Number(number.value));
      update();
    });
    slider.addEventListener("input", () => {
      number.value = fromSlider(number.name, Number(slider.value));
      update();
    });
    slider.value = toSlider(number.name, Number(number.value));
  }
  update();
})();
