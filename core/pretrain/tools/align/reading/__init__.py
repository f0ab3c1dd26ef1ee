"""Recordings as they are read again, whatever the layout that wrote them."""
