"""What people and scripts ask of a cluster: what runs, where its things are."""

import json
import shlex

from . import lifecycle, processes, programs
from .layout import ClusterError, Layout


def table(layout: Layout) -> str:
    """A line for each program, and where the kubeconfig, logs, S3 server and images are."""
    lines = []
    for name in programs.ORDER_OF_ENDING:
        pid = processes.pid_of(name)
        lines.append(f"{name:<26}{f'running, pid {pid}' if pid else 'not running'}")
    lines.append(f"{'node':<26}{'Ready' if lifecycle.is_up(layout) else 'not ready'}")
    lines.append(f"{'kubeconfig':<26}{layout.kubeconfig}")
    lines.append(f"{'logs':<26}{layout.logs}")
    lines.append(f"{'S3 endpoint and keys':<26}{layout.s3_credentials}")
    if layout.images.is_file():
        lines += [f"{'image ' + key:<26}{name}" for key, name in json.loads(layout.images.read_text()).items()]
    return "\n".join(lines) + "\n"


def exports(layout: Layout) -> str:
    """Shell lines that give kubectl, helm and S3 clients what they need.

    Raises ClusterError when the cluster was never up.
    """
    if not layout.s3_credentials.is_file():
        raise ClusterError("there is no cluster yet: run `cluster up`")
    s3 = json.loads(layout.s3_credentials.read_text())
    values = {
        "KUBECONFIG": str(layout.kubeconfig),
        "AWS_ENDPOINT_URL_S3": s3["endpoint"],
        "AWS_REGION": s3["region"],
        "AWS_ACCESS_KEY_ID": s3["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": s3["secretAccessKey"],
    }
    lines = [f"export {key}={shlex.quote(value)}" for key, value in values.items()]
    return "\n".join([*lines, f'export PATH={shlex.quote(str(layout.bin))}:"$PATH"']) + "\n"
