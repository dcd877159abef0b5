"""Energy for Lightning trainers, of `lightning.pytorch` and of `pytorch_lightning`.

from zeus_lightning import ZeusCallback

trainer = Trainer(..., callbacks=[ZeusCallback()])
"""

import zeus_lightning._namespaces  # noqa: F401 - before all else, as it says what is missing
from zeus_lightning._callback import ZeusCallback

__all__ = ["ZeusCallback"]
