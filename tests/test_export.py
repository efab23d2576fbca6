"""Export: plain peft and transformers load it, and it is the policy that was trained."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from cascade_kit.__main__ import main
from cascade_kit.cascade import Run
from cascade_kit.export import check_room, export
from cascade_kit.loading import MICRO, load_policy
from cascade_kit.policy import POLICY
from cascade_kit.run_data import generated_data
from cascade_kit.stage import cascade

QUESTION = "What is 3 + 4?"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    stages = cascade(["math", "code"], steps=2, prompts=4, answers=4, learning_rate=2e-2)
    folder = tmp_path_factory.mktemp("runs") / "short"
    run = Run.create(folder, load_policy(), generated_data(stages, eval_items=8), stages)
    list(run.go())
    return run


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "whole"
    return export(run.folder, out, merged=True, dtype="float32")


def prompt(policy) -> torch.Tensor:
    return torch.tensor([policy.encode_prompt(QUESTION)])


@torch.no_grad()
def logits(model, ids) -> torch.Tensor:
    return model(input_ids=ids).logits[0]


def policy_logits(policy) -> torch.Tensor:
    with policy.using(POLICY):
        return logits(policy.model, prompt(policy))


def test_plain_peft_loads_the_adapter(run, folder):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(MICRO, dtype=torch.float32)
    before = logits(base, prompt(run.policy))
    found = logits(PeftModel.from_pretrained(base, str(folder)), prompt(run.policy))
    # micro's weights lie on the NF4 grid, so that its 32-bit base is the same function.
    assert torch.allclose(found, policy_logits(run.policy), atol=1e-3)
    assert (found - before).abs().max() > 0.1


def test_the_merged_model_is_the_policy_in_another_process(run, folder):
    """Without peft, bitsandbytes or this kit."""
    ids = prompt(run.policy).tolist()
    program = f"""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained({str(folder / "merged")!r})
tokenizer = AutoTokenizer.from_pretrained({str(folder / "merged")!r})
turns = [{{"role": "user", "content": {QUESTION!r}}}]
text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
ids = tokenizer(text, add_special_tokens=False)["input_ids"]
assert [ids] == {ids!r}, ids
with torch.no_grad():
    torch.save(model(input_ids=torch.tensor([ids])).logits[0], {str(folder.parent / "l.pt")!r})
answer = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids):]
print(tokenizer.decode(answer, skip_special_tokens=True))
import sys
assert "peft" not in sys.modules and "bitsandbytes" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.load(folder.parent / "l.pt", weights_only=True)
    assert torch.allclose(found, policy_logits(run.policy), atol=1e-4)
    from cascade_kit.problem import Problem
    from cascade_kit.rollout import rollouts

    ((own,),) = rollouts(
        run.policy, [Problem("q", "", QUESTION)], 1, max_new_tokens=24, key="x", greedy=True
    )
    assert done.stdout.strip() == own.text.strip()


@pytest.mark.parametrize(("dtype", "atol"), [("bfloat16", 0.5), ("float16", 0.05)])
def test_a_merged_model_in_16_bits_is_near(run, tmp_path, dtype, atol):
    from transformers import AutoModelForCausalLM

    out = export(run.folder, tmp_path / "out", merged=True, dtype=dtype)
    config = json.loads((out / "merged" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == dtype
    model = AutoModelForCausalLM.from_pretrained(out / "merged", dtype=torch.float32)
    assert torch.allclose(logits(model, prompt(run.policy)), policy_logits(run.policy), atol=atol)


def test_an_earlier_stage_is_exported_as_it_was(run, tmp_path):
    out = export(run.folder, tmp_path / "out", stage="math")
    name = "adapter_model.safetensors"
    stored = run.folder / "1-math" / "adapter" / name
    assert (out / name).read_bytes() == stored.read_bytes()
    assert not (out / "merged").exists()


def test_the_card_holds_the_matrix_the_stages_and_the_commands(run, folder):
    card = (folder / "README.md").read_text()
    matrix = run.matrix()
    for row, intervals in zip(matrix.scores, matrix.interval, strict=True):
        for score, (low, high) in zip(row, intervals, strict=True):
            assert f"{score:.2f} ({low:.2f} to {high:.2f})" in card
    assert f"acc {matrix.metrics['acc']:+.3f}" in card
    assert "| math | verifier | 2 | 4 | 4 | 48 | 0.02 | 1.0 | 0.0 |" in card
    assert "PeftModel.from_pretrained" in card and "`merged/`" in card
    assert "not finished" not in card
    front = card.split("---")[1]
    import yaml

    assert yaml.safe_load(front)["library_name"] == "peft"


def test_an_unfinished_run_is_exported_and_says_so(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / "2-code")
    (copy / "matrix.json").unlink()
    card = (export(copy, tmp_path / "out") / "README.md").read_text()
    assert "**The run is not finished**: code had not been trained" in card
    assert card.startswith("---") and "# micro after math\n" in card


def test_what_cannot_be_exported_is_said_and_leaves_nothing(run, tmp_path):
    out = tmp_path / "out"

    def refused(words, **changes):
        with pytest.raises(ValueError, match=words):
            export(changes.pop("run", run.folder), out, **changes)
        assert not out.exists() and not list(tmp_path.glob("*.partial"))

    refused("holds no run.json", run=tmp_path)
    refused("'swe' is not one; finished are math, code", stage="swe")
    refused("'sft' is the start", stage="sft")
    refused("dtype 'int4' is not possible", dtype="int4")
    refused("no model at ./nowhere", merged=True, model="./nowhere")
    empty = tmp_path / "run"
    shutil.copytree(run.folder, empty)
    for name in ("1-math", "2-code"):
        shutil.rmtree(empty / name)
    refused("no stage of this run is finished", run=empty)
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    with pytest.raises(ValueError, match="exists; choose another folder"):
        export(run.folder, out)
    assert (out / "mine.txt").read_text() == "kept"


def test_another_base_is_refused(run, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(MICRO)
    config.num_hidden_layers = 1
    other = tmp_path / "other"
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    AutoTokenizer.from_pretrained(MICRO).save_pretrained(other)
    with pytest.raises(ValueError, match="is not the base of this run"):
        export(run.folder, tmp_path / "out", merged=True, model=other)


def test_too_little_room_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="GiB free; make room"):
        check_room(tmp_path, 1 << 60)
    check_room(tmp_path, 1)


def test_the_command(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", str(run.folder), "--out", str(out), "--merged"]) == 0
    printed = capsys.readouterr().out
    assert str(out / "merged") in printed
    assert (out / "merged" / "model.safetensors").is_file()
    assert main(["export", str(run.folder), "--out", str(out)]) == 2
    assert "choose another folder" in capsys.readouterr().err
