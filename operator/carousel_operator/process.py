"""The operator's process: kopf's watches, the queue's workers, probes and metrics in one event loop."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from carousel_operator import handlers, kinds, resync
from carousel_operator.admin_client import AdminClient
from carousel_operator.api import Api, ApiError
from carousel_operator.apply import Applier, ForeignChild, NotYet
from carousel_operator.metrics import Metrics
from carousel_operator.observe import Observer
from carousel_operator.presence import Presence
from carousel_operator.queue import Queue
from carousel_operator.reconcile import Reconciler
from carousel_operator.schema_check import check_schema
from carousel_operator.view import Key

log = logging.getLogger("carousel.operator")

RESYNC_SECONDS = 300.0
NOT_YET_SECONDS = 2.0


@dataclass
class Options:
    """Flags of `carousel-operator run`."""

    namespaces: Sequence[str] = ()  # empty: the whole cluster
    kubeconfig: str | None = None
    workers: int = 8
    health_address: str = "0.0.0.0:8080"
    metrics_port: int = 9090
    operator_namespace: str = "default"
    identity: str = ""
    admin_port: int = 8001


@dataclass
class Process:
    """Workers over one queue."""

    options: Options
    reconcile: Reconciler
    metrics: Metrics
    queue: Queue[Key] = field(default_factory=Queue)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: set[Key] = field(default_factory=set)  # an event came since they were read last
    resynced: float = 0.0

    def enqueue(self, key: Key, fresh: bool = False, delay: float = 0.0) -> None:
        """Reconcile `key` after `delay` seconds; `fresh` ends its back-off. Without a delay, something has changed."""
        if not delay:
            self._changed.add(key)
        self.queue.add(key, time.monotonic() + delay, fresh=fresh)
        self.metrics.queue_depth.set(self.queue.depth)
        self._wake.set()

    def node_changed(self, node: str) -> None:
        """Reconcile every InferenceServer with a pod on `node`."""
        for key, memory in self.reconcile.memories.items():
            if node in memory.nodes:
                self.enqueue(key)

    async def work(self) -> None:
        """Hand due keys to at most `workers` reconciles; ends only when cancelled."""
        try:
            while True:
                self._wake.clear()
                while len(self._tasks) < self.options.workers:
                    key = self.queue.take(time.monotonic())
                    if key is None:
                        break
                    task = asyncio.create_task(self._one(key))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
                self.metrics.queue_depth.set(self.queue.depth)
                await self._sleep()
        finally:
            for task in self._tasks:
                task.cancel()

    async def resync(self) -> None:
        """Compare every object with what the last reconcile left: a lost event costs at most this long."""
        while True:
            try:
                pod_monitors = await self.reconcile.api.served(kinds.POD_MONITOR)
                appeared = pod_monitors != self.reconcile.observer.pod_monitors
                self.reconcile.observer.pod_monitors = pod_monitors
                for namespace in self.options.namespaces or (None,):
                    for key, versions in (await resync.served(self.reconcile.api, namespace)).items():
                        memory = self.reconcile.memories.get(key)
                        if memory is None or memory.versions != versions or appeared:
                            self.enqueue(key)
                self.resynced = time.monotonic()
                ready = sum(memory.ready for memory in self.reconcile.memories.values())
                self.metrics.servers.labels("true").set(ready)
                self.metrics.servers.labels("false").set(len(self.reconcile.memories) - ready)
            except ApiError as error:
                log.warning("resync: %s", error)
                await asyncio.sleep(NOT_YET_SECONDS)
                continue
            await asyncio.sleep(RESYNC_SECONDS)

    async def _sleep(self) -> None:
        at = self.queue.next_at() if len(self._tasks) < self.options.workers else None
        delay = None if at is None else max(0.0, at - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), delay)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _one(self, key: Key) -> None:
        began = time.monotonic()
        try:
            changed = key in self._changed
            self._changed.discard(key)
            delay = await self.reconcile(key, changed=changed)
        except NotYet as waiting:
            log.info("%s/%s: %s", *key, waiting)
            self._retry(key, NOT_YET_SECONDS, "not-yet")
        except (ApiError, ForeignChild) as error:
            kind = f"api-{error.status}" if isinstance(error, ApiError) else "foreign-child"
            delay = self._retry(key, getattr(error, "retry_after", None) or 0.0, kind)
            log.warning("%s/%s: %s; again in %.0f s", *key, error, delay)
        except Exception as error:
            delay = self._retry(key, 0.0, type(error).__name__)
            log.exception("%s/%s: again in %.0f s", *key, delay)
        else:
            self.queue.done(key)
            self.metrics.reconciles.labels("ok").inc()
            if delay is not None:
                self.enqueue(key, delay=delay)
        finally:
            self.metrics.seconds.observe(time.monotonic() - began)

    def _retry(self, key: Key, at_least: float, kind: str) -> float:
        self._changed.add(key)
        self.metrics.errors.labels(kind).inc()
        self.metrics.reconciles.labels("error" if kind != "not-yet" else "retry").inc()
        return self.queue.failed(key, time.monotonic(), at_least)


async def run(options: Options, metrics: Metrics | None = None) -> None:
    """Run until a signal comes or a part fails. Raises what failed."""
    if options.kubeconfig:
        os.environ["KUBECONFIG"] = options.kubeconfig
    metrics = metrics or Metrics()
    api = await Api.connect(options.kubeconfig, count=metrics.count_write)
    admin = AdminClient(port=options.admin_port, count=metrics.count_call)
    namespaced = bool(options.namespaces)
    observer = Observer(api, admin, cluster_wide=not namespaced)
    applier = Applier(api, admin, metrics, time.time)
    reconciler = Reconciler(api, observer, applier, metrics, time.time, options.operator_namespace)
    process = Process(options, reconciler, metrics)
    presence = Presence(api, metrics, options.operator_namespace, options.identity or os.uname().nodename)
    if options.metrics_port:
        metrics.serve("0.0.0.0", options.metrics_port)
    await check_schema(api)
    registry = handlers.registry(process.enqueue, None if namespaced else process.node_changed)
    liveness = f"http://{options.health_address}/healthz" if options.health_address else None
    watches = handlers.watch(registry, handlers.settings(namespaced=namespaced), options.namespaces, liveness)
    tasks = [asyncio.create_task(part) for part in (watches, process.work(), process.resync(), presence.watch())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():  # kopf cancels what is left in the loop when a signal has ended it
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await admin.close()
        await api.close()
