"""`zeus-core run`: a command, measured from its start to its end."""
