"""The kubectl plugin `kubectl speculator`: reads and commands Speculators with the user's own kubeconfig and rights.

`main.py` names the commands; `cluster.py` and `ledger.py` touch the world; most others are pure: from objects to text.
"""
