"""What is wrong with a pod, in the words of who knows."""

import pytest

from speculator_operator.reconcile.podhealth import view_pod, view_pods


def pod(name: str = "chat-engine-0", component: str = "engine", **status) -> dict:
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}, "status": status}


def waiting(container: str, reason: str, message: str = "", **more) -> dict:
    return {"name": container, "state": {"waiting": {"reason": reason, "message": message}}, **more}


def terminated(container: str, code: int, message: str = "", reason: str = "Error") -> dict:
    return {"name": container, "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}


READY = [{"type": "Ready", "status": "True"}]


def test_a_ready_pod_has_no_problem_and_its_address() -> None:
    view = view_pod(pod(conditions=READY, podIP="10.0.0.7"))
    assert (view.ready, view.address, view.reachable, view.problem) == (True, "10.0.0.7", True, None)


def test_a_pod_that_is_being_deleted_is_not_ready_whatever_it_says() -> None:
    going = pod(conditions=READY)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    view = view_pod(going)
    assert (view.ready, view.terminating, view.problem) == (False, True, None)


def test_a_pod_that_starts_has_no_problem() -> None:
    assert view_pod(pod(initContainerStatuses=[waiting("fetch-target", "PodInitializing")])).problem is None


def test_the_schedulers_reason_is_passed_on() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }
    problem = view_pod(pod(conditions=[condition])).problem
    assert problem.reason == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in problem.message
    assert "chat-engine-0" in problem.message


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_pulled(reason: str) -> None:
    problem = view_pod(pod(containerStatuses=[waiting("engine", reason, "not found: example/none:1")])).problem
    assert problem.reason == "ImagePullFailed"
    assert "example/none:1" in problem.message
    assert "engine" in problem.message


def test_a_missing_secret_of_a_container() -> None:
    status = waiting("agent", "CreateContainerConfigError", 'secret "s3" not found')
    problem = view_pod(pod(initContainerStatuses=[status])).problem
    assert problem.reason == "ContainerConfigError"
    assert 'secret "s3" not found' in problem.message


def test_a_target_that_cannot_be_fetched_is_told_with_the_programs_last_words() -> None:
    status = waiting("fetch-target", "CrashLoopBackOff", "back-off 10s", restartCount=3)
    status["lastState"] = terminated("x", 2, "hf://none/none does not exist on the Hub")["state"]
    problem = view_pod(pod(initContainerStatuses=[status])).problem
    assert problem.reason == "TargetFetchFailed"
    assert "hf://none/none does not exist" in problem.message


def test_a_container_that_crashes_says_how_often_and_how_last() -> None:
    status = waiting("engine", "CrashLoopBackOff", restartCount=4)
    status["lastState"] = terminated("engine", 1, "settings are not valid: shape.topk")["state"]
    problem = view_pod(pod(containerStatuses=[status])).problem
    assert problem.reason == "CrashLooping"
    assert "5 times" in problem.message
    assert "shape.topk" in problem.message


def test_out_of_memory_says_what_to_raise() -> None:
    status = terminated("engine", 137, reason="OOMKilled")
    assert "resources.limits.memory" in view_pod(pod(containerStatuses=[status])).problem.message


def test_a_silent_crash_points_to_the_log() -> None:
    assert "see its log" in view_pod(pod(containerStatuses=[terminated("engine", 1)])).problem.message


def test_an_init_container_that_succeeded_is_no_problem() -> None:
    done = terminated("fetch-target", 0, reason="Completed")
    running = {"name": "engine", "state": {"running": {}}}
    assert view_pod(pod(initContainerStatuses=[done], containerStatuses=[running])).problem is None


def test_an_evicted_pod() -> None:
    problem = view_pod(pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")).problem
    assert problem.reason == "Evicted"
    assert "low on resource" in problem.message


def test_a_long_message_keeps_its_end() -> None:
    message = "x" * 5000 + " the cause"
    problem = view_pod(pod(containerStatuses=[terminated("engine", 1, message)])).problem
    assert problem.message.endswith("the cause")
    assert len(problem.message) < 900


def test_pods_are_picked_by_component_and_sorted_by_name() -> None:
    pods = [pod("b"), pod("t", component="trainer"), pod("a")]
    assert [view.name for view in view_pods(pods, "engine")] == ["a", "b"]
    assert [view.name for view in view_pods(pods, "trainer")] == ["t"]
