// Builds without gRPC: what needs messages is refused; servers within the process need none.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/closure_ledger.h"
#include "tutti/strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"
#include "tutti/strategy/parameter_server/server/applied_table.h"
#include "tutti/strategy/parameter_server/server/server_files.h"
#include "tutti/strategy/parameter_server/server/server_order.h"
#include "tutti/strategy/parameter_server/session/task_request.h"

namespace tutti::internal {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorCode::kUnimplemented,
       "parameter servers: this build has no gRPC, whose messages go to other processes and into "
       "files; expected servers within this process and no folder for snapshots; try a build with "
       "gRPC (apt-get install libgrpc++-dev protobuf-compiler-grpc)");
}

}  // namespace

Packet encode(const OperationBatch&) { refuse(); }
OperationBatch decode_batch(const Packet&) { refuse(); }
Packet encode(const std::vector<OperationAnswer>&) { refuse(); }
std::vector<OperationAnswer> decode_answers(const Packet&) { refuse(); }

std::vector<std::byte> AppliedTable::save() const { refuse(); }
AppliedTable AppliedTable::restore(std::span<const std::byte>) { refuse(); }
std::vector<std::byte> encode_for_file(const SnapshotLabel&) { refuse(); }
SnapshotLabel decode_label(std::span<const std::byte>) { refuse(); }
Packet encode_for_file(const ShardSnapshot&) { refuse(); }
ShardSnapshot decode_shard(const Packet&) { refuse(); }

Packet encode(const ServerOrder&) { refuse(); }
ServerOrder decode_order(const Packet&) { refuse(); }
Packet encode_life(std::uint64_t) { refuse(); }
std::uint64_t decode_life(const Packet&) { refuse(); }

Packet encode_nest(const Nest&) { refuse(); }
Nest decode_nest(const Packet&) { refuse(); }
Packet encode(const WorkerRequest&) { refuse(); }
WorkerRequest decode_worker_request(const Packet&) { refuse(); }
Packet encode(const TaskOutcome&) { refuse(); }
TaskOutcome decode_outcome(const Packet&) { refuse(); }
std::string scheduled_content(const std::string&, const Nest&) { refuse(); }
std::pair<std::string, Nest> decode_scheduled(const std::string&) { refuse(); }

Packet encode(const ClosureEvent&) { refuse(); }
ClosureEvent decode_event(const Packet&) { refuse(); }
std::vector<std::byte> ClosureLedger::bytes() const { refuse(); }
ClosureLedger ClosureLedger::restore(std::span<const std::byte>, LedgerRules) { refuse(); }

Packet encode(const TaskRequest&) { refuse(); }
TaskRequest decode_task_request(const Packet&) { refuse(); }

}  // namespace tutti::internal
