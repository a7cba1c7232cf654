"""What entries mean: every decision of the generator, and every message about what does not fit."""
