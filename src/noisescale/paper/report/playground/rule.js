"use strict";
// What a recipe { learningRate, batchSize, nTrain, momentum } implies: its noise scale, the partner
// that moves when g is kept, and the best batch size by the law. Written as in the library's
// noise/scale.py, noise/recipe.py and noise/batch_law.py, so that both round alike.
const noisescaleRule = (() => {
  const effective = ({ learningRate, momentum }) => learningRate / (1 - momentum);
  const noiseScale = (recipe) =>
    effective(recipe) * ((recipe.nTrain - recipe.batchSize) / recipe.batchSize);
  // What the linear rule keeps: ε N/(B (1 - m)).
  const level = (recipe) => effective(recipe) * (recipe.nTrain / recipe.batchSize);

  const roundHalfEven = (v) => {
    const low = Math.floor(v), rest = v - low;
    return rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
  };

  // `recipe` after a change of `changed`, its partner moved so that level() is `kept`: a new batch
  // size moves the learning rate, anything else the batch size. Or why that cannot be.
  const keeping = (kept, recipe, changed) => {
    const { momentum, nTrain, batchSize } = recipe;
    if (changed === "batchSize") {
      return { recipe: { ...recipe, learningRate: (kept * (1 - momentum)) / (nTrain / batchSize) } };
    }
    const wanted = (nTrain * effective(recipe)) / kept, size = roundHalfEven(wanted);
    if (size >= 1 && size <= nTrain) return { recipe: { ...recipe, batchSize: size } };
    return { refusal: `Keeping g would need a batch size of ${Number(wanted.toPrecision(3))}, `
      + `outside 1 to ${nTrain}: change less, or stop keeping it.` };
  };

  // B_opt^q = [a e (N/1000)^alpha]^q + [c N/T]^q, and the 95 % interval for its measurement. With w
  // the noise branch's share, ln B_opt has the derivatives w, w ln(N/1000) and 1 - w by ln a, alpha
  // and ln c.
  const bestBatch = (law, recipe, steps) => {
    const { scale, power, epochs, sharpness: q, covariance, scatter, typical_error: own } = law;
    const size = recipe.nTrain / law.reference_n;
    const noise = scale * effective(recipe) * size ** power, budget = (epochs * recipe.nTrain) / steps;
    const top = Math.max(noise, budget), parts = [(noise / top) ** q, (budget / top) ** q];
    const sum = parts[0] + parts[1], share = parts[0] / sum;
    const slopes = [share, share * Math.log(size), 1 - share];
    let variance = scatter ** 2 + own ** 2;
    slopes.forEach((a, i) => slopes.forEach((b, j) => { variance += a * b * covariance[i][j]; }));
    const value = top * sum ** (1 / q), reach = Math.exp(1.96 * Math.sqrt(variance));
    return {
      value, low: value / reach, high: value * reach, branch: noise >= budget ? "noise" : "epochs",
    };
  };

  return { effective, noiseScale, level, keeping, bestBatch };
})();
