"""Train by axolotl and by LLaMA-Factory from a YAML file, plainly and below `zeus-core run --trainer`, and compare.

    .venv/bin/python tools/try_launchers.py llamafactory FOLDER
    .venv/bin/python tools/try_launchers.py axolotl FOLDER

Each is installed into an environment of its own in the folder, over that of this Python, with the same torch. The model
and the data are made there; nothing else is downloaded. It takes minutes and needs no GPU: one is simulated.

LLaMA-Factory 0.9.5 (2026-11-26) and axolotl 0.19.0 (2026-11-27): the same weights, one box.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from set_up import lay_over

_WORDS = [f"word{number}" for number in range(30)]
_MODEL = f"""
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
special = {{"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}}
words = [*special.values(), *{_WORDS!r}]
tokenizer = Tokenizer(models.WordLevel({{word: number for number, word in enumerate(words)}}, "<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained("model")
sizes = {{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}}
LlamaForCausalLM(LlamaConfig(vocab_size=len(words), bos_token_id=1, eos_token_id=2, **sizes)).save_pretrained("model")
"""
# axolotl, the releases it pins, and what its training on a CPU imports: pip had not resolved all its requirements, most
# of them for CUDA and clouds, after nine minutes; these take half a minute.
_AXOLOTL = """
axolotl==0.19.0 axolotl-contribs-lgpl==0.0.7 axolotl-contribs-mit==0.0.6 accelerate==1.13.0 datasets==4.8.4
evaluate==0.4.1 huggingface-hub==1.17.0 kernels==0.16.0 kernels-data==0.16.2 optimum==1.16.2 peft==0.20.0
posthog==6.7.11 pydantic==2.12.5 pydantic-core==2.41.5 schedulefree==1.4.1 tokenizers==0.23.1 transformers==5.16.1
trl==1.9.0 typer==0.25.1 wandb==0.23.0 bitsandbytes==0.50.2 httpx<1 httpcore<2 protobuf<7 triton addict art backoff
coloredlogs distro fastcore fire humanfriendly python-dotenv pywavelets responses sentencepiece six sniffio termcolor
zstandard
"""
_COMMON = {"max_steps": 8, "learning_rate": 0.01, "seed": 0, "bf16": False, "fp16": False, "save_strategy": "no"}
_LAUNCHERS = {
    "llamafactory": (
        ["llamafactory-cli", "train"],
        _COMMON
        | {
            "model_name_or_path": "model",
            "stage": "pt",
            "do_train": True,
            "finetuning_type": "full",
            "dataset": "words",
        }
        | {
            "dataset_dir": ".",
            "template": "default",
            "cutoff_len": 16,
            "per_device_train_batch_size": 2,
            "report_to": "none",
        },
    ),
    "axolotl": (
        ["axolotl", "train"],
        _COMMON
        | {"base_model": "model", "datasets": [{"path": "words.jsonl", "type": "completion"}], "sequence_len": 16}
        | {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "optimizer": "adamw_torch"},
    ),
}


def main(name: str, folder: Path) -> int:
    """Install, train twice, and print what was found. Return 1 if the weights differ or no energy was shown."""
    command, options = _LAUNCHERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    listed = _AXOLOTL.split() if name == "axolotl" else [name]
    (folder / "requirements.txt").write_text("\n".join(listed))
    lay_over(folder / "venv", folder / "requirements.txt", *["--no-deps"] * (name == "axolotl"))
    binaries = (folder / "venv" / "bin").absolute()
    # Built for CUDA, they cannot be imported beside a torch without it. transformers does without the first, and
    # LLaMA-Factory imports the second only for sound: an empty module stands in for it.
    removal = [binaries / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio"]
    subprocess.run(removal, check=True)
    (next(folder.glob("venv/lib/*/site-packages")) / "torchaudio.py").touch()
    subprocess.run([binaries / "python", "-c", _MODEL], cwd=folder, check=True)
    lines = [{"text": " ".join(_WORDS[number:] + _WORDS[:number])} for number in range(len(_WORDS))]
    (folder / "words.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = {"file_name": "words.jsonl", "columns": {"prompt": "text"}}
    (folder / "dataset_info.json").write_text(json.dumps({"words": columns}))
    found = []
    for output in ("plain", "measured"):
        (folder / f"{output}.yaml").write_text(json.dumps(options | {"output_dir": output}))  # JSON is YAML
        words = [*command, f"{output}.yaml"]
        if output == "measured":
            words = [str(binaries / "python"), "-m", "zeus_core", "run", "--trainer", "--", *words]
        offline = {
            "HF_HUB_OFFLINE": "1",
            "ZEUS_SIMULATED_GPUS": "A100-SXM4-80GB:1",
            "OMP_NUM_THREADS": "1",
            "DO_NOT_TRACK": "1",
        }
        environment = {**os.environ, **offline, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
        ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        (folder / f"{output}.log").write_text(ended.stdout + ended.stderr)
        if ended.returncode:
            print(f"{words} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
            return 1
        found.append(hashlib.sha256((folder / output / "model.safetensors").read_bytes()).hexdigest())
    print("the same weights" if found[0] == found[1] else "other weights")
    box = [line for line in ended.stderr.splitlines() if line.startswith(("+-", "| "))]
    print("\n".join(box) or "no energy was shown")
    return int(found[0] != found[1] or not box)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
