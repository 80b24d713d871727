// Heads in builds without protobuf: there is one form only.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/protocol/head_codec.h"

namespace tutti::internal {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorCode::kUnimplemented,
       "a batch of operations: this build has no protobuf; expected HeadFormat::kBytes; try "
       "building all tasks alike");
}

}  // namespace

bool has_protobuf_heads() { return false; }

std::vector<std::byte> write_protobuf_head(const OperationBatch&, PayloadWriter&) { refuse(); }
std::vector<std::byte> write_protobuf_head(const std::vector<OperationAnswer>&, PayloadWriter&) {
  refuse();
}
OperationBatch read_protobuf_batch(std::span<const std::byte>, PayloadReader&) { refuse(); }
std::vector<OperationAnswer> read_protobuf_answers(std::span<const std::byte>, PayloadReader&) {
  refuse();
}

}  // namespace tutti::internal
