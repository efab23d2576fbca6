"""Exports, reloaded by plain peft and plain transformers from a run that really trained."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from cascade_kit import export_merge
from cascade_kit.__main__ import main
from cascade_kit.cascade import Run
from cascade_kit.domains.instruct import INSTRUCT
from cascade_kit.export import export
from cascade_kit.loading import MICRO, load_policy
from cascade_kit.run_data import generated_data
from cascade_kit.session import kept_folder
from cascade_kit.stage import cascade


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two stages of two steps, at a rate that moves greedy answers; the second is not finished."""
    stages = cascade(["math", "code"], steps=2, prompts=4, answers=8, learning_rate=1e-2)
    data = generated_data([replace(s, steps=2) for s in stages], eval_items=6)
    folder = tmp_path_factory.mktemp("runs") / "short"
    run = Run.create(folder, load_policy(), data, stages, seed=4)
    run.events = list(run.go())
    return run


@pytest.fixture(scope="module")
def merged(run, tmp_path_factory):
    """Everything exported in float32, so that only the order of sums differs."""
    return export(run.folder, tmp_path_factory.mktemp("out") / "x", merged=True, dtype="float32")


@pytest.fixture(scope="module")
def policy(run):
    """The policy as the last stage left it."""
    return run.policy


def prompts(run) -> list[str]:
    """Of a trained domain, and of one whose greedy answers are open enough to move."""
    problems = [*run.data.eval["math"], *INSTRUCT.problems("eval", 8)]
    return [p.prompt for p in problems]


def logits(model, tokenizer, run) -> torch.Tensor:
    rows = []
    for prompt in prompts(run):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(ids, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            rows.append(model(input_ids=ids, use_cache=False).logits[0].float())
    return torch.cat(rows)


def greedy(model, tokenizer, run) -> list[list[int]]:
    found = []
    for prompt in prompts(run):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        found.append(model.generate(**ids, max_new_tokens=24, do_sample=False)[0].tolist())
    return found


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


def test_adapter_loads_by_plain_peft_as_the_policy(run, policy, merged):
    base = AutoModelForCausalLM.from_pretrained(MICRO, dtype=torch.float32)
    before = logits(base, policy.tokenizer, run)
    wanted = logits(policy.model, policy.tokenizer, run)
    plain = PeftModel.from_pretrained(base, merged.adapter)
    assert distance(logits(plain, policy.tokenizer, run), wanted) < 1e-5
    assert distance(before, wanted) > 0.1


def test_merged_folder_loads_by_plain_transformers_as_the_policy(run, policy, merged):
    plain = AutoModelForCausalLM.from_pretrained(merged.merged)
    tokenizer = AutoTokenizer.from_pretrained(merged.merged)
    wanted = logits(policy.model, policy.tokenizer, run)
    assert plain.dtype == torch.float32
    assert distance(logits(plain, tokenizer, run), wanted) < 1e-4
    base = AutoModelForCausalLM.from_pretrained(MICRO, dtype=torch.float32)
    answers = greedy(plain, tokenizer, run)
    adapted = PeftModel.from_pretrained(base, merged.adapter)
    assert answers == greedy(adapted, tokenizer, run)
    untouched = AutoModelForCausalLM.from_pretrained(MICRO, dtype=torch.float32)
    assert answers != greedy(untouched, tokenizer, run)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 0.05), ("auto", 0.4)])
def test_merged_in_16_bits_is_the_policy_up_to_rounding(run, policy, tmp_path, dtype, most):
    exported = export(run.folder, tmp_path / "x", merged=True, dtype=dtype)
    plain = AutoModelForCausalLM.from_pretrained(exported.merged)
    assert plain.dtype == {"auto": torch.bfloat16, "float16": torch.float16}[dtype]
    # The weights alone are rounded here; the sums are those of the policy.
    found = logits(plain.float(), policy.tokenizer, run)
    assert 0 < distance(found, logits(policy.model, policy.tokenizer, run)) < most


def test_merged_folder_is_an_ordinary_one(merged):
    names = {path.name for path in merged.merged.iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors"}
    config = json.loads((merged.merged / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "float32" and config["architectures"] == ["LlamaForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(merged.merged)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(MICRO).chat_template
    ends = json.loads((merged.merged / "generation_config.json").read_text())["eos_token_id"]
    assert ends in (2, [2])


def test_shards_hold_the_same_tensors(run, merged, tmp_path, monkeypatch):
    monkeypatch.setattr(export_merge, "SHARD_BYTES", 1 << 20)
    exported = export(run.folder, tmp_path / "x", merged=True, dtype="float32")
    index = json.loads((exported.merged / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert not list(exported.merged.glob("part-*"))
    parts = AutoModelForCausalLM.from_pretrained(exported.merged).state_dict()
    whole = AutoModelForCausalLM.from_pretrained(merged.merged).state_dict()
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def damaged_grid(folder: Path) -> Path:
    """micro with weights that do not lie on the NF4 grid."""
    shutil.copytree(MICRO, folder)
    model = AutoModelForCausalLM.from_pretrained(MICRO, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bits", [4, 16])
def test_the_merge_is_into_the_dequantised_base(tmp_path, run, bits):
    """Where quantisation changes the weights, the original ones give other logits."""
    source = damaged_grid(tmp_path / "base")
    policy = load_policy(source, bits=bits)
    with torch.no_grad():
        for name, p in policy.adapter_parameters("policy").items():
            p.add_(0.02 * ("lora_B" in name))
    policy.save_adapter(tmp_path / "adapter")
    (tmp_path / "out").mkdir()
    export_merge.write_merged(
        policy.describe(), tmp_path / "adapter", str(source), tmp_path / "out" / "m", "float32"
    )
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "m")
    wanted = logits(policy.model, policy.tokenizer, run)
    assert distance(logits(plain, policy.tokenizer, run), wanted) < 1e-3
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    original = PeftModel.from_pretrained(base, tmp_path / "adapter")
    off = distance(logits(original, policy.tokenizer, run), wanted)
    assert off > 0.1 if bits == 4 else off < 1e-4


def blocks(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)


def test_the_card_is_read_by_hubs_and_by_people(run, merged):
    text = merged.card.read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["cascade-rl", "lora"],
    }
    matrix = run.matrix()
    for row, scores in enumerate(matrix.scores):
        (line,) = [
            ln for ln in body.splitlines()
            if ln.startswith(f"| {matrix.stages[row]} | {scores[0]:.2f} (")
        ]  # fmt: skip
        for score, (low, high) in zip(scores, matrix.interval[row], strict=True):
            assert f"{score:.2f} ({low:.2f} to {high:.2f})" in line
    assert f"| bwt | {matrix.metrics['bwt']:.3f} |" in body
    assert f"| forgetting | {matrix.metrics['forgetting']:.3f} |" in body
    assert "| math | 2 | 4 | 8 | 48 | 0.01 |" in body
    assert "problems generated by the kit" in body and "| torch | " in body
    tables = [ln.count(" | ") for ln in body.splitlines() if ln.startswith("| after")]
    assert tables == [2, 2]


def test_the_code_of_the_card_runs_in_its_folder(run, policy, merged, monkeypatch):
    monkeypatch.chdir(merged.folder)
    adapter, whole = blocks(merged.card.read_text(encoding="utf-8"))
    for code in (adapter, whole):
        names: dict = {}
        exec(compile(code, "card", "exec"), names)
        for layer in names["model"].modules():
            if hasattr(layer, "support_avx512bf16_for_cpu"):
                layer.support_avx512bf16_for_cpu = False
        found = logits(names["model"], names["tokenizer"], run)
        assert distance(found, logits(policy.model, policy.tokenizer, run)) < 1e-4


def test_an_earlier_stage_of_an_unfinished_run(run, tmp_path):
    cut = tmp_path / "cut"
    shutil.copytree(run.folder, cut)
    shutil.rmtree(cut / "2-code" / "adapter")
    exported = export(cut, tmp_path / "x")
    assert exported.stage == "math" and exported.merged is None
    assert exported.notes == ("The run is not finished: code not trained yet.",)
    text = exported.card.read_text(encoding="utf-8")
    assert exported.notes[0] in text and exported.notes[0] in str(exported)
    assert "| code | 2 |" not in text  # neither its settings nor its row
    assert sorted(p.name for p in exported.folder.iterdir()) == ["README.md", "adapter"]
    weights = "adapter/adapter_model.safetensors"
    assert (exported.folder / weights).read_bytes() == (cut / "1-math" / weights).read_bytes()


def test_from_the_command_line(run, tmp_path, capsys):
    out = tmp_path / "x"
    arguments = [str(run.folder), "--out", str(out), "--stage", "math", "--model", "me/micro"]
    assert main(["export", *arguments]) == 0
    assert f"model card: {out / 'README.md'}" in capsys.readouterr().out
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "me/micro"
    assert "base_model: me/micro\n" in (out / "README.md").read_text(encoding="utf-8")
    assert main(["export", *arguments]) == 2
    assert "exists and is not empty; choose another --out" in capsys.readouterr().err


def other_shape(folder: Path) -> Path:
    """A model with micro's tokenizer and other layers."""
    config = LlamaConfig(
        vocab_size=1024, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=2, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(MICRO).save_pretrained(folder)
    return folder


def test_another_base_is_refused_before_anything_is_written(run, tmp_path):
    base = other_shape(tmp_path / "base")
    for whole in (True, False):
        with pytest.raises(ValueError, match=r"was made on another base model than .*down_proj"):
            export(run.folder, tmp_path / "x", merged=whole, model=base)
    ends = tmp_path / "ends"
    shutil.copytree(MICRO, ends)
    config = json.loads((ends / "generation_config.json").read_text()) | {"eos_token_id": [2, 5]}
    (ends / "generation_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"ends an answer by the token ids \[2, 5\]"):
        export(run.folder, tmp_path / "x", merged=True, model=ends)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "ends"]


def test_a_local_base_must_be_named(run, tmp_path):
    moved = tmp_path / "run"
    shutil.copytree(run.folder, moved)
    settings = json.loads((moved / "run.json").read_text())
    settings["model"] = "my-model"
    (moved / "run.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="the local model my-model; say where it is by --model"):
        export(moved, tmp_path / "x", merged=True)
    exported = export(moved, tmp_path / "x", merged=True, model=MICRO, dtype="float32")
    assert '"my-model"  # a local model; write its path' in exported.card.read_text()


def test_a_full_disk_is_told_before_the_merge(run, tmp_path, monkeypatch):
    full = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr(export_merge.shutil, "disk_usage", lambda place: full)
    with pytest.raises(ValueError, match=r"takes 0.00 GB .* has 0.00 GB free; choose an --out"):
        export(run.folder, tmp_path / "x", merged=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stage", "removed", "message"),
    [
        ("poetry", [], "has no finished stage 'poetry'; it has math, code"),
        ("sft", [], "has no finished stage 'sft'; it has math, code"),
        (None, ["run.json"], "holds no run.json: give the folder that `run --out` wrote"),
        (None, ["1-math", "2-code"], "has no finished stage yet; go on with `run --resume --out`"),
    ],
)
def test_what_cannot_be_exported(run, tmp_path, stage, removed, message):
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    for name in removed:
        path = folder / name
        path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(ValueError, match=message):
        export(folder, tmp_path / "x", stage=stage)
    assert not (tmp_path / "x").exists()


def test_an_unreadable_run_and_dtype(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    with pytest.raises(ValueError, match="dtype 'int4' is not possible; choose bfloat16"):
        export(folder, tmp_path / "x", merged=True, dtype="int4")
    (folder / "run.json").write_text('{"order": ')
    with pytest.raises(ValueError, match="run.json cannot be read"):
        export(folder, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("template", ["plain", "chatml"])
def test_a_template_that_was_given_goes_with_the_model(template, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(MICRO, base)
    (base / "chat_template.jinja").unlink()
    policy = load_policy(base, chat_template=template)
    stages = cascade(["math"], steps=1, prompts=2, answers=2)
    run = Run.create(tmp_path / "run", policy, generated_data(stages, eval_items=2), stages)
    for _ in run.go(skip_preflight=True):
        pass
    found = export(run.folder, tmp_path / "x", merged=True, model=base)
    merged = load_policy(found.merged, bits=16)
    assert merged.encode_prompt("Hello?") == policy.encode_prompt("Hello?")
    assert merged.stop_ids == policy.stop_ids


# ---- where a run outlives the machine ------------------------------------------------------------


def test_kept_folder_is_in_drive_on_colab_only(tmp_path, monkeypatch):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    assert kept_folder("mine") == tmp_path / "mine"
    mounted: list[str] = []
    monkeypatch.setitem(sys.modules, "google", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "google.colab.drive", SimpleNamespace(mount=mounted.append))
    assert kept_folder("mine", drive=False) == tmp_path / "mine" and mounted == []
    assert kept_folder("mine") == Path("/content/drive/MyDrive/cascade-kit/mine")
    assert mounted == ["/content/drive"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "/tmp"])
def test_kept_folder_wants_a_name(name):
    with pytest.raises(ValueError, match="is no name of a folder"):
        kept_folder(name)
