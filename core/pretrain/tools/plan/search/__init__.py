"""Searches for layouts that fit (`pretrain plan --search`) by estimates from traced layers."""
