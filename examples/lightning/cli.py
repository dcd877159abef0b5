"""The model of `fit.py` behind a LightningCLI, where all the rest is said in YAML.

ZEUS_SIMULATED_GPUS=A100-SXM4-80GB:1 python examples/lightning/cli.py fit --config examples/lightning/fit.yaml
"""

from fit import LanguageModel, Sources
from lightning.pytorch.cli import LightningCLI

if __name__ == "__main__":
    LightningCLI(LanguageModel, Sources)
