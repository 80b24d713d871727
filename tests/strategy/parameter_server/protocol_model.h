// The coordinator's protocol as states and steps, made of the classes that the library runs.
// SPDX-License-Identifier: Apache-2.0
//
// Actors: a coordinator (ClosureLedger and its journal), workers (interchangeable: a worker is the
// task that it works on), servers (AppliedTable and how often each closure was counted). The
// network is a multiset of messages: any may be delivered next, or never. What is a fault: losing a
// message or an answer, delivering one twice, giving out a task twice, killing an actor, and taking
// a living worker for dead. Answers of servers are part of the delivery; a lost one is a fault.
//
// Servers keep what they confirm in snapshots, and in a log, both of which outlive them.
//
// Every closure changes each server once. A closure's *content* tells which call of schedule() it
// is; servers count contents, their tables know numbers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/server/applied_table.h"

namespace tutti::testing {

inline constexpr int kMostContents = 6;

/// In masks of servers.
inline std::uint8_t server_bit(int server) { return static_cast<std::uint8_t>(1 << server); }
inline std::uint8_t all_servers(int num_servers) {
  return static_cast<std::uint8_t>(server_bit(num_servers) - 1);
}

/// Mistakes that a protocol could have.
enum class PlantedBug {
  kNone,
  kSnapshotWithoutTable,     // values are saved, what was applied is not
  kFinishedBeforeConfirmed,  // a closure counts as finished when one server has confirmed it
  kRetryTakesNewNumber,      // a closure that is tried again is numbered anew
  kOldTermAccepted,          // servers do not look at terms
  kLateSnapshotOverwrites,   // a request that comes twice saves again under the same cut
  kAcknowledgeBeforeKept,    // the answer goes out before the log has the change
  kReplayWithoutTable,       // every record of a log is applied, also those that came twice
  kLogGoesOnBeforeVoidCut,   // a log goes on under its cut, before what came after a void later one
};

struct ModelMessage {
  enum class Kind : std::uint8_t { kPush = 1, kDone, kFence, kLoad, kSnapshot };
  Kind kind = Kind::kPush;
  std::uint8_t server = 0;
  std::uint8_t number = 0, attempt = 0, content = 0;  // pushes and reports of finished tasks
  std::uint8_t term = 0;
  std::uint8_t below = 0;  // pushes
  std::uint8_t cut = 0;    // loads and snapshots
  auto operator<=>(const ModelMessage&) const = default;
};

/// Throws kInternal for 256 and above: the model counts in bytes.
std::uint8_t model_byte(std::uint64_t value);

struct ModelTask {
  std::uint8_t number = 0, attempt = 0, content = 0, term = 0;
  std::uint8_t confirmed_by = 0;  // a bit per server
  auto operator<=>(const ModelTask&) const = default;
};

/// A change that a server took, in its log.
struct ModelChange {
  std::uint8_t number = 0, content = 0, term = 0, below = 0;
  std::uint8_t after_cut = 0;  // the last one that was saved before
  auto operator<=>(const ModelChange&) const = default;
};

struct ModelServer {
  using Counts = std::array<std::uint8_t, kMostContents>;
  struct Saved {
    std::uint8_t cut = 0;
    internal::AppliedTable table = {};
    Counts counts = {};
  };
  bool is_up = true;
  internal::AppliedTable table = {};
  Counts counts = {};
  std::uint8_t loaded_term = 0;
  std::vector<Saved> saved = {};       // survives a kill
  std::vector<ModelChange> log = {};   // too
  std::vector<ModelChange> late = {};  // of kAcknowledgeBeforeKept: applied, and not in the log yet
};

struct ModelState {
  /// What the coordinator has still to hear from a server before it gives out anything.
  enum class Await : std::uint8_t { kFence, kLoad, kNothing };

  internal::ClosureLedger ledger;
  std::vector<std::byte> journal = {};  // leads to the ledger, hence no part of bytes()
  bool coordinator_is_up = true;
  std::vector<Await> await = {};  // of each server
  bool takes_cut = false;
  std::uint8_t saved_by = 0;  // a bit per server
  std::vector<ModelServer> servers = {};
  std::vector<ModelTask> tasks = {};       // sorted
  std::vector<ModelMessage> network = {};  // sorted
  std::uint8_t faults_left = 0, cuts_left = 0;
  std::string violation = {};  // of the step that led here

  /// Write-ahead: the journal has the event before anybody hears of it.
  void record(const internal::ClosureEvent& event);
  /// Equal for states that are the same but for the number of the first server.
  std::vector<std::byte> bytes() const;
};

struct ModelStep {
  enum class Kind : std::uint8_t {
    kDispatch = 1,
    kDeliver,
    kDeliverAnswerLost,
    kDrop,
    kDuplicate,
    kResend,
    kKillTask,
    kSuspect,
    kNoticeLost,
    kKillServer,
    kNoticeServer,
    kKillCoordinator,
    kRestartCoordinator,
    kBeginCut,
    kDispatchTwice,
    kKeep,  // of kAcknowledgeBeforeKept
  };
  Kind kind = Kind::kDispatch;
  std::uint8_t index = 0;  // of the message, task, server or closure that it concerns
  std::string text = {};   // for traces; filled when asked for
};

struct ModelOptions {
  int num_closures = 3;
  int num_faults = 2;
  int num_cuts = 1;
  PlantedBug bug = PlantedBug::kNone;
  /// Faults of other kinds do not happen; empty: all do.
  std::vector<ModelStep::Kind> kinds_of_faults = {};
  int num_servers = 2;
  int num_workers = 2;
};

class ProtocolModel {
 public:
  explicit ProtocolModel(ModelOptions options) : options_(options) {}

  ModelState initial() const;
  using Visitor = std::function<void(const ModelStep&, ModelState&&)>;
  /// Calls `visit` with each step that can happen in `state`, always in the same order, and the
  /// state after it. Returns whether one of them is no fault. `with_texts`: steps say what they
  /// are.
  bool each_successor(const ModelState& state, const Visitor& visit, bool with_texts = false) const;
  /// "" when the invariants hold: no server counts a closure twice, and each counts what finished.
  std::string violation(const ModelState& state) const;
  /// "" for a state in which everything has ended well: for those where nothing more can happen.
  std::string why_not_ended(const ModelState& state) const;

 private:
  class Successors;
  std::string lost_confirmation(const ModelState& state) const;
  ModelOptions options_;
};

}  // namespace tutti::testing
