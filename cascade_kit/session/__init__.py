"""What a notebook opens: `open_session("math")`, one stage in the folder that all notebooks share.

`session.py` is the session itself; beside it lie its parts: the run folder (`folder`), the problems
(`data`), a training that may rest (`training`), the weights (`weights`), sampled answers
(`answers`), what a stage costs (`costs`) and where a run outlives the machine (`drive`).
"""

from cascade_kit.session.answers import Reply as Reply
from cascade_kit.session.costs import Costs as Costs
from cascade_kit.session.data import own_stage as own_stage
from cascade_kit.session.drive import kept_folder as kept_folder
from cascade_kit.session.session import Session as Session
from cascade_kit.session.session import open_session as open_session
