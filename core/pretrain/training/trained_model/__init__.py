"""A trained model, looked at: loaded without an optimizer, evaluated, and continuing texts."""
