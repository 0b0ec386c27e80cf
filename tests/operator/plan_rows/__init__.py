"""Every situation that the planner is shown."""

from tests.operator.plan_rows import drain, ledger, limits, rollout, size

SITUATIONS = [*rollout.ROWS, *drain.ROWS, *size.ROWS, *limits.ROWS, *ledger.ROWS]
