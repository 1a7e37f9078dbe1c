"""How loud is my SGD? The noise scale and the rules that keep it."""

from noisescale.noise.adam import AdamRecipe
from noisescale.noise.recipe import Recipe
from noisescale.noise.scale import noise_scale
from noisescale.noise.schedule import BatchSchedule, Stage

__all__ = ["AdamRecipe", "BatchSchedule", "Recipe", "Stage", "noise_scale"]
