"""The commands that show power and energy: `power`, `energy`, `top`."""
