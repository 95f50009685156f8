"""Ray Train V2's trainer, whose controller asks the driver what to do after a failure, and starts no process that is not needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runner.diagnosis import account_of

ASK_SECONDS = 300.0  # for the driver to answer: it may wait for a node's records, and for MLflow


class Trainer(DataParallelTrainer):
    """`follow` is called with the controller's run, and returns when that is over. `environment` is the controller's."""

    def __init__(
        self,
        *arguments: Any,
        board: Any,
        follow: Callable[[Any], None],
        environment: dict[str, str],
        is_local: bool,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._board, self._follow, self._environment, self._is_local = board, follow, environment, is_local

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        """Without V2's handler of Ctrl-C, which would end the command with 0 or 1 and no status."""
        is_elastic = self.scaling_config.elasticity_enabled
        arguments["failure_policy"] = DriverDecides(self._board, is_elastic)
        if is_elastic:
            arguments["scaling_policy"] = OnLiving(self.scaling_config)
        elif self._is_local:
            arguments["scaling_policy"] = HereFixed(self.scaling_config)
        arguments["callbacks"].append(Starts(self._board))
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        kind = ray.remote(num_cpus=0, scheduling_strategy=here)(Controller)
        controller = kind.remote(self._environment, **arguments)
        try:
            self._follow(controller.run.remote())
        except BaseException:
            controller.abort.remote()  # not waited for; of a group that is being started it ends nothing before that is done
            raise
        return ray.get(controller.get_result.remote())

    def _create_default_callbacks(self) -> list[Any]:
        """Without those that start an actor each: for datasets, of which V2 is given none, and for what a killed controller leaves
        on a cluster."""
        spared = (DatasetsCallback, *([PlacementGroupCleanerCallback] if self._is_local else []))
        return [each for each in super()._create_default_callbacks() if not isinstance(each, spared)]


class Group(WorkerGroup):
    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        """Not the driver's variables once more: workers have them already, and Ray gives none of the processes that it has started
        to an actor with variables of its own."""
        return custom_runtime_env


class Controller(TrainController):
    worker_group_cls = Group

    def __init__(self, environment: dict[str, str], **arguments: Any) -> None:
        os.environ.update(environment)
        super().__init__(**arguments)


class Starts(WorkerGroupCallback):
    """The driver is told of each group before its workers start."""

    def __init__(self, board: Any) -> None:
        self._board = board

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        ray.get(self._board.tell.remote(("starts", worker_group_context.num_workers)))


class DriverDecides(FailurePolicy):
    """Another attempt, or none: the driver reads what the ranks have left, which all live on meanwhile but for the lost one.

    An elastic group for which there was no room is tried again with as many workers as there is room for then.
    """

    def __init__(self, board: Any, is_elastic: bool) -> None:
        super().__init__(FailureConfig())
        self._board, self._is_elastic = board, is_elastic

    def make_decision(self, training_failed_error: Exception) -> FailureDecision:
        error = training_failed_error
        if isinstance(error, ControllerError):
            error = error.controller_failure
            if self._is_elastic and isinstance(error, WorkerGroupStartupTimeoutError):
                return FailureDecision.RETRY
        goes_on = ray.get(self._board.ask.remote(("failed", account_of(error)), ASK_SECONDS))
        return FailureDecision.RETRY if goes_on else FailureDecision.RAISE


class OnLiving(ElasticScalingPolicy):
    """Counts no node that is gone: who tells V2 what there is looks at them every 20 s."""

    def _get_reserved_resources(self) -> dict[str, Any] | None:
        reserved: dict[str, Any] | None = super()._get_reserved_resources()
        living = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return reserved and {node: found for node, found in reserved.items() if node in living}


class HereFixed(FixedScalingPolicy):
    """Asks nobody for machines: this one does not grow."""

    def _send_resource_request(self) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass

    def _cancel_resource_request(self) -> None:
        pass
