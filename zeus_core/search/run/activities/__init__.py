"""The searches of the activities of one run: one bound, and one price of a second."""
