"""Large-language-model pretraining whose hardware is a plugin."""

__version__ = "0.1.0"
