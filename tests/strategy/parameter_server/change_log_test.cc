// The log of a server's changes: the same bits again, whatever was cut off, and no damaged record.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/change_log.h"

#include <fstream>

#include "core/file.h"
#include "tests/strategy/parameter_server/durable_helpers.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti::change_log_tests {

using durable_tests::KeptWarnings;
using durable_tests::OwnFolder;
using internal::ChangeLog;
using internal::ScatterShard;
using store_tests::AssignShard;
using store_tests::Client;
using store_tests::CreateShard;
using store_tests::OperationBatch;
using store_tests::ReadShard;
using store_tests::rows_of;
using store_tests::state_of;
using store_tests::UpdateStream;
using store_tests::VariableStore;
using store_tests::whole;
using ::testing::Contains;
using testing::expect_error;
using testing::HangWatchdog;
using ::testing::HasSubstr;

/// Without a thread that writes in between.
std::shared_ptr<ChangeLog> log_in(const OwnFolder& folder, const std::string& job_id = "job") {
  return std::make_shared<ChangeLog>(folder.path(), job_id, 0, 2, std::chrono::hours(1));
}

/// A store whose changes are logged from the beginning, as those since cut 1.
struct Logged {
  explicit Logged(const OwnFolder& folder) : log(log_in(folder)) {
    log->prepare(1);
    log->switch_over();
    store.set_log(log);
  }
  std::shared_ptr<ChangeLog> log;
  VariableStore store{"ps 0"};
};

/// The state that the log of cut 1 gives, and how many batches it has.
std::pair<std::string, std::uint64_t> replayed(const OwnFolder& folder) {
  VariableStore store("ps 0");
  const std::uint64_t number = log_in(folder)->replay(1, [&](OperationBatch batch) {
    const auto problem = apply_again(store, std::move(batch));
    EXPECT_EQ(problem, std::nullopt) << problem->message();
  });
  return {state_of(store), number};
}

std::string only_file(const OwnFolder& folder) {
  EXPECT_EQ(folder.names(), std::vector<std::string>{"ps_0_of_2.log_1_0"});
  return folder.path() + "/ps_0_of_2.log_1_0";
}

void put_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Three changes of a closure, the second with a payload longer than a page.
void change_three_times(VariableStore& store) {
  Client client(store, 5, UpdateStream::Kind::kClosure);
  const auto spec = whole("w", {4000});
  client.call({CreateShard{spec, Tensor::zeros({4000})}});
  client.call({AssignShard{spec.id(), AssignOp::kAdd, random_uniform({4000}, {.seed = 3})},
               ReadShard{spec.id()}});
  client.call({ScatterShard{spec.id(), ScatterOp::kAdd, rows_of({7, 9}), Tensor::ones({2})}});
}

/// Threads meet at the same shards with additions whose order changes the bits.
TEST(ChangeLog, AppliedAgainItGivesTheSameBits) {
  const HangWatchdog watchdog("many writers");
  const OwnFolder folder("log_bits");
  Logged logged(folder);
  std::vector<internal::ShardSpec> specs;
  for (int i = 0; i < 3; ++i) specs.push_back(whole(concat("v", i), {50}));
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (std::uint64_t id = 0; id < 4; ++id) {
      threads.push_back(Executor::system().start("writer", [&, id] {
        Client client(logged.store, id, UpdateStream::Kind::kClosure);
        for (const auto& spec : specs) client.call({CreateShard{spec, Tensor::zeros({50})}});
        for (std::uint64_t i = 0; i < 60; ++i) {
          const auto& spec = specs[(i + id) % 3];
          const Tensor by = random_uniform({50}, {.seed = 100 * id + i}, -1000.0, 1000.0);
          if (i % 10 == 9) {
            client.call({AssignShard{spec.id(), AssignOp::kAssign, by}});
          } else {
            client.call({AssignShard{spec.id(), AssignOp::kAdd, by},
                         AssignShard{specs[i % 3].id(), AssignOp::kAdd, by}});
          }
        }
      }));
    }
  }
  const auto [state, number] = replayed(folder);
  EXPECT_TRUE(state == state_of(logged.store));
  EXPECT_EQ(number, 4U * 63);
}

TEST(ChangeLog, WhatIsRefusedIsNotLogged) {
  const OwnFolder folder("log_refused");
  Logged logged(folder);
  change_three_times(logged.store);
  Client other(logged.store, 6, UpdateStream::Kind::kClosure);
  expect_error(ErrorCode::kInvalidArgument, {"w"}, [&] {
    other.call({AssignShard{whole("w", {4000}).id(), AssignOp::kAdd, Tensor::ones({3})}});
  });
  other.go_back_to(9);
  expect_error(ErrorCode::kAborted, {"came before"}, [&] {
    other.call({AssignShard{whole("w", {4000}).id(), AssignOp::kAdd, Tensor::ones({4000})}});
  });
  EXPECT_EQ(replayed(folder).second, 3U);
}

TEST(ChangeLog, ARecordThatWasBeingWrittenIsLeftOut) {
  const KeptWarnings warnings;
  const OwnFolder folder("log_torn");
  std::vector<std::string> states;
  {
    Logged logged(folder);
    Client client(logged.store, 5, UpdateStream::Kind::kClosure);
    const auto spec = whole("w", {2}, DType::kInt64);
    for (int i = 0; i < 4; ++i) {
      states.push_back(state_of(logged.store));
      if (i == 0) client.call({CreateShard{spec, Tensor::zeros({2}, DType::kInt64)}});
      client.call({AssignShard{spec.id(), AssignOp::kAdd, Tensor::ones({2}, DType::kInt64)}});
    }
    states.push_back(state_of(logged.store));
  }
  const std::string path = only_file(folder);
  const std::string whole_file = read_file(path);
  // Every length of the file gives a state that there was, and never less than at a shorter length.
  std::uint64_t num_before = 5;
  for (std::size_t length = whole_file.size(); length > 40; --length) {
    put_file(path, whole_file.substr(0, length));
    std::pair<std::string, std::uint64_t> found;
    try {
      found = replayed(folder);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);  // the head was cut, too
      EXPECT_LT(length, 70U);
      continue;
    }
    EXPECT_LE(found.second, num_before);
    num_before = found.second;
    // Record 1 makes the variable, record i + 1 is the i-th addition.
    if (found.second < 2) continue;
    EXPECT_EQ(found.first, states[found.second - 1]) << length;
  }
  EXPECT_EQ(num_before, 0U);
  EXPECT_THAT(warnings.lines, Contains(HasSubstr("being written when the server died")));
}

TEST(ChangeLog, EveryChangedByteIsFound) {
  const KeptWarnings quiet;
  const OwnFolder folder("log_damage");
  {
    Logged logged(folder);
    Client client(logged.store, 5, UpdateStream::Kind::kClosure);
    const auto spec = whole("w", {2}, DType::kInt64);
    client.call({CreateShard{spec, Tensor::zeros({2}, DType::kInt64)}});
    for (int i = 0; i < 3; ++i) {
      client.call({AssignShard{spec.id(), AssignOp::kAdd, Tensor::ones({2}, DType::kInt64)}});
    }
  }
  const std::string path = only_file(folder);
  const std::string whole_file = read_file(path);
  const std::string state = replayed(folder).first;
  int num_refused = 0, num_at_end = 0;
  for (std::size_t place = 0; place < whole_file.size(); ++place) {
    std::string damaged = whole_file;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x10);
    put_file(path, damaged);
    try {
      const auto found = replayed(folder);
      EXPECT_EQ(found.second, 3U) << place;  // the last record alone may be one that was cut off
      EXPECT_NE(found.first, state);
      ++num_at_end;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnimplemented)
          << place << ": " << error.message();
      EXPECT_THAT(error.message(), HasSubstr(path));
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 3 * num_at_end / 2);
  EXPECT_GT(num_at_end, 0);
}

TEST(ChangeLog, AFileOfAnotherFormatIsRefusedByItsNumber) {
  const OwnFolder folder("log_format");
  { const Logged logged(folder); }
  std::string bytes;
  const internal::RecordWriter out({"TUTTIPSL", 3}, {}, [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  put_file(only_file(folder), bytes);
  expect_error(ErrorCode::kUnimplemented, {only_file(folder), "expected format 4, found 3", "try"},
               [&] { (void)replayed(folder); });
}

TEST(ChangeLog, PartsOfSeveralLivesFollowEachOther) {
  const OwnFolder folder("log_parts");
  {
    Logged logged(folder);
    change_three_times(logged.store);
    // The next cut begins; it is not finished.
    logged.log->prepare(2);
    (void)logged.store.snapshot([&] { logged.log->switch_over(); });
    Client client(logged.store, 6, UpdateStream::Kind::kClosure);
    client.call({AssignShard{whole("w", {4000}).id(), AssignOp::kAdd, Tensor::ones({4000})}});
  }
  const auto [state, number] = replayed(folder);
  EXPECT_EQ(number, 4U);
  {
    // Another life goes on behind it.
    VariableStore store("ps 0");
    const auto log = log_in(folder);
    (void)log->replay(1, [&](OperationBatch batch) { (void)apply_again(store, std::move(batch)); });
    EXPECT_TRUE(state_of(store) == state);
    log->prepare(2);
    log->switch_over();
    store.set_log(log);
    Client client(store, 7, UpdateStream::Kind::kClosure);
    client.call({AssignShard{whole("w", {4000}).id(), AssignOp::kAdd, Tensor::ones({4000})}});
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"ps_0_of_2.log_1_0", "ps_0_of_2.log_2_0",
                                                      "ps_0_of_2.log_2_1"}));
  EXPECT_EQ(replayed(folder).second, 5U);
  const auto log = log_in(folder);
  log->forget_before(2);
  expect_error(ErrorCode::kFailedPrecondition, {"ps_0_of_2.log_1_0", "cut 1", "found none"},
               [&] { (void)log->replay(1, [](const OperationBatch&) {}); });
  EXPECT_EQ(log->replay(2, [](const OperationBatch&) {}), 2U);
  expect_error(ErrorCode::kFailedPrecondition, {"job 'other'", "'job'"},
               [&] { (void)log_in(folder, "other")->replay(2, [](const OperationBatch&) {}); });
}

/// Sets "w" under a coordinator's term.
void set_in_term(VariableStore& store, std::uint64_t term, double value) {
  Client client(store, term, UpdateStream::Kind::kClosure);
  OperationBatch batch = client.batch(
      {AssignShard{whole("w", {4000}).id(), AssignOp::kAssign, Tensor::full({4000}, value)}});
  batch.term = term;
  (void)store.start(std::move(batch))->wait(store_tests::soon());
}

/// Cut 2 is begun and never taken, for the server dies; its next life begins with cut 1 again.
TEST(ChangeLog, GoesOnBehindWhatCameAfterACutThatWasNeverTaken) {
  const OwnFolder folder("log_void_cut");
  {
    Logged logged(folder);
    change_three_times(logged.store);
    set_in_term(logged.store, 7, 1.0);
    logged.log->prepare(2);
    (void)logged.store.snapshot([&] { logged.log->switch_over(); });
    set_in_term(logged.store, 8, 2.0);
  }
  VariableStore store("ps 0");
  const auto log = log_in(folder);
  (void)log->replay(1, [&](OperationBatch batch) { (void)apply_again(store, std::move(batch)); });
  log->prepare(1);
  log->switch_over();
  store.set_log(log);
  set_in_term(store, 9, 3.0);
  const auto [state, number] = replayed(folder);  // refuses what is older than what it had before
  EXPECT_TRUE(state == state_of(store));
  EXPECT_EQ(number, 6U);
}

TEST(ChangeLog, AFullDiskRefusesChangesUntilTheNextCut) {
  const OwnFolder folder("log_full");
  Logged logged(folder);
  change_three_times(logged.store);
  const std::string before = state_of(logged.store);
  Client client(logged.store, 6, UpdateStream::Kind::kClosure);
  const auto add = [&] {
    client.go_back_to(0);
    client.call({AssignShard{whole("w", {4000}).id(), AssignOp::kAdd, Tensor::ones({4000})}});
  };
  file_faults::arm(folder.path(), file_faults::Action::kNoSpace, 1, 1000);
  expect_error(ErrorCode::kResourceExhausted, {"log_1_0"}, add);
  file_faults::disarm();
  const auto make = [&] { client.call({CreateShard{whole("new", {3}), Tensor::ones({3})}}); };
  for (const std::function<void()>& change : {std::function<void()>(add), {make}}) {
    expect_error(ErrorCode::kUnavailable, {"ps 0", "its log of changes could not be written"},
                 change);
  }
  EXPECT_TRUE(state_of(logged.store) == before);  // nothing was applied, neither time
  logged.log->prepare(2);
  (void)logged.store.snapshot([&] { logged.log->switch_over(); });
  add();
  make();
  EXPECT_FALSE(state_of(logged.store) == before);
}

}  // namespace tutti::change_log_tests
