"""What notebooks show: progress and figures while something runs, and panels to touch the rest."""

from cascade_kit.live.attach import attach as attach
from cascade_kit.live.browse import rollout_browser as rollout_browser
from cascade_kit.live.chat import chat as chat
from cascade_kit.live.explore import matrix_explorer as matrix_explorer
from cascade_kit.live.history import History as History
from cascade_kit.live.panel import stage_panel as stage_panel
from cascade_kit.live.sandbox import reward_sandbox as reward_sandbox
from cascade_kit.live.watch import watch as watch
