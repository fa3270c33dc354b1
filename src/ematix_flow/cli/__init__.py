"""The `flow` command: one file per noun, imported only when its command is called."""
