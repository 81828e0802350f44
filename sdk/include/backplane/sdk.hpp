// The C++ side of the plugin ABI, header-only: derive from Device, override what the device can do,
// end with BP_PLUGIN. `backplane new` makes a project to start from.
#pragma once

#include <backplane/sdk/core.hpp>          // Status, Result, the exception shield, host services
#include <backplane/sdk/device.hpp>        // Device, Executable, Stream, Event, Claims
#include <backplane/sdk/graph.hpp>         // GraphView, NodeView, ValueView, OwnedGraph
#include <backplane/sdk/kernel_table.hpp>  // KernelTable: operators as rows; answers claims
#include <backplane/sdk/program.hpp>       // ProgramExecutable: one kernel per node, memory planned
#include <backplane/sdk/queue.hpp>         // Queues: in-order work on threads, with events
#include <backplane/sdk/queued_program.hpp>  // QueuedProgram: a program on such a queue
#include <backplane/sdk/table.hpp>           // the C tables; BP_PLUGIN
#include <backplane/sdk/weights.hpp>         // weights in a layout of the plugin's own
