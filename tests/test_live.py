"""What notebooks show: with real steps, real signals, IPython's display machinery and a kernel."""

import json
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_kit import live
from cascade_kit.cascade import Event, Run
from cascade_kit.grpo import train
from cascade_kit.live.history import History
from cascade_kit.live.progress import Progress, Status, time_words
from cascade_kit.live.watch import in_notebook
from cascade_kit.loading import load_policy
from cascade_kit.preflight_report import Finding, Preflight
from cascade_kit.records import StepRecord
from cascade_kit.run_data import generated_data
from cascade_kit.session import open_session
from cascade_kit.stage import cascade

ROOT = Path(__file__).resolve().parents[1]
STEP = StepRecord(
    step=1, reward_mean=0.25, reward_std=0.4, success_mean=0.5, parts={}, all_right=0.0,
    all_wrong=0.5, kl=None, entropy=1.0, grad_norm=0.125, learning_rate=1e-3, length_mean=9.0,
    truncated=0.0, tokens=36, logprob_gap=0.0, loss=0.0,
    seconds={"rollout": 1.0, "score": 0.5, "update": 0.5}, peak_memory_mb=None,
)  # fmt: skip


@pytest.fixture(autouse=True)
def foreground(monkeypatch, tmp_path):
    """The handler of a program in the foreground, and a folder for the runs."""
    monkeypatch.setenv("CASCADE_FAST", "1")
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def steps(count: int, stage: str = "math"):
    for i in range(1, count + 1):
        yield Event("step", stage, i, count, record=replace(STEP, step=i))


def pressing(events, *, at: int, times: int = 1, sent: int = signal.SIGINT):
    """The same events; before step `at` comes out, somebody presses Ctrl-C."""
    for number, event in enumerate(events, start=1):
        if number == at:
            for _ in range(times):
                os.kill(os.getpid(), sent)
        yield event


# ---- text --------------------------------------------------------------------------------------


def test_outside_a_notebook_every_tenth_of_the_steps_is_a_line(capsys):
    history = live.watch(steps(30))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0] == (
        "train math, step 3 of 30, reward 0.25, success 0.50, length 9, gradient norm 0.12, "
        "6 s, about 54 s left"
    )
    assert lines[-1].endswith("60 s, done")
    assert [r.step for r in history.records] == list(range(1, 31))
    assert not history.interrupted


def test_a_terminal_gets_one_bar_a_phase(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    live.watch([*steps(2), Event("evaluated", "math", 1, 1, "math", 0.75)])
    bars = capsys.readouterr().err
    assert "train math: 100%" in bars
    assert "test after math: 100%" in bars
    assert "math 0.75" in bars


def test_records_and_answers_of_grpo_are_watched_too(capsys):
    policy = load_policy()
    stage = replace(cascade(["math"])[0].fast(), prompts=2, max_new_tokens=8)
    problems = stage.domain.problems("train", 4)
    history = live.watch(train(policy, stage, problems), total=stage.steps)
    assert "step 2 of 2" in capsys.readouterr().out
    assert [r.step for r in history.records] == [1, 2]
    with pytest.raises(ValueError, match="watch cannot show int: give it grpo.train"):
        live.watch([3])


def test_evaluations_and_reward_models_have_their_words():
    progress = Progress()
    progress.add(Event("reward model", "rlhf", 2, 2, score=0.875))
    progress.add(Event("evaluated", "sft", 1, 2, "math", 0.5))
    progress.add(Event("evaluated", "sft", 2, 2, "code", 0.25))
    assert progress.words().startswith("test after sft, 2 of 2, math 0.50, code 0.25, ")
    assert progress.before[0].startswith("reward model of rlhf, 2 of 2, pairs right 0.88, ")
    history = progress.history()
    assert history.summary() == "After sft: math 0.50, code 0.25."
    assert "<caption>Score on held-out problems</caption>" in history._repr_html_()
    assert time_words(5, 0.0) == "5 s, done"


def test_a_preflight_and_the_end_have_their_words(capsys):
    report = Preflight(
        stage="math", draws=1, prompts=4, answers=32, scored=32, pass_rate=0.5, interval=(0.3, 0.7),
        spread=1.0, truncated=0.25, unreadable=0.0, reasons={}, distinct=8.0, template_tail="",
        faults=(), gap=0.0, tolerance=1e-3, seconds={"rollout": 2.0, "score": 1.0, "forward": 1.0},
        estimate_seconds=60.0, examples=(),
        findings=(Finding("warn", "8 are cut", "raise it"), Finding("note", "well known")),
    )  # fmt: skip
    events = [Event("pre-flight", "math", 1, 1, report=report), *steps(1)]
    live.watch([*events, Event("finished", "math")])
    told, trained = capsys.readouterr().out.splitlines()
    expected = "pre-flight of math, 1 of 1, may run, with warnings; warn: 8 are cut -> raise it"
    assert told == f"{expected}, 4 s, done"
    assert trained.startswith("train math, step 1 of 1")
    progress = Progress()
    for event in [*events, Event("finished", "math")]:
        progress.add(event)
    assert progress.words() == "finished"
    assert progress.before[0] == told and len(progress.before) == 2
    assert progress.status().total == 0  # no bar


def test_status_has_a_named_bar_and_escaped_text():
    status = Status(("a < b",), "step 1 of 2", 1, 2)
    assert status._repr_html_() == (
        '<div>a &lt; b</div><div><label><progress value="1" max="2"></progress><br>step 1 of 2'
        "</label></div>"
    )
    assert repr(status) == "a < b\nstep 1 of 2"


def test_history_is_a_table_and_a_sentence():
    records = tuple(replace(STEP, step=i) for i in range(1, 31))
    history = History({"math <1>": records}, {}, 30)
    page = history._repr_html_()
    assert "<caption>Stage math &lt;1&gt;: 30 steps, 22 steps in the middle left out" in page
    assert '<th scope="col">gradient norm</th>' in page
    assert [i for i in range(1, 31) if f'<th scope="row">{i}</th>' in page] == [
        1, 2, 3, 26, 27, 28, 29, 30,
    ]  # fmt: skip
    assert history.summary() == "math <1>: mean reward 0.25 → 0.25 over 30 steps."
    assert repr(History()) == "History: Nothing happened yet."


# ---- interrupts --------------------------------------------------------------------------------


def test_an_interrupt_ends_after_the_step_and_the_same_cell_goes_on(tmp_path, capsys):
    def opened(name):
        session = open_session("math", folder=tmp_path / name, eval_items=2)
        session.configure(steps=4, prompts=2, answers=2, max_new_tokens=16)
        return session

    session = opened("cut")
    history = live.watch(pressing(session.train(), at=2))
    printed = capsys.readouterr().out
    assert history.interrupted
    assert [r.step for r in history.records] == [1, 2]
    assert history.summary().endswith("Interrupted after step 2 of 4.")
    assert "Interrupted after step 2 of 4, between two steps" in printed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    logged = (tmp_path / "cut" / "3-math" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in logged] == [1, 2]
    assert session.facts["state"] == "interrupted"
    whole = live.watch(session.train())
    assert [r.step for r in whole.records] == [1, 2, 3, 4]
    assert not whole.interrupted
    other = opened("whole")
    list(other.train())
    assert session.policy.adapter_hash() == other.policy.adapter_hash()


def test_a_second_interrupt_raises_at_once(capsys):
    with pytest.raises(KeyboardInterrupt):
        live.watch(pressing(steps(5), at=3, times=2))
    assert "step 2 of 5" in capsys.readouterr().out.splitlines()[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_termination_finishes_the_step_and_then_ends_the_process(capsys):
    printed = []
    before = signal.signal(signal.SIGTERM, lambda *_: printed.append(capsys.readouterr().out))
    try:
        live.watch(pressing(steps(5), at=3, sent=signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Interrupted after step 3 of 5" in printed[0]


def test_an_interrupt_in_the_last_step_lets_the_end_be_saved(capsys):
    ended = []

    def training():
        yield from steps(2)
        ended.append(True)

    history = live.watch(pressing(training(), at=2))
    assert ended == [True]
    assert not history.interrupted


def test_a_run_that_is_interrupted_goes_on_with_a_new_policy_from_its_checkpoint(tmp_path, capsys):
    """As in 10_your_model_on_colab: closing the events writes the checkpoint."""

    def opened(name, *, resume=False):
        policy = load_policy()
        stages = cascade(["math"], steps=4, prompts=2, answers=2, max_new_tokens=16)
        data = generated_data(stages, eval_items=2)
        return Run.create(tmp_path / name, policy, data, stages, resume=resume)

    whole, cut = opened("whole"), opened("cut")
    list(whole.go())
    with closing(cut.go()) as events:  # start tested, pre-flight, step 1, step 2
        history = live.watch(pressing(events, at=3))
    assert history.interrupted and "run.go(), which" in capsys.readouterr().out.replace("\n", " ")
    assert [r.step for r in history.records] == [1]
    assert len(list((tmp_path / "cut" / "1-math" / "checkpoints").iterdir())) == 1
    with closing(opened("cut", resume=True).go()) as events:
        history = live.watch(pressing(events, at=1))
    assert [r.step for r in history.records] == [2]
    assert history.summary().endswith("Interrupted after step 2 of 4.")
    resumed = opened("cut", resume=True)
    with closing(resumed.go()) as events:
        history = live.watch(events)
    assert [r.step for r in history.records] == [3, 4] and not history.interrupted
    assert resumed.policy.adapter_hash() == whole.policy.adapter_hash()


def test_an_interrupt_during_a_preflight_stops_before_the_training(capsys):
    events = iter([Event("pre-flight", "math", 1, 1), *steps(2)])
    history = live.watch(pressing(events, at=1))
    assert history.interrupted and not history.records
    assert next(events).kind == "step"
    assert "Interrupted during 'pre-flight' of math" in capsys.readouterr().out


# ---- a notebook --------------------------------------------------------------------------------


@pytest.fixture
def displayed():
    """What a notebook's page would receive: dicts with data, transient and update."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    InteractiveShell.clear_instance()


def test_a_notebook_has_one_status_and_one_figure(displayed, capsys):
    assert in_notebook()
    live.watch(steps(3))
    first = [o for o in displayed if not o["update"]]
    assert len(first) == 2  # everything else is an update in place
    status, figure = (o["transient"]["display_id"] for o in first)
    assert first[0]["data"]["text/plain"] == "waiting for the first step"
    last = {o["transient"]["display_id"]: o["data"] for o in displayed}
    assert 'max="3"' in last[status]["text/html"]
    assert last[status]["text/plain"].startswith("train math, step 3 of 3, reward 0.25")
    assert last[figure]["text/plain"] == "math: mean reward 0.25 → 0.25 over 3 steps"
    assert last[figure]["image/png"]
    assert len(displayed) <= 5  # at most once a second, and at the end
    assert capsys.readouterr().out == ""


def test_an_interrupted_watch_leaves_its_state_in_the_notebook(displayed, capsys):
    live.watch(pressing(steps(9), at=4))
    texts = [o["data"]["text/plain"] for o in displayed]
    assert any("step 4 of 9" in text and text.endswith("interrupted") for text in texts)
    assert "Interrupted after step 4 of 9" in capsys.readouterr().out


# ---- from disk ---------------------------------------------------------------------------------


def test_attach_tells_a_stage_from_its_files(tmp_path, capsys):
    with pytest.raises(ValueError, match="there is no run folder"):
        live.attach(tmp_path / "none")
    session = open_session("math", eval_items=2)
    with pytest.raises(ValueError, match="holds no trained step yet"):
        live.attach()
    session.configure(steps=2, prompts=2, answers=2, max_new_tokens=16)
    training = session.train()
    next(training)
    capsys.readouterr()
    running = live.attach()
    assert not running.interrupted
    assert running.state.startswith("math: step 1 of 2, the last one 0 s ago")
    training.close()
    assert live.attach().state == "math: step 1 of 2, interrupted"
    log = session.folder / "3-math" / "steps.jsonl"
    facts = session.folder / "3-math" / "stage.json"
    told = facts.read_text()
    facts.unlink()  # as in a run of the command line
    os.utime(log, (0, 0))
    assert "it seems to have stopped" in live.attach().state
    facts.write_text(told)
    list(session.train())
    list(session.evaluate())
    done = live.attach(follow=True)
    assert done.state == "math: step 2 of 2, finished"
    assert [r.step for r in done.records] == [1, 2]
    assert done.scores.keys() == {"math"}
    with pytest.raises(ValueError, match="no steps of a stage 'code'"):
        live.attach(stage="code")


def test_following_ends_with_the_stage(tmp_path, capsys, monkeypatch):
    """Each look lets the training do one more step."""
    session = open_session("math", eval_items=2)
    session.configure(steps=3, prompts=2, answers=2, max_new_tokens=16)
    training = session.train()
    next(training)
    monkeypatch.setattr("time.sleep", lambda seconds: next(training, None))
    history = live.attach(follow=True)
    assert [r.step for r in history.records] == [1, 2, 3]
    assert history.state == "math: step 3 of 3, finished"


# ---- a real kernel -----------------------------------------------------------------------------


def test_the_stop_button_of_a_kernel_stops_between_steps(tmp_path):
    from jupyter_client.manager import start_new_kernel

    def run(code: str, *, stop_after: int = 0) -> str:
        """The printed text of a cell; a kernel interrupt is sent once so many steps are logged."""
        message = client.execute(code)
        printed = []
        while True:
            reply = client.get_iopub_msg(timeout=120)
            if reply["parent_header"].get("msg_id") != message:
                continue
            content = reply["content"]
            assert reply["msg_type"] != "error", content["traceback"]
            printed.append(content.get("text", ""))
            if stop_after and log.exists() and log.read_text().count("\n") >= stop_after:
                stop_after = 0
                manager.interrupt_kernel()
            if reply["msg_type"] == "status" and content["execution_state"] == "idle":
                return "".join(printed)

    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(tmp_path))
    log = tmp_path / "notebooks-fast" / "3-math" / "steps.jsonl"
    try:
        run(
            "from cascade_kit import live\n"
            "from cascade_kit.session import open_session\n"
            "session = open_session('math', eval_items=2)\n"
            "session.configure(steps=30, prompts=2, answers=2, max_new_tokens=16)"
        )
        cell = "history = live.watch(session.train())"
        assert "between two steps" in run(cell, stop_after=2)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        assert 2 <= len(rows) < 30
        rollouts = (log.parent / "rollouts.jsonl").read_text().splitlines()
        assert len(rollouts) == 4 * len(rows)
        assert run("print(history.interrupted, len(history.records))") == f"True {len(rows)}\n"
        run(cell)
        assert run("print(history.interrupted, len(history.records))") == "False 30\n"
        assert log.read_text().count("\n") == 30
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
