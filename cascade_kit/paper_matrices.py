"""The paper's own forgetting matrices, drawn and summed up by the same functions as a run's.

Source: Nemotron-Cascade, arXiv:2512.13607v2 (27 March 2026), tables 2 and 4 to 8, which report the
benchmarks after every stage (4: RLHF, 5: IF-RL, 6: Math RL, 7: Code RL, 8: SWE RL). The numbers
stand in `forgetting.PAPER_MATRICES`, in points; here they become shares. Each stage has its own
benchmark as its column; all 30 cells of each model are reported, so none is empty. There is one
run a model and no error bar, so these matrices have neither n nor intervals.

Table 4 prints three arrows for the 14B model that do not fit its own scores (IFEval, ArenaHard,
IFBench); the scores are used. The paper tests the IFEval column of the unified 8B model without
thinking and all others with it.
"""

from cascade_kit.forgetting import (
    PAPER_BENCHMARKS,
    PAPER_DOMAINS,
    PAPER_MATRICES,
    PAPER_STAGES,
    ForgettingMatrix,
)

MODELS = tuple(PAPER_MATRICES)
# What the columns measure, for `plot_matrix` and `html_tables`; short enough for a figure.
_SHORT = {
    "LiveCodeBench v6": "LCB v6",
    "SWE-bench Verified": "SWE-bench V.",
    "IFEval strict": "IFEval",
}
LABELS = {
    domain: f"{domain}\n{_SHORT.get(benchmark, benchmark)}"
    for domain, benchmark in zip(PAPER_DOMAINS, PAPER_BENCHMARKS, strict=True)
}


def paper_matrix(model: str) -> ForgettingMatrix:
    """The matrix of one of MODELS, scores in [0, 1] (6 rows, 5 columns), without intervals.

    Raises ValueError for another name.
    """
    if model not in PAPER_MATRICES:
        raise ValueError(f"the paper has no matrix of {model!r}; choose from {', '.join(MODELS)}")
    scores = [[points / 100 for points in row] for row in PAPER_MATRICES[model]]
    return ForgettingMatrix.from_scores(PAPER_STAGES, PAPER_DOMAINS, scores)
