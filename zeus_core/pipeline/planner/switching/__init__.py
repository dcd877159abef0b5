"""Plans whose clock switches have a price."""
