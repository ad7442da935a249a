"""How many servers should a pool have? Nothing here starts or stops one."""
