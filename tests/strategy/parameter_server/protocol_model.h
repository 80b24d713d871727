// Model of the coordinator's protocol: states and steps, built from the library's own classes.
// SPDX-License-Identifier: Apache-2.0
//
// Actors: a coordinator (ClosureLedger, and the steps of JobCheckpoint); interchangeable workers,
// each represented by its task; servers (AppliedTable, and counts of each closure). Every closure
// changes each server once. A closure's *content* is the call of schedule() that created it.
// Servers count contents; their tables contain ids.
//
// Network: a task may deliver an unconfirmed push at any time, or never. A lost and repeated push
// therefore needs no step of its own. A *stray* is a push for which no task waits: a copy, or a
// push of an abandoned attempt. A dead worker and a live worker that is believed dead differ only
// in their strays, and a stray may never arrive, so both are the same fault. Orders arrive at each
// server in sequence. As in RpcClient, an unanswered order is repeated, even to the process that
// replaces a dead one, and a copy may be executed after the original was answered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/server/applied_table.h"

namespace tutti::testing {

inline constexpr std::size_t kMostContents = 6;
/// Number of times that a server has counted each closure content.
using ModelCounts = std::array<std::uint8_t, kMostContents>;

/// Bugs that a test can plant in the protocol.
enum class PlantedBug {
  kNone,
  kOldIdsAccepted,              // close and open do not raise the watermark
  kTableKept,                   // close and open do not clear the table
  kIdsWithoutGeneration,        // a closure that is rolled back keeps its id
  kVersionDuringInterruption,   // a pause does not wait for closures that were put back
  kFinishedBeforeConfirmed,     // a closure counts as finished when one server has confirmed it
  kRetryTakesNewNumber,         // a retried closure gets a new number
  kRestoreSkipsSurvivors,       // servers that were not lost are not restored
  kFinishedNotQueuedAgain,      // a rollback does not repeat closures that the version lacks
  kRepeatedFreezeObeyed,        // repeating a freeze order replaces previously frozen values
  kHeldNotChecked,              // held batches are applied without checking the table
  kReleasedBeforeNoted,         // the version is noted as saved only after servers have released it
  kClosuresGivenOutWhilePaused  // the queue assigns closures during a pause
};

struct ModelPush {
  std::uint8_t server = 0, content = 0;
  std::uint64_t id = 0, finished_below = 0;
  auto operator<=>(const ModelPush&) const = default;
};

struct ModelOrder {
  internal::StoreOrder order = {};
  std::uint8_t save = 0;  // number of the version being saved
  bool operator==(const ModelOrder&) const = default;
};

/// The current attempt to run a closure.
struct ModelTask {
  std::uint8_t number = 0;
  int attempt = 0;
  std::uint8_t confirmed_by = 0;  // one bit per server
};

struct ModelServer {
  bool is_open = false;
  std::uint64_t generation = 0;
  internal::AppliedTable table = internal::AppliedTable();
  ModelCounts counts = {};
  std::optional<ModelCounts> frozen = {};
  std::uint8_t frozen_for = 0;          // number of the version for which `frozen` was set
  std::vector<ModelPush> held = {};     // sorted
  std::vector<ModelOrder> orders = {};  // in transit, in order of arrival
};

struct ModelState {
  /// Phase of the coordinator. From kFreezing on, it sends an order to all servers in each phase.
  enum class Phase : std::uint8_t {
    kRunning,
    kPausing,
    kFreezing,
    kReading,
    kReleasing,
    kClosing,
    kRestoring,
    kOpening
  };

  internal::ClosureLedger ledger;
  std::vector<std::uint8_t> contents = {};  // content of each closure, by number
  Phase phase = Phase::kClosing;
  std::uint8_t answered_by = 0;        // one bit per server that answered this phase's order
  std::uint8_t save = 0;               // number of the current or latest version
  bool has_loss = false;               // a server was lost; the coordinator will notice
  std::uint64_t frozen_below = 0;      // frozen values include the closures numbered below this
  std::vector<ModelCounts> read = {};  // frozen values, by server
  std::vector<ModelTask> tasks = {};   // sorted by number
  std::vector<ModelPush> strays = {};  // sorted
  std::vector<ModelServer> servers = {};
  /// Number such that the newest version in the folder contains all closures with lower numbers.
  std::uint64_t version_number = 0;
  std::vector<ModelCounts> version = {};
  std::uint8_t reported = 0;  // one bit per content whose result the program received
  std::uint8_t given_up = 0;  // one bit per content that failed or was cancelled
  std::uint8_t faults_left = 0, versions_left = 0;
  std::string violation = {};  // invariant that the latest step violated
};

enum class ModelFault : std::uint8_t {
  kAnswerLost = 1,
  kSentTwice,
  kGivenOutTwice,
  kWorkerLost,
  kClosureFailed,
  kServerKilled,
  kServerSuspected,  // a running server is considered lost
  kVersionGivenUp,   // an order timed out
  kCoordinatorKilled,
};

struct ModelOptions {
  int num_closures = 3;
  int num_faults = 2;
  int num_versions = 1;
  PlantedBug bug = PlantedBug::kNone;
  /// Kinds of faults that may happen; empty: all kinds.
  std::vector<ModelFault> faults = {};
  int num_servers = 2;
  int num_workers = 2;
};

ModelState initial_state(const ModelOptions& options);
struct ModelSuccessor {
  ModelState state;
  std::string text;  // description of the step, if requested
};
/// Returns the state after each possible step, always in the same order. Sets `can_go_on` if at
/// least one of the steps is not a fault.
std::vector<ModelSuccessor> successors(const ModelOptions& options, const ModelState& state,
                                       bool& can_go_on, bool with_texts = false);
/// Returns "" if the invariants hold: no server counts a closure twice; each server has counted
/// every finished closure that is not being repeated; a version contains each closure entirely or
/// not at all.
std::string violation(const ModelState& state);
/// Returns "" if all work has ended, otherwise the reason why not. Requires: only faults are
/// possible in `state`.
std::string why_not_ended(const ModelState& state);
/// Returns the state as bytes, which are equal for states that differ only in irrelevant details or
/// in the numbering of servers.
std::string bytes_of(const ModelState& state);

}  // namespace tutti::testing
