// A table of applied changes as a message of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "parameter_server.pb.h"
#include "tutti/strategy/parameter_server/protocol/applied_table.h"
#include "tutti/strategy/parameter_server/protocol/message.h"

namespace tutti::internal {

std::vector<std::byte> AppliedTable::save() const {
  InArena<v1::AppliedTable> message;
  message->set_term(term_), message->set_finished_below(finished_below_);
  for (const auto& [stream, next] : next_) {
    v1::AppliedTable::Stream& out = *message->add_streams();
    out.set_kind(static_cast<std::uint32_t>(stream.kind));
    out.set_id(stream.id), out.set_replica(stream.replica), out.set_next(next);
  }
  for (const std::uint64_t client : ended_clients_) message->add_ended_clients(client);
  message->set_is_whole(true);
  return serialized(*message, std::numeric_limits<std::uint32_t>::max());
}

AppliedTable AppliedTable::restore(std::span<const std::byte> bytes) {
  InArena<v1::AppliedTable> message;
  const v1::AppliedTable& in = *message;
  AppliedTable table;
  try {
    parse(bytes, *message);
    table.term_ = in.term(), table.finished_below_ = in.finished_below();
    for (const v1::AppliedTable::Stream& each : in.streams()) {
      const auto kind =
          checked_enum(each.kind(), UpdateStream::Kind::kClient, UpdateStream::Kind::kClosure);
      table.next_.emplace(UpdateStream{kind, each.id(), each.replica()}, each.next());
    }
    table.ended_clients_.assign(in.ended_clients().begin(), in.ended_clients().end());
    if (in.is_whole() && table.next_.size() == static_cast<std::size_t>(in.streams_size())) {
      return table;
    }
  } catch (const Error&) {  // said below
  }
  fail(ErrorCode::kDataLoss, "AppliedTable::restore: ", bytes.size(),
       " bytes that are no table of applied changes");
}

}  // namespace tutti::internal
