"""Train on several processes and machines: `init` finds the group of processes that a launcher has started."""

from einsmith.distributed.group import ProcessGroup as ProcessGroup
from einsmith.distributed.launch import init as init

__all__ = ["ProcessGroup", "init"]
