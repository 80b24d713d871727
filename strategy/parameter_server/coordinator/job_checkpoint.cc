// Implements JobCheckpoint. One thread saves versions and restores servers, so that the two never
// overlap.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/job_checkpoint.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "checkpoint/run_folder.h"
#include "core/names.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kState = "coordinator";  // name of the state in a version
constexpr int kVersionsKept = 2;
/// Maximum number of consecutive attempts to restore the servers.
constexpr int kMostTries = 20;

/// Returns true if the error may be due to a lost server; the caller then restores the server and
/// repeats its request.
bool may_be_loss(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kAborted;
}

Json json_of(const RemoteShard& shard) {
  return Json::Object{{"server", shard.server},
                      {"first_row", shard.spec.first_row},
                      {"num_rows", shard.spec.num_rows}};
}

/// Returns the shards of a version, sorted by server.
std::vector<RemoteShard> shards_in(const CheckpointFile& version) {
  std::vector<RemoteShard> shards;
  for (const auto& [variable, places] : version.states.at(kState).at("shards").as_object()) {
    const Tensor& value = version.tensors.at(variable);
    const auto count = static_cast<int>(places.as_array().size());
    for (const Json& each : places.as_array()) {
      shards.emplace_back(static_cast<int>(each.at("server").as_int()),
                          ShardSpec{variable, value.dtype(), value.shape(),
                                    static_cast<int>(&each - places.as_array().data()), count,
                                    each.at("first_row").as_int(), each.at("num_rows").as_int()});
    }
  }
  std::ranges::stable_sort(shards, {}, &RemoteShard::server);
  return shards;
}

std::string text_of(const RemoteShard& shard) {
  return concat(shard.spec, " ", shard.spec.dtype, " ", shard.spec.shape(), " on ps ",
                shard.server);
}

/// Throws if the version lacks variables of the program, because restoring it would leave those
/// variables unchanged.
void require_all(const std::vector<RemoteShard>& made, const std::vector<RemoteShard>& saved,
                 const std::string& folder) {
  for (const RemoteShard& own : made) {
    const auto found = std::ranges::find(saved, own.id, &RemoteShard::id);
    const bool is_there = found != saved.end();
    if (is_there && found->server == own.server && found->spec == own.spec) continue;
    fail(ErrorCode::kFailedPrecondition, "ClusterCoordinator: variable ", text_of(own),
         ": expected it in the checkpoint '", folder, "', found ",
         is_there ? text_of(*found) : "none",
         "; create all variables before start(), on the same number of servers, or use a different "
         "folder for each program");
  }
}

}  // namespace

JobCheckpoint::JobCheckpoint(ClosureQueue& queue, ServerGroup& servers,
                             const ClusterCoordinatorOptions& options)
    : queue_(queue), servers_(servers), options_(options) {
  if (options_.checkpoint_interval <= Duration::zero()) {
    fail(ErrorCode::kInvalidArgument,
         "ClusterCoordinator: checkpoint_interval: expected more than 0 s, got ",
         seconds_between(TimePoint(), TimePoint() + options_.checkpoint_interval), " s");
  }
  const std::vector<RemoteShard> made = servers_.shards();
  if (const auto version = newest_version()) {
    require_all(made, shards_in(*version), options_.checkpoint_folder);
    queue_.continue_from(
        static_cast<std::uint64_t>(version->states.at(kState).at("closures").as_int()));
    restore(*version);
    saved_outside_.store(servers_.servers().num_outside_changes());
    log_info(concat("coordinator: continuing from '", version->info.path,
                    "', which was saved after ", queue_.saved_below(), " closures"));
  } else {
    servers_.close(queue_.generation());
    servers_.open(closure_id(queue_.generation(), queue_.finished_below()));
    require_all(servers_.servers().shards(), servers_.shards(), options_.checkpoint_folder);
    save(/*is_wanted=*/true);  // the program's initial state
  }
  next_at_ = deadline_after(Clock::system().now(), options_.checkpoint_interval);
  servers_.watch([this](const std::string&) {
    note_trouble();
    return true;
  });
  thread_ = Executor::system().start("ps-checkpoint", [this] { run(); });
}

void JobCheckpoint::stop() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(is_stopped_, true)) return;
    changed_.notify_all();
  }
  servers_.interrupt();
  thread_->join();
  servers_.watch({});
}

void JobCheckpoint::finish() {
  if (has_unsaved() && queue_.has_only_repeats()) {
    try {
      save_now(deadline_after(Clock::system().now(), durations::kJoinTimeout));
    } catch (const std::exception& error) {
      log_warning(concat("coordinator: stopping without a final checkpoint: ", error.what()));
    }
  }
  stop();
}

void JobCheckpoint::note_end() {
  if (queue_.num_held_bytes() < options_.most_held_bytes) return;
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void JobCheckpoint::note_trouble() {
  const MutexLock lock(mutex_);
  num_troubles_.fetch_add(1);
  changed_.notify_all();
}

void JobCheckpoint::save_now(TimePoint deadline) {
  const MutexLock lock(mutex_);
  const std::uint64_t number = ++num_wanted_;
  changed_.notify_all();
  (void)changed_.wait_until(mutex_, deadline, [&, this]() TUTTI_REQUIRES(mutex_) {
    return is_stopped_ || gave_up_ || num_served_ >= number;
  });
  if (num_served_ >= number && !last_problem_) return;
  if (num_served_ >= number) throw *last_problem_;
  if (gave_up_) throw *gave_up_;
  if (is_stopped_) fail(ErrorCode::kCancelled, "save_checkpoint: the coordinator was stopped");
  const std::vector<std::string> running = queue_.running();
  fail(ErrorCode::kDeadlineExceeded, "save_checkpoint: still waiting for ",
       running.empty() ? "" : join(running) + ", or for ",
       "the disk, at the deadline; try a later deadline");
}

std::uint64_t JobCheckpoint::wait_until_current() {
  {
    const MutexLock lock(mutex_);
    (void)changed_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
      return may_assign() || gave_up_ || is_stopped_;
    });
    if (gave_up_) throw *gave_up_;
  }
  queue_.wait_until_caught_up(TimePoint::max());
  return queue_.generation();
}

bool JobCheckpoint::is_stopping() const {
  const MutexLock lock(mutex_);
  return is_stopped_;
}

bool JobCheckpoint::is_called() const {
  return is_stopped_ || !may_assign() || num_wanted_ > num_served_;
}

bool JobCheckpoint::has_unsaved() const {
  return queue_.num_held_bytes() > 0 ||
         servers_.servers().num_outside_changes() != saved_outside_.load();
}

/// Returns true if a save is due. A failed attempt is not repeated before next_at_.
bool JobCheckpoint::is_due() const {
  if (!has_unsaved()) return false;
  if (Clock::system().now() >= next_at_) return true;
  return !has_failed_ && queue_.num_held_bytes() >= options_.most_held_bytes;
}

void JobCheckpoint::wait_for_work() {
  const MutexLock lock(mutex_);
  (void)changed_.wait_until(mutex_, next_at_,
                            [this]() TUTTI_REQUIRES(mutex_) { return is_called() || is_due(); });
  // The wait ended without any work to do, so check again after another interval.
  if (!is_called() && !is_due()) {
    next_at_ = deadline_after(Clock::system().now(), options_.checkpoint_interval);
  }
}

void JobCheckpoint::run() {
  for (;;) {
    wait_for_work();
    std::uint64_t num_wanted = 0;
    bool is_wanted = false;
    {
      const MutexLock lock(mutex_);
      if (is_stopped_) return;
      num_wanted = num_wanted_;
      is_wanted = num_wanted > num_served_;
    }
    try {
      if (!may_assign()) recover();
      if (!is_wanted && !is_due()) continue;
      const std::optional<Error> problem = try_save(is_wanted);
      const MutexLock lock(mutex_);
      num_served_ = num_wanted;
      last_problem_ = problem;
      changed_.notify_all();
    } catch (const Error& error) {
      if (!is_stopping()) give_up(error);
      return;
    } catch (const std::exception& error) {  // for example, out of memory while copying the values
      return give_up(Error(ErrorCode::kInternal, concat("checkpoint: ", error.what())));
    }
  }
}

/// Saves a version; if a server is lost during the save, restores the server and tries again.
/// Returns an error if the version cannot be written.
std::optional<Error> JobCheckpoint::try_save(bool is_wanted) {
  for (;;) {
    std::optional<Error> problem;
    try {
      save(is_wanted);
      has_failed_ = false;
      return std::nullopt;
    } catch (const Error& error) {
      problem = error;
    }
    queue_.resume();
    if (is_stopping()) throw *problem;
    if (!may_be_loss(problem->code())) {
      release();
      has_failed_ = true;
      log_warning(concat("coordinator: could not save a checkpoint: ", problem->message(),
                         "; the previous one stays in use"));
      next_at_ =
          deadline_after(Clock::system().now(),
                         std::min<Duration>(options_.checkpoint_interval, durations::kOneTry));
      return problem;
    }
    note_trouble();
    recover();
  }
}

/// Makes servers drop frozen values. Servers that cannot be reached keep them until the next
/// version.
void JobCheckpoint::release() {
  try {
    servers_.release();
  } catch (const Error& error) {
    log_info(concat("coordinator: frozen values were not released: ", error.message()));
  }
}

/// Calls `wait` until it returns true. Logs the running closures if that takes longer than the
/// interval.
void JobCheckpoint::wait_for(bool (ClosureQueue::*wait)(TimePoint), const char* meaning) {
  constexpr Duration kLook = std::chrono::milliseconds(20);
  const TimePoint begin = Clock::system().now();
  TimePoint say_at = deadline_after(begin, options_.checkpoint_interval);
  while (!(queue_.*wait)(deadline_after(Clock::system().now(), kLook))) {
    if (is_stopping() || queue_.is_stopped()) {
      fail(ErrorCode::kCancelled, "checkpoint: the coordinator was stopped");
    }
    if (!may_assign()) fail(ErrorCode::kAborted, "checkpoint: a server was lost during the wait");
    const TimePoint now = Clock::system().now();
    if (now < say_at) continue;
    say_at = deadline_after(now, options_.checkpoint_interval);
    const std::vector<std::string> running = queue_.running();
    log_warning(concat("coordinator: the checkpoint has waited ", seconds_text(now - begin),
                       " s for ", running.empty() ? "a worker to join" : join(running), "; ",
                       meaning));
  }
}

/// Saves a version. If save_now() requested it (`is_wanted`), first waits until all closures that
/// a rollback undid have been repeated.
void JobCheckpoint::save(bool is_wanted) {
  next_at_ = deadline_after(Clock::system().now(), options_.checkpoint_interval);
  require_own_folder();
  if (is_wanted) wait_for(&ClosureQueue::catch_up, "finished closures are being repeated");
  const TimePoint begin = Clock::system().now();
  wait_for(&ClosureQueue::pause, "closures that have not begun wait, too");
  const std::uint64_t number = queue_.finished_below();
  const std::uint64_t outside = servers_.servers().num_outside_changes();
  servers_.freeze();
  queue_.resume();
  const TimePoint resumed = Clock::system().now();
  CheckpointFile version = read_servers();
  version.info.step = static_cast<std::int64_t>(number);
  Json& state = version.states.at(kState);
  state.set("closures", number);
  const std::optional<Error> problem = write(version);
  // Updated immediately, because a server lost from now on is restored from this version.
  ++last_sequence_;
  saved_outside_.store(outside);
  queue_.note_saved(number);
  if (problem) throw *problem;
  release();
  log_info(concat("coordinator: saved a checkpoint of ", number, " closures in ",
                  seconds_text(Clock::system().now() - begin), " s; closures waited for ",
                  seconds_text(resumed - begin), " s"));
}

/// Writes the version. If an error occurs, reads the folder again: returns the error if the version
/// is nevertheless the last one there, and throws the error otherwise.
std::optional<Error> JobCheckpoint::write(const CheckpointFile& version) const {
  try {
    save_version(options_.checkpoint_folder, version, {kVersionsKept, {}});
    return std::nullopt;
  } catch (const Error& error) {
    const auto folder = Folder::open_if_there(options_.checkpoint_folder);
    if (!folder) throw;
    const std::vector<FoundVersion> found = find_versions(*folder);
    if (found.empty() || found.back().shown.sequence != last_sequence_ + 1) throw;
    return error.with_context(
        concat("'", found.back().shown.path, "' exists, but saving it failed"));
  }
}

/// Reads the frozen values, with the shards of each variable in order.
CheckpointFile JobCheckpoint::read_servers() {
  CheckpointFile version;
  const std::vector<RemoteShard> shards = servers_.shards();
  std::map<std::string, Json::Array> places;
  for (const RemoteShard& shard : shards) {
    const ShardSpec& spec = shard.spec;
    TensorPart& part = version.parts[spec.variable];
    part.name = spec.variable, part.shape = spec.whole_shape, part.dtype = spec.dtype;
    part.values.resize(static_cast<std::size_t>(spec.num_shards));
    Json::Array& own = places[spec.variable];
    own.resize(static_cast<std::size_t>(spec.num_shards));
    own[static_cast<std::size_t>(spec.shard)] = json_of(shard);
  }
  servers_.read_frozen(shards, [&](const RemoteShard& shard, const Tensor& value) {
    version.parts.at(shard.spec.variable).values[static_cast<std::size_t>(shard.spec.shard)] =
        value.reshape({value.num_elements()});
  });
  Json all = Json::object();
  for (auto& [variable, own] : places) all.set(variable, std::move(own));
  version.states.emplace(kState, Json::Object{{"shards", std::move(all)}});
  return version;
}

/// Throws if another coordinator is using the folder, because each would restore versions that the
/// other one saved.
void JobCheckpoint::require_own_folder() const {
  const auto folder = Folder::open_if_there(options_.checkpoint_folder);
  if (!folder) return;
  const std::vector<FoundVersion> found = find_versions(*folder);
  if (found.empty() || found.back().shown.sequence == last_sequence_) return;
  fail(ErrorCode::kFailedPrecondition, "checkpoint '", options_.checkpoint_folder,
       "': expected version ", last_sequence_, " to be the last one, found ",
       found.back().shown.path, " from another coordinator; use a separate folder for each job");
}

/// Returns the newest version that is not damaged. Logs an error for each damaged one.
std::optional<CheckpointFile> JobCheckpoint::newest_version() {
  const auto folder = Folder::open_if_there(options_.checkpoint_folder);
  if (!folder) return std::nullopt;
  std::vector<FoundVersion> found = find_versions(*folder);
  if (last_sequence_ == 0 && !found.empty()) last_sequence_ = found.back().shown.sequence;
  std::optional<Error> damage;
  for (; !found.empty(); found.pop_back()) {
    if (found.back().refusal) throw *found.back().refusal;
    if (found.back().shown.state == VersionState::kUnfinished) continue;
    try {
      CheckpointFile version = read_checkpoint(folder->path_of(found.back().name));
      if (version.states.contains(kState)) return version;
      fail(ErrorCode::kFailedPrecondition, "ClusterCoordinator: '", version.info.path,
           "' is not the checkpoint of a coordinator; use a separate folder for this coordinator");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      log(LogLevel::kError,
          concat("coordinator: ", error.message(), "; the version before it is restored"));
      damage = error;
    }
  }
  if (damage) throw *damage;
  return std::nullopt;
}

/// Restores the servers from `version`. Afterwards, the servers' values reflect only the closures
/// that `version` includes.
void JobCheckpoint::restore(const CheckpointFile& version) {
  const std::vector<RemoteShard> shards = shards_in(version);
  servers_.close(queue_.generation());
  servers_.restore(shards, [&](const RemoteShard& shard) {
    const Tensor& whole = version.tensors.at(shard.spec.variable);
    return shard.spec.num_shards == 1
               ? whole
               : whole.detached_rows(shard.spec.first_row, shard.spec.num_rows);
  });
  servers_.servers().restart();
  servers_.open(closure_id(queue_.generation(), queue_.finished_below()));
}

/// Restores the servers if one was lost. No closures are assigned to workers during the restore.
void JobCheckpoint::recover() {
  const std::uint64_t num_troubles = num_troubles_.load();
  if (has_lost_server()) roll_back_servers();
  {
    const MutexLock lock(mutex_);
    num_handled_.store(num_troubles);
    changed_.notify_all();
  }
  queue_.wake_workers();
}

bool JobCheckpoint::has_lost_server() {
  if (servers_.has_loss()) return true;
  try {
    return !servers_.is_open();
  } catch (const Error& error) {
    if (may_be_loss(error.code())) return true;
    throw;
  }
}

/// Throws if variables were changed outside closures since the last checkpoint, because running the
/// closures again does not restore these changes.
void JobCheckpoint::require_no_outside_change(const std::string& why) const {
  if (servers_.servers().num_outside_changes() == saved_outside_.load()) return;
  fail(ErrorCode::kDataLoss, why, ": variables have been changed outside closures since the last ",
       "checkpoint, and these changes are lost; start the job again to continue from '",
       options_.checkpoint_folder, "', and call save_checkpoint() after such changes");
}

/// Restores all servers; starts over if a server is lost during the restore.
void JobCheckpoint::roll_back_servers() {
  for (int num_tries = 1;; ++num_tries) {
    const std::string why = servers_.take_loss().value_or("a server was started again");
    require_no_outside_change(why);
    queue_.roll_back();
    log_warning(concat(
        "coordinator: ", why, ": rolling all servers back to the checkpoint taken after ",
        queue_.saved_below(), " closures; ", queue_.num_queued(), " closures are queued now"));
    try {
      const auto version = newest_version();
      const bool is_last =
          version && version->info.step == static_cast<std::int64_t>(queue_.saved_below());
      if (!is_last) {
        fail(ErrorCode::kDataLoss, "the checkpoint taken after ", queue_.saved_below(),
             " closures in '", options_.checkpoint_folder,
             "' is missing or damaged; was it deleted or changed?");
      }
      restore(*version);
      require_no_outside_change(why);
      return log_info(concat("coordinator: restored all servers from the checkpoint taken after ",
                             queue_.saved_below(), " closures"));
    } catch (const Error& error) {
      if (!may_be_loss(error.code()) || num_tries == kMostTries) throw;
    }
  }
}

void JobCheckpoint::give_up(const Error& error) {
  log(LogLevel::kError, concat("coordinator: cannot continue: ", error.message()));
  queue_.stop(error.with_context("the coordinator was stopped"));
  const MutexLock lock(mutex_);
  gave_up_ = error;
  changed_.notify_all();
}

}  // namespace tutti::internal
