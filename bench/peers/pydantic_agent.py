"""The workload on pydantic-ai's Temporal integration: a `TemporalAgent` whose approvals are deferred."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import ActivityConfig

from bench.peers import script
from perdure.testing.crash import CrashPoints


def _say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    said = script.reply(1 + sum(isinstance(one, ModelResponse) for one in messages))
    if "text" in said:
        return ModelResponse(parts=[TextPart(said["text"])])
    return ModelResponse(parts=[ToolCallPart(call["name"], call["arguments"]) for call in said["calls"]])


agent = Agent(FunctionModel(_say), name="shop", deps_type=str, output_type=[str, DeferredToolRequests])


def _act(ctx: RunContext[str], tool: str, what: str) -> str:
    return script.act(tool, ctx.deps, what, f"{ctx.deps} {ctx.tool_call_id}")


@agent.tool
async def look(ctx: RunContext[str], what: str) -> str:
    """Look something up."""
    return _act(ctx, "look", what)


@agent.tool
async def glance(ctx: RunContext[str], what: str) -> str:
    """Look something up that is near."""
    return _act(ctx, "glance", what)


@agent.tool
async def charge(ctx: RunContext[str], order: str) -> str:
    """Charge an order. The service knows a request by its key."""
    return _act(ctx, "charge", order)


@agent.tool
async def send(ctx: RunContext[str], order: str) -> str:
    """Send an order."""
    return _act(ctx, "send", order)


@agent.tool(requires_approval=True)
async def pay(ctx: RunContext[str], order: str) -> str:
    """Pay for an order."""
    return _act(ctx, "pay", order)


durable = TemporalAgent(agent, activity_config=ActivityConfig(start_to_close_timeout=timedelta(seconds=5)))


@workflow.defn
class Shop:
    """A run of the agent, and of what it goes on with once it is approved."""

    def __init__(self) -> None:
        self._approved = False

    @workflow.run
    async def run(self, task: str) -> str:
        """Return the answer."""
        run = workflow.info().workflow_id
        result = await durable.run(task, deps=run)
        while isinstance(result.output, DeferredToolRequests):
            await workflow.wait_condition(lambda: self._approved)
            given = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
            result = await durable.run(deps=run, message_history=result.all_messages(), deferred_tool_results=given)
        return str(result.output)

    @workflow.signal
    def approve(self) -> None:
        """Approve what has to be."""
        self._approved = True


async def main(address: str, queue: str) -> None:
    """Serve it."""
    await Worker(
        await Client.connect(address, plugins=[PydanticAIPlugin()]),
        task_queue=queue,
        workflows=[Shop],
        workflow_runner=UnsandboxedWorkflowRunner(),
        plugins=[AgentPlugin(durable), CrashPoints()],
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
