"""Two independent GRPO loops in the shapes that people have, recorded by the README alone."""
