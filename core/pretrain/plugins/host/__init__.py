"""Host side of the plugin interface: find, import and register plugins, and check the answers of a backend."""
