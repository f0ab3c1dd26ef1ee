"""The only code that adapts third-party libraries to a device. It knows devices through the Backend alone."""
