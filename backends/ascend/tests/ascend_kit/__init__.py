"""What the tests of the ascend backend share."""
