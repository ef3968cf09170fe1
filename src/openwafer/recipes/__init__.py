"""Recipes: configs on real data, one folder each, with the loss that they reach."""

from openwafer.recipes.recipe import Figure, Measure, Recipe, all_recipes, find_recipe

__all__ = ["Figure", "Measure", "Recipe", "all_recipes", "find_recipe"]
