"""Taps: frameworks of pipelines whose instructions are reported to an optimizer. These modules import torch."""
