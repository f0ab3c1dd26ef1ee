"""The result of a comparison as text, JSON and a page."""
