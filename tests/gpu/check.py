"""What only a machine with a CUDA GPU can check. Without one it says so and ends well.

    python tests/gpu/check.py

No network is needed: the models have random weights in the shapes of Qwen2.5-0.5B and -1.5B, with
the embedded model's tokenizer and chat template.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

QWEN = {
    "model_type": "qwen2", "vocab_size": 151_936, "max_position_embeddings": 32_768,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip
SHAPES = {
    "0.5B": QWEN | {
        "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14,
    },
    "1.5B": QWEN | {
        "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12,
    },
}  # fmt: skip
AIM = 2.0  # TRL's seconds a step over ours


# ---- ours against TRL --------------------------------------------------------------------------


def ours_against_trl(shape: str, pairs: int = 3, steps: int = 3) -> bool:
    """Time both engines on one shape; True if the median ratio reaches the aim.

    Lengths are forced and every group has a gradient: random weights would neither stop nor solve
    anything.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, figures = Path(folder, f"qwen2-{shape}"), Path(folder, "figures.json")
        make_model(model, SHAPES[shape])
        command = [
            sys.executable, str(TESTS / "bench" / "vs_trl.py"), "--model", str(model),
            "--device", "cuda", "--pairs", str(pairs), "--steps", str(steps), "--prompts", "8",
            "--answers", "8", "--max-new-tokens", "128", "--lengths", "forced",
            "--reward", "alternating", "--json", str(figures),
        ]  # fmt: skip
        done = subprocess.run(command, check=False)
        if not figures.exists():
            print(f"ours against TRL, {shape}: the run failed, see above", flush=True)
            return False
        ratio = json.loads(figures.read_text(encoding="utf-8"))["seconds_per_step"]["ratio"]
    reached = ratio["median"] >= AIM and done.returncode == 0
    print(
        f"ours against TRL, {shape}: {ratio['median']:.2f} ({ratio['min']:.2f} to "
        f"{ratio['max']:.2f}), aim {AIM}: {'reached' if reached else 'NOT reached'}",
        flush=True,
    )
    return reached


def make_model(folder: Path, config: dict) -> None:
    """Random weights in bfloat16, made in a process of its own so that none of its memory stays."""
    code = (
        "import json, sys; from pathlib import Path; from ours import random_model; "
        "random_model(Path(sys.argv[1]), json.loads(sys.argv[2]), 'bfloat16')"
    )
    paths = f"import sys; sys.path[:0] = [{str(TESTS / 'bench')!r}, {str(TESTS.parent)!r}]; "
    command = [sys.executable, "-c", paths + code, str(folder), json.dumps(config)]
    subprocess.run(command, check=True)


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to check")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    results = [ours_against_trl(shape) for shape in SHAPES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
