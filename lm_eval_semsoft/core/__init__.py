"""Pure mathematics on arrays: no models, no harness, no files, no logging."""
