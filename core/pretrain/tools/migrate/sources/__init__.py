"""Reading of launch scripts, arguments, logs and files of settings."""
