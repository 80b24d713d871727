// What happens to closures, as values; each is one record of the coordinator's journal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"

namespace tutti::internal {

/// Why an attempt ended without result and without fault of the step. A value.
struct AttemptReport {
  enum class Kind : std::uint8_t {
    kNotStarted = 1,  // the worker was lost, or asked to stop, before it began: no attempt
    kTransient,       // infrastructure failed, the worker lives
    kWorkerLost,      // the worker died while it worked on the closure
  };
  Kind kind = Kind::kTransient;
  int worker = -1;
  ErrorOrigin origin = ErrorOrigin::kWorker;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string text = {};
  bool operator==(const AttemptReport&) const = default;
};

namespace events {

/// Closures are numbered from 0 (but for BeganAfter) in this order. `content`: what a later
/// coordinator needs to schedule it again (the step's name and arguments); opaque here.
struct Scheduled {
  std::uint64_t number = 0;
  std::string content = {};
  bool operator==(const Scheduled&) const = default;
};
struct Started {
  std::uint64_t number = 0;
  int attempt = 1;
  int worker = 0;
  bool operator==(const Started&) const = default;
};
struct Finished {
  std::uint64_t number = 0;
  int attempt = 1;
  bool operator==(const Finished&) const = default;
};
struct PutBack {
  std::uint64_t number = 0;
  int attempt = 1;
  AttemptReport report = {};
  bool operator==(const PutBack&) const = default;
};
struct Failed {
  ClosureFailure failure = {};
  bool operator==(const Failed&) const = default;
};
/// A running closure saw its cancellation and stopped.
struct Stopped {
  std::uint64_t number = 0;
  int attempt = 1;
  bool operator==(const Stopped&) const = default;
};
/// The user has seen the pending failures.
struct ErrorRaised {
  bool operator==(const ErrorRaised&) const = default;
};
/// Another process goes on with this journal, or a server was lost and is back with all that it
/// confirmed: attempts under way are void.
struct TookOver {
  std::uint64_t term = 1;
  bool operator==(const TookOver&) const = default;
};
/// Every server is asked to save its state and dedup table under this id.
struct CutBegan {
  std::uint64_t id = 1;
  bool operator==(const CutBegan&) const = default;
};
/// Every server has: from now on this is what servers that come back begin with.
struct CutTaken {
  std::uint64_t id = 1;
  bool operator==(const CutTaken&) const = default;
};
/// The first of a journal whose servers have worked for another coordinator: what they know of its
/// closures must not be taken for something about these.
struct BeganAfter {
  std::uint64_t term = 0;    // of the last one
  std::uint64_t number = 0;  // closures are numbered from here on
  bool operator==(const BeganAfter&) const = default;
};

}  // namespace events

using ClosureEvent =
    std::variant<events::Scheduled, events::Started, events::Finished, events::PutBack,
                 events::Failed, events::Stopped, events::ErrorRaised, events::TookOver,
                 events::CutBegan, events::CutTaken, events::BeganAfter>;

/// A message of cluster/proto/coordinator.proto.
Packet encode(const ClosureEvent& event);
/// Throws kDataLoss for packets that encode() does not write.
ClosureEvent decode_event(const Packet& packet);

/// A record of no file (record_file.h), for a journal that is kept elsewhere.
std::vector<std::byte> encode_record(const ClosureEvent& event);

/// Whether an event is about all servers or the coordinator's reign: what must not be forgotten
/// once anybody has heard of it, not even by a power cut.
inline bool is_of_all_servers(const ClosureEvent& event) {
  return std::holds_alternative<events::TookOver>(event) ||
         std::holds_alternative<events::CutBegan>(event) ||
         std::holds_alternative<events::CutTaken>(event);
}

}  // namespace tutti::internal
