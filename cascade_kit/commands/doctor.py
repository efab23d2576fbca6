"""`doctor`: what this machine can do."""

import argparse
import sys

HELP = "versions, device, 4-bit support, isolation, smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def command(arguments: argparse.Namespace) -> int:
    """Print what this machine offers, then train two steps."""
    import torch

    from cascade_kit.cascade import versions
    from cascade_kit.grpo import train
    from cascade_kit.loading import load_policy
    from cascade_kit.run_data import generated_data
    from cascade_kit.stage import cascade
    from cascade_kit.verifiers.sandbox import isolation

    for name, version in versions().items():
        print(f"{name:14} {version}")
    cuda = torch.cuda.is_available()
    print(f"{'device':14} {torch.cuda.get_device_name() if cuda else 'CPU'}")
    print(f"{'threads':14} {torch.get_num_threads()}")
    layer = isolation()
    print(f"{'isolation':14} {layer.name} ({layer.detail})")
    policy = load_policy()
    four_bit = sum(hasattr(m, "support_avx512bf16_for_cpu") for m in policy.model.modules())
    print(f"{'4-bit layers':14} {four_bit} (NF4), arithmetic in {policy.describe()['dtype']}")
    stage = cascade(["math"])[0].fast()
    before = policy.adapter_hash()
    data = generated_data([stage], eval_items=2)
    for record, _ in train(policy, stage, data.train["math"]):
        took = sum(record.seconds.values())
        print(
            f"{'smoke step ' + str(record.step):14} reward {record.reward_mean:.2f}, {took:.1f} s"
        )
    if policy.adapter_hash() == before:
        print("cascade-kit: the adapter did not change in two steps", file=sys.stderr)
        return 1
    print("all good: try  python -m cascade_kit run")
    return 0
