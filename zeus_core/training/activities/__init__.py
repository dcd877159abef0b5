"""Time and energy of a training, divided among its activities."""
