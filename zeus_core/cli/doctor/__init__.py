"""The checks of `zeus-core doctor`. None changes anything."""
