"""The commands of `python -m cascade_kit`, a module each; the heavy imports wait until one runs."""
