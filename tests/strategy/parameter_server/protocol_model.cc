// Steps of the protocol model, the states that they lead to, and the invariants of those states.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/protocol_model.h"

#include <algorithm>
#include <utility>

namespace tutti::testing {
namespace {

using internal::AppliedTable;
using internal::closure_id;
using internal::ClosureLedger;
using Fault = ModelFault;
using Phase = ModelState::Phase;
using OrderKind = internal::StoreOrder::Kind;
using ClosureState = ClosureLedger::State;

/// Rules that permit 100 attempts. The model may inject any number of faults, which must not make a
/// closure exceed its attempts.
constexpr internal::LedgerRules kRules = {100, true};
/// Order that JobCheckpoint sends to all servers in each phase; kList if it sends none.
constexpr OrderKind kOrders[] = {OrderKind::kList,       OrderKind::kList,    OrderKind::kFreeze,
                                 OrderKind::kReadFrozen, OrderKind::kRelease, OrderKind::kClose,
                                 OrderKind::kRestore,    OrderKind::kOpen};
constexpr const char* kOrderNames[] = {"",     "open",   "close",       "restore",
                                       "list", "freeze", "read frozen", "release"};

/// Returns the mask bit of a server, or of a closure's content.
std::uint8_t bit(std::size_t index) { return static_cast<std::uint8_t>(1U << index); }
std::uint8_t first_bits(std::size_t count) { return static_cast<std::uint8_t>(bit(count) - 1); }

std::uint64_t generation_of(std::uint64_t id) { return id >> internal::kClosureNumberBits; }

template <class T>
void insert_new(std::vector<T>& sorted, const T& value) {
  const auto place = std::ranges::lower_bound(sorted, value);
  if (place == sorted.end() || *place != value) sorted.insert(place, value);
}
template <class T>
T take(std::vector<T>& values, std::size_t index) {
  const T value = values[index];
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(index));
  return value;
}

/// Events of the protocol: each function is one event, and changes the state. Requires: both
/// arguments outlive this object.
class Protocol {
 public:
  Protocol(const ModelOptions& options, ModelState& state) : options_(options), state_(state) {}

  void dispatch(std::uint64_t number, int num_copies) {
    const int attempt = state_.ledger.start(number, 0);
    state_.tasks.push_back({static_cast<std::uint8_t>(number), attempt});
    if (num_copies > 1) add_strays(state_.tasks.back());
  }

  void finish(std::size_t task) {
    const ModelTask ended = take(state_.tasks, task);
    state_.ledger.finish(ended.number, ended.attempt);
    state_.reported |= bit(state_.contents[ended.number]);
    add_strays(ended);  // only kFinishedBeforeConfirmed leaves unconfirmed pushes
  }

  /// Loses a worker's task: the coordinator puts the closure back, but changes that the worker has
  /// already sent may still arrive.
  void lose(std::size_t task) {
    const ModelTask lost = take(state_.tasks, task);
    add_strays(lost);
    if (is(PlantedBug::kRetryTakesNewNumber)) {
      state_.ledger.stop(lost.number, lost.attempt);
      (void)state_.ledger.schedule();
      return state_.contents.push_back(state_.contents[lost.number]);
    }
    state_.ledger.put_back(lost.number, lost.attempt, {.worker = 0});
    note_given_up();
  }

  /// Fails the closure. Its changes remain, so a version may contain any of them.
  void fail(std::size_t task) {
    const ModelTask failed = take(state_.tasks, task);
    add_strays(failed);
    state_.ledger.fail({failed.number, failed.attempt});
    note_given_up();
  }

  /// Models a worker that notices that its closure has been cancelled.
  void stop(std::size_t task) {
    const ModelTask stopped = take(state_.tasks, task);
    add_strays(stopped);
    state_.ledger.stop(stopped.number, stopped.attempt);
    note_given_up();
  }

  void raise_failures() { (void)state_.ledger.raise_failures(); }

  /// Delivers a push to an open server. A closed server would hold the push; in the model, the task
  /// delivers it later.
  void deliver(std::size_t task, std::size_t s, bool is_answered) {
    ModelTask& sender = state_.tasks[task];
    if (!receive(push_of(sender, s))) {
      state_.violation =
          concat("ps ", s, " refused a push of running closure ", int{sender.number});
    } else if (is_answered) {
      sender.confirmed_by |= bit(s);
    }
  }

  void deliver_stray(std::size_t index) {
    const ModelPush push = take(state_.strays, index);
    ModelServer& server = state_.servers[push.server];
    if (server.is_open) {
      (void)receive(push);
    } else {
      insert_new(server.held, push);
    }
  }

  /// Adds one stray push, which also represents its copies, because tables skip repeated pushes.
  void add_stray(const ModelTask& task, std::size_t s) {
    insert_new(state_.strays, push_of(task, s));
  }
  void add_strays(const ModelTask& task) {
    for (std::size_t s = 0; s < state_.servers.size(); ++s) {
      if ((task.confirmed_by & bit(s)) == 0) add_stray(task, s);
    }
  }

  /// Drops pushes that their server will refuse. This reduces the number of states without changing
  /// behaviour.
  void drop_void_strays() {
    if (!is(PlantedBug::kNone)) return;
    std::erase_if(state_.strays, [this](const ModelPush& push) {
      return push.id < state_.servers[push.server].table.finished_below();
    });
  }

  /// Executes the first order in transit. If the reply is lost, the order stays in transit and is
  /// executed again later.
  void obey(std::size_t s, bool is_answered) {
    const ModelOrder order = state_.servers[s].orders.front();
    const bool is_done = execute(s, order);
    if (!is_answered) return;
    (void)take(state_.servers[s].orders, 0);
    hear(s, order, is_done);
  }

  void repeat_order(std::size_t s) {
    std::vector<ModelOrder>& orders = state_.servers[s].orders;
    orders.insert(orders.begin(), ModelOrder(orders.front()));
  }

  void kill_server(std::size_t s) {
    ModelServer fresh;
    fresh.orders = std::move(state_.servers[s].orders);  // orders in transit reach the new process
    state_.servers[s] = std::move(fresh);
    state_.has_loss = true;
  }

  void begin_version() {
    --state_.versions_left;
    ++state_.save;
    state_.phase = Phase::kPausing;
  }

  void give_up_version() { state_.phase = Phase::kRunning; }

  /// Begins a phase and sends its orders to the servers.
  void begin(Phase phase) {
    state_.phase = phase;
    state_.answered_by = 0;
    state_.read.assign(state_.servers.size(), {});
    if (phase == Phase::kFreezing) state_.frozen_below = state_.ledger.finished_below();
    ModelOrder given;
    given.save = state_.save;
    given.order.kind = kOrders[static_cast<std::size_t>(phase)];
    given.order.generation = state_.ledger.generation();
    if (!is(PlantedBug::kOldIdsAccepted)) {
      if (phase == Phase::kClosing) given.order.number = id_of(0);
      if (phase == Phase::kOpening) {
        given.order.number = id_of(state_.ledger.finished_below());
      }
    }
    for (ModelServer& server : state_.servers) server.orders.push_back(given);
  }

  void roll_back() {
    for (const ModelTask& task : std::exchange(state_.tasks, {})) add_strays(task);
    if (is(PlantedBug::kFinishedNotQueuedAgain)) {
      state_.ledger.note_saved(state_.ledger.finished_below());
    }
    state_.ledger.roll_back();
    note_given_up();
    state_.has_loss = false;
    begin(Phase::kClosing);
  }

  /// Restarts every process, so that only the checkpoint folder remains. The program then
  /// reschedules the closures that the version lacks.
  void restart_job() {
    const std::uint64_t number = state_.version_number;
    ModelState next;
    next.ledger = ClosureLedger(kRules, number);
    for (int i = 0; i < options_.num_closures; ++i) {
      next.contents.push_back(static_cast<std::uint8_t>(i));
      if (std::cmp_greater_equal(i, number)) (void)next.ledger.schedule();
    }
    next.servers.resize(state_.version.size());
    next.version_number = number;
    next.version = state_.version;
    next.reported = state_.reported & first_bits(number);
    next.given_up = state_.given_up & first_bits(number);
    next.faults_left = state_.faults_left;
    next.versions_left = state_.versions_left;
    state_ = std::move(next);
    begin(Phase::kClosing);
  }

 private:
  bool is(PlantedBug bug) const { return options_.bug == bug; }

  void note_given_up() {
    if (is(PlantedBug::kRetryTakesNewNumber)) return;
    for (std::uint64_t number = 0; number < state_.ledger.next_number(); ++number) {
      const auto* closure = state_.ledger.find(number);
      const bool has_result = closure == nullptr || closure->state == ClosureState::kFinished;
      if (has_result || !closure->has_ended()) continue;
      const std::uint8_t content = bit(state_.contents[number]);
      state_.given_up |= content;
      if (closure->state == ClosureState::kCancelled && (state_.reported & content) != 0) {
        state_.violation = concat("closure ", number, " was cancelled after it had finished");
      }
    }
  }

  std::uint64_t id_of(std::uint64_t number) const {
    const bool is_planted = is(PlantedBug::kIdsWithoutGeneration);
    return closure_id(is_planted ? 1 : state_.ledger.generation(), number);
  }

  ModelPush push_of(const ModelTask& task, std::size_t s) const {
    return {static_cast<std::uint8_t>(s), state_.contents[task.number], id_of(task.number),
            id_of(state_.ledger.finished_below())};
  }

  /// Applies a push unless it is a duplicate. Returns false if the table refuses it.
  bool receive(const ModelPush& push) {
    ModelServer& server = state_.servers[push.server];
    const internal::UpdateStream stream{internal::UpdateStream::Kind::kClosure, push.id, 0};
    const internal::ChangeIdentity identity{stream, 0, 1, push.finished_below};
    try {
      if (server.table.num_applied_before(identity) == 0) ++server.counts[push.content];
    } catch (const Error&) {
      return false;
    }
    server.table.note_applied(identity);
    return true;
  }

  /// Models VariableStore::run_order(). Returns false if the server refuses the order.
  bool execute(std::size_t s, const ModelOrder& given) {
    const internal::StoreOrder& order = given.order;
    ModelServer& server = state_.servers[s];
    const bool closes = order.kind == OrderKind::kClose, opens = order.kind == OrderKind::kOpen;
    if (order.generation != server.generation) {
      if (!closes || order.generation < server.generation) return false;
    }
    const bool resets_table = closes || (opens && !server.is_open);
    if (resets_table && !is(PlantedBug::kTableKept)) {
      server.table = AppliedTable(order.number);
    }
    if (closes) {
      server.generation = order.generation;
      server.is_open = false;
    }
    if (opens) {
      server.is_open = true;
      for (const ModelPush& push : std::exchange(server.held, {})) {
        if (is(PlantedBug::kHeldNotChecked)) ++server.counts[push.content];
        if (!is(PlantedBug::kHeldNotChecked)) (void)receive(push);
      }
    }
    if (order.kind == OrderKind::kRestore) {
      const bool has_values = server.counts != ModelCounts{};
      if (!has_values || !is(PlantedBug::kRestoreSkipsSurvivors)) server.counts = state_.version[s];
    }
    if (order.kind == OrderKind::kFreeze) {
      const bool is_repeated = server.frozen && server.frozen_for == given.save;
      if (!is_repeated || is(PlantedBug::kRepeatedFreezeObeyed)) server.frozen = server.counts;
      server.frozen_for = given.save;
    }
    if (closes || order.kind == OrderKind::kRelease) server.frozen.reset();
    return order.kind != OrderKind::kReadFrozen || server.frozen.has_value();
  }

  /// Receives a reply to an order. Ignores it if the coordinator is no longer waiting for it.
  void hear(std::size_t s, const ModelOrder& order, bool is_done) {
    const bool is_awaited = order.order.generation == state_.ledger.generation() &&
                            order.order.kind == kOrders[static_cast<std::size_t>(state_.phase)] &&
                            order.save == state_.save;
    if (!is_awaited) return;
    if (!is_done) return roll_back();
    if (state_.phase == Phase::kReading) state_.read[s] = *state_.servers[s].frozen;
    state_.answered_by |= bit(s);
    if (state_.answered_by == first_bits(state_.servers.size())) end_phase();
  }

  void end_phase() {
    const Phase ended = std::exchange(state_.phase, Phase::kRunning);
    const bool notes_late = is(PlantedBug::kReleasedBeforeNoted);
    if (ended == Phase::kReading) write_version();
    if (ended == (notes_late ? Phase::kReleasing : Phase::kReading)) {
      state_.ledger.note_saved(state_.version_number);
    }
    if (ended == Phase::kClosing && !is(PlantedBug::kFinishedNotQueuedAgain) &&
        state_.version_number != state_.ledger.saved_below()) {
      state_.violation =
          concat("expected the last version to contain ", state_.ledger.saved_below(),
                 " closures, got ", state_.version_number);
    }
    if (ended == Phase::kReleasing || ended == Phase::kOpening) return;
    begin(static_cast<Phase>(static_cast<int>(ended) + 1));
  }

  void write_version() {
    state_.version = state_.read;
    state_.version_number = state_.frozen_below;
    if (is(PlantedBug::kRetryTakesNewNumber)) return;  // the servers' counts reveal this bug
    for (std::size_t s = 0; s < state_.servers.size(); ++s) {
      for (std::size_t number = 0; number < state_.contents.size(); ++number) {
        const std::size_t content = state_.contents[number];
        if (number < state_.version_number && (state_.given_up & bit(content)) != 0) continue;
        const int found = state_.version[s][content];
        if (found == (number < state_.version_number ? 1 : 0)) continue;
        state_.violation =
            concat("the version of ", state_.version_number, " closures contains closure ", number,
                   " ", found, " times on ps ", s);
      }
    }
  }

  const ModelOptions& options_;
  ModelState& state_;
};

/// All steps that are possible in one state.
class Steps {
 public:
  Steps(const ModelOptions& options, const ModelState& from, bool with_texts)
      : options_(options), from_(from), with_texts_(with_texts) {
    for (std::size_t i = 0; i < from_.strays.size(); ++i) {
      const ModelPush& push = from_.strays[i];
      step({},
           say("a stray push of closure ", internal::closure_number(push.id), " of generation ",
               generation_of(push.id), " arrives at ps ", int{push.server}),
           &Protocol::deliver_stray, i);
    }
    for (std::size_t i = 0; i < from_.tasks.size(); ++i) task_steps(i);
    for (std::size_t s = 0; s < from_.servers.size(); ++s) server_steps(s);
    coordinator_steps();
  }

  std::vector<ModelSuccessor> found = {};
  bool has_free_step = false;

 private:
  template <class... Text>
  std::string say(const Text&... text) const {
    return with_texts_ ? concat(text...) : std::string();
  }

  template <class... Parameters, class... Arguments>
  void step(std::optional<Fault> fault, std::string text, void (Protocol::*change)(Parameters...),
            const Arguments&... arguments) {
    const auto& faults = options_.faults;
    const bool is_allowed =
        !fault || faults.empty() || std::ranges::find(faults, *fault) != faults.end();
    if (!is_allowed || (fault && from_.faults_left == 0)) return;
    found.push_back({from_, (fault ? "FAULT: " : "") + std::move(text)});
    ModelState& next = found.back().state;
    if (fault) --next.faults_left;
    has_free_step |= !fault;
    Protocol protocol(options_, next);
    (protocol.*change)(arguments...);
    protocol.drop_void_strays();
  }

  void task_steps(std::size_t i) {
    const ModelTask& task = from_.tasks[i];
    const std::string name = say("closure ", int{task.number});
    for (std::size_t s = 0; s < from_.servers.size(); ++s) {
      if ((task.confirmed_by & bit(s)) != 0) continue;
      const std::string push = say(name, " pushes to ps ", s);
      step(Fault::kSentTwice, say(push, "; the push is duplicated in transit"),
           &Protocol::add_stray, task, s);
      if (!from_.servers[s].is_open) continue;
      step({}, push, &Protocol::deliver, i, s, true);
      step(Fault::kAnswerLost, say(push, "; the answer is lost"), &Protocol::deliver, i, s, false);
    }
    const bool is_early = options_.bug == PlantedBug::kFinishedBeforeConfirmed;
    if (task.confirmed_by == first_bits(from_.servers.size()) ||
        (is_early && task.confirmed_by != 0)) {
      step({}, say(name, " finishes"), &Protocol::finish, i);
    }
    if (!from_.ledger.failures().empty()) step({}, say(name, " stops"), &Protocol::stop, i);
    step(Fault::kClosureFailed, say(name, " fails"), &Protocol::fail, i);
    step(Fault::kWorkerLost, say("the worker of ", name, " is lost"), &Protocol::lose, i);
  }

  void server_steps(std::size_t s) {
    const ModelServer& server = from_.servers[s];
    if (!server.orders.empty()) {
      const internal::StoreOrder& order = server.orders.front().order;
      const std::string text =
          say("ps ", s, " executes the order ", kOrderNames[static_cast<std::size_t>(order.kind)],
              " of generation ", order.generation);
      step({}, text, &Protocol::obey, s, true);
      step(Fault::kAnswerLost, say(text, "; the answer is lost"), &Protocol::obey, s, false);
      step(Fault::kSentTwice, say(text, " twice"), &Protocol::repeat_order, s);
    }
    step(Fault::kServerKilled, say("ps ", s, " dies and is restarted"), &Protocol::kill_server, s);
  }

  void coordinator_steps() {
    const auto cause = from_.has_loss ? std::nullopt : std::optional(Fault::kServerSuspected);
    step(cause, say("all servers roll back to the version"), &Protocol::roll_back);
    step(Fault::kCoordinatorKilled, say("all processes restart"), &Protocol::restart_job);
    if (from_.phase >= Phase::kClosing) return;
    version_steps();
    if (!from_.ledger.failures().empty() && from_.ledger.is_drained()) {
      step({}, say("the program receives the failure"), &Protocol::raise_failures);
    }
    if (std::cmp_greater_equal(from_.ledger.num_running(), options_.num_workers)) return;
    const bool is_paused = options_.bug != PlantedBug::kClosuresGivenOutWhilePaused &&
                           (from_.phase == Phase::kPausing || from_.phase == Phase::kFreezing);
    const auto first = from_.ledger.next_queued(is_paused);
    if (first) dispatch_steps(*first);
    // The free worker may be worker 0, to which the model attributes all failed attempts.
    const auto other = from_.ledger.next_queued_new_to(0, is_paused);
    if (other && other != first) dispatch_steps(*other);
  }

  void dispatch_steps(std::uint64_t number) {
    const std::string text = say("closure ", number, " is dispatched");
    step({}, text, &Protocol::dispatch, number, 1);
    step(Fault::kGivenOutTwice, say(text, " twice"), &Protocol::dispatch, number, 2);
  }

  void version_steps() {
    if (from_.phase == Phase::kRunning && from_.versions_left > 0) {
      step({}, say("the save of a version begins: the queue pauses"), &Protocol::begin_version);
    }
    const bool is_between = options_.bug == PlantedBug::kVersionDuringInterruption
                                ? from_.ledger.num_running() == 0
                                : from_.ledger.is_between_closures();
    if (from_.phase == Phase::kPausing && is_between) {
      step({}, say("no closure is running"), &Protocol::begin, Phase::kFreezing);
    }
    if (from_.phase <= Phase::kPausing) return;
    step(Fault::kVersionGivenUp, say("the save of the version is abandoned"),
         &Protocol::give_up_version);
  }

  const ModelOptions& options_;
  const ModelState& from_;
  const bool with_texts_;
};

/// Writer that stores each number as one byte. Requires: all numbers are below 256.
class Bytes {
 public:
  template <class... Numbers>
  void add(const Numbers&... numbers) {
    (add_one(static_cast<std::uint64_t>(numbers)), ...);
  }
  void add(const ModelCounts& counts) {
    for (const std::uint8_t count : counts) add_one(count);
  }
  void add_id(std::uint64_t id) { add(generation_of(id), internal::closure_number(id)); }
  void add(const std::vector<ModelPush>& pushes) {
    add(pushes.size());
    for (const ModelPush& push : pushes) {
      add(push.server, push.content);
      add_id(push.id), add_id(push.finished_below);
    }
  }
  void add(const std::vector<ModelOrder>& orders) {
    add(orders.size());
    for (const ModelOrder& each : orders) {
      add(each.order.kind, each.order.generation, each.save);
      add_id(each.order.number);
    }
  }
  /// Adds the table's watermark and the ids at or above it that the table contains.
  void add(const AppliedTable& table, const ClosureLedger& ledger) {
    const std::uint64_t below = table.finished_below();
    add_id(below), add(table.num_streams());
    if (table.num_streams() == 0) return;
    for (auto g = generation_of(below); g <= ledger.generation(); ++g) {
      for (std::uint64_t number = 0; number < ledger.next_number(); ++number) {
        const std::uint64_t id = closure_id(g, number);
        const internal::UpdateStream stream{internal::UpdateStream::Kind::kClosure, id, 0};
        if (id >= below && table.num_applied_before({stream, 0, 1, 0}) == 1) add_id(id);
      }
    }
  }
  /// Adds a ledger without attempt numbers, because at most one attempt of a closure runs, and
  /// without the contents of a closure's reports, because only their existence matters.
  void add(const ClosureLedger& ledger) {
    add(ledger.generation(), ledger.finished_below(), ledger.saved_below());
    for (std::uint64_t number = 0; number < ledger.next_number(); ++number) {
      const auto* closure = ledger.find(number);
      if (closure == nullptr) continue;
      add(number, closure->state, closure->is_interrupted, closure->has_finished,
          !closure->reports.empty());
    }
  }
  std::string text = {};

 private:
  void add_one(std::uint64_t number) {
    TUTTI_CHECK(number < 256, "a number of the model exceeds 255");
    text.push_back(static_cast<char>(number));
  }
};

/// Returns the bytes of the state with its list of servers rotated by `by`.
std::string bytes_of(const ModelState& state, std::size_t by) {
  const std::size_t n = state.servers.size();
  const auto rotated = [&](std::uint8_t mask) {
    return ((mask << by) | (mask << by >> n)) & first_bits(n);
  };
  const auto rotated_pushes = [&](std::vector<ModelPush> pushes) {
    for (ModelPush& each : pushes) each.server = static_cast<std::uint8_t>((each.server + by) % n);
    std::ranges::sort(pushes);
    return pushes;
  };
  Bytes bytes;
  bytes.text.reserve(256);
  bytes.add(state.phase, state.save, state.has_loss, state.frozen_below, state.version_number,
            state.reported, state.given_up, state.ledger.failures().size(), state.faults_left,
            state.versions_left, rotated(state.answered_by), state.tasks.size(),
            state.contents.size());
  for (const ModelTask& task : state.tasks) bytes.add(task.number, rotated(task.confirmed_by));
  for (const std::uint8_t content : state.contents) bytes.add(content);
  for (std::size_t place = 0; place < n; ++place) {
    const std::size_t s = (place + n - by) % n;
    const ModelServer& server = state.servers[s];
    bytes.add(server.is_open, server.generation, server.frozen.has_value(), server.frozen_for);
    bytes.add(server.table, state.ledger);
    bytes.add(server.counts), bytes.add(server.frozen.value_or(ModelCounts()));
    bytes.add(rotated_pushes(server.held)), bytes.add(server.orders);
    bytes.add(state.version[s]), bytes.add(state.read[s]);
  }
  bytes.add(rotated_pushes(state.strays));
  return std::move(bytes.text);
}

bool is_serving(const ModelState& state) {
  const auto serves = [&](const ModelServer& server) {
    return server.is_open && server.generation == state.ledger.generation();
  };
  return state.phase < Phase::kClosing && std::ranges::all_of(state.servers, serves);
}

}  // namespace

ModelState initial_state(const ModelOptions& options) {
  ModelState state;
  state.faults_left = static_cast<std::uint8_t>(options.num_faults);
  state.versions_left = static_cast<std::uint8_t>(options.num_versions);
  state.version.resize(static_cast<std::size_t>(options.num_servers));
  Protocol(options, state).restart_job();
  return state;
}

std::vector<ModelSuccessor> successors(const ModelOptions& options, const ModelState& state,
                                       bool& can_go_on, bool with_texts) {
  Steps steps(options, state, with_texts);
  can_go_on = steps.has_free_step;
  return std::move(steps.found);
}

std::string violation(const ModelState& state) {
  if (!state.violation.empty()) return state.violation;
  for (std::size_t s = 0; s < state.servers.size(); ++s) {
    for (std::size_t content = 0; content < kMostContents; ++content) {
      const int count = state.servers[s].counts[content];
      if (count > 1) return concat("ps ", s, " counted closure ", content, " ", count, " times");
    }
  }
  if (!is_serving(state)) return "";
  for (std::uint64_t number = 0; number < state.ledger.next_number(); ++number) {
    const auto* closure = state.ledger.find(number);
    const std::size_t content = state.contents[number];
    // Reads wait until is_catching_up() is false; from then on they must see this closure.
    const bool is_to_be_seen =
        (state.reported & ~state.given_up & bit(content)) != 0 && !state.ledger.is_catching_up();
    const bool is_finished = closure != nullptr && closure->state == ClosureState::kFinished;
    if (!is_finished && !is_to_be_seen) continue;
    for (std::size_t s = 0; s < state.servers.size(); ++s) {
      if (state.servers[s].counts[content] == 1) continue;
      return concat("closure ", number, " finished, but ps ", s, " did not count it");
    }
  }
  return "";
}

std::string why_not_ended(const ModelState& state) {
  if (!is_serving(state) || state.phase != Phase::kRunning) return "the servers are not open";
  if (!state.ledger.is_drained()) return "closures are queued or running";
  for (std::size_t s = 0; s < state.servers.size(); ++s) {
    for (const std::uint8_t content : state.contents) {
      if (state.servers[s].counts[content] == 1 || (state.given_up & bit(content)) != 0) continue;
      return concat("ps ", s, " did not count closure ", int{content});
    }
  }
  return "";
}

std::string bytes_of(const ModelState& state) {
  std::string least = bytes_of(state, 0);
  for (std::size_t by = 1; by < state.servers.size(); ++by) {
    least = std::min(least, bytes_of(state, by));
  }
  Bytes of_ledger;
  of_ledger.add(state.ledger);
  return least + of_ledger.text;
}

}  // namespace tutti::testing
