"""The rank processes of one node: start, supervision, failure and end."""
