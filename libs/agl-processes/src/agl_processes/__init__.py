"""agl-processes: the tree of processes below one of ours; see ``tree``."""
