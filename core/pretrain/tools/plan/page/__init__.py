"""Plan as one HTML page: `pretrain plan --html`."""
