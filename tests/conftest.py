"""What holds for every test: no network, nothing sent or written outside the test's own folder."""

import os
import signal

# Before any library reads them. `setdefault`, so that a person can still say otherwise for one run.
for name, value in {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}.items():
    os.environ.setdefault(name, value)

# A shell's background job is started with interrupts ignored, and Python leaves it so; some tests interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
