"""Stand-ins and schemas that the tests of the ascend backend share."""
