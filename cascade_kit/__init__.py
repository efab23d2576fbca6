"""cascade-kit: sequential, domain-wise RL of one language model, and what it forgets.

Start with `cascade_kit.stage.cascade` (what a stage is), `cascade_kit.loading.load_policy`,
`cascade_kit.grpo.train` (the algorithm) and `cascade_kit.cascade.Run` (the whole cascade).
"""
