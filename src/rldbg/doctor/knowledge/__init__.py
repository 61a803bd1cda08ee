"""All known failures as data, one YAML file per area, and the code that loads, checks and finds them in lines."""
