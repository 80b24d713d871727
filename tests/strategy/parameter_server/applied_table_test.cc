// Which changes a server applied: duplicates, gaps, finished closures, terms, bytes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/applied_table.h"

#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace {
namespace applied_table {

using internal::AppliedTable;
using internal::ChangeIdentity;
using internal::UpdateStream;
using testing::expect_error;

UpdateStream client(std::uint64_t id, std::uint32_t replica = 0) {
  return {UpdateStream::Kind::kClient, id, replica};
}
UpdateStream closure(std::uint64_t id, std::uint32_t replica = 0) {
  return {UpdateStream::Kind::kClosure, id, replica};
}
ChangeIdentity changes(const UpdateStream& stream, std::uint64_t first, std::uint64_t count,
                       std::uint64_t finished_below = 0, std::uint64_t term = 0) {
  return {term, stream, first, count, finished_below};
}

TEST(AppliedTable, CountsTheLeadingChangesThatCameBefore) {
  AppliedTable table;
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 3)), 0u);
  table.note_applied(changes(client(1), 0, 3));
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 3)), 3u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 1, 5)), 2u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 3, 1)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 1)), 1u);
  // Another replica, another client and a closure of the same number count for themselves.
  EXPECT_EQ(table.num_applied_before(changes(client(1, 1), 0, 1)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(client(2), 0, 1)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(closure(1), 0, 1)), 0u);
}

TEST(AppliedTable, RefusesGaps) {
  AppliedTable table;
  table.note_applied(changes(closure(17), 0, 2));
  expect_error(ErrorCode::kAborted, {"closure 17", "change 3 came before 2", "lost"},
               [&] { (void)table.num_applied_before(changes(closure(17), 3, 1)); });
  expect_error(ErrorCode::kAborted, {"client 5, replica 2", "change 1 came before 0"},
               [&] { (void)table.num_applied_before(changes(client(5, 2), 1, 1)); });
  // Reads have no place in the order.
  EXPECT_EQ(table.num_applied_before(changes(closure(17), 9, 0)), 0u);
}

TEST(AppliedTable, ForgetsFinishedClosuresAndRefusesThem) {
  AppliedTable table;
  for (std::uint64_t id = 0; id < 10; ++id) {
    table.note_applied(changes(closure(id, 0), 0, 1));
    table.note_applied(changes(closure(id, 1), 0, 1));
  }
  EXPECT_EQ(table.num_streams(), 20u);
  table.note_applied(changes(client(4), 0, 1, 7));
  EXPECT_EQ(table.num_streams(), 7u);  // closures 7, 8, 9 twice, and the client
  EXPECT_EQ(table.finished_below(), 7u);
  for (const std::uint64_t first : {0, 1}) {
    expect_error(ErrorCode::kAborted, {"closure 6", "finished", "7"},
                 [&] { (void)table.num_applied_before(changes(closure(6), first, 1)); });
  }
  EXPECT_EQ(table.num_applied_before(changes(closure(7), 0, 1)), 1u);
  // A batch that says itself that its closure is finished.
  expect_error(ErrorCode::kAborted, {"closure 8"},
               [&] { (void)table.num_applied_before(changes(closure(8), 0, 1, 9)); });
  // The watermark never falls.
  table.note_applied(changes(client(4), 1, 1, 3));
  EXPECT_EQ(table.finished_below(), 7u);
}

TEST(AppliedTable, FencesReplacedCoordinators) {
  AppliedTable table;
  table.note_applied(changes(closure(1), 0, 1, 0, 3));
  EXPECT_EQ(table.term(), 3u);
  expect_error(ErrorCode::kAborted, {"term 2", "term 3"},
               [&] { (void)table.num_applied_before(changes(closure(2), 0, 1, 0, 2)); });
  expect_error(ErrorCode::kAborted, {"term 2"},
               [&] { (void)table.num_applied_before(changes(closure(2), 0, 0, 0, 2)); });
  EXPECT_EQ(table.num_applied_before(changes(closure(2), 0, 1, 0, 4)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(client(2), 0, 1)), 0u);  // without a coordinator
}

TEST(AppliedTable, KeepsClientsThatLeftUntilManyMoreHave) {
  AppliedTable table;
  for (std::uint64_t id = 0; id <= AppliedTable::kMostEndedClients; ++id) {
    table.note_applied(changes(client(id), 0, 2));
    table.note_applied(changes(client(id, 1), 0, 1));
  }
  table.end_client(0);
  table.end_client(0);
  // It comes again: its call was on the way.
  EXPECT_EQ(table.num_applied_before(changes(client(0), 0, 2)), 2u);
  for (std::uint64_t id = 1; id < AppliedTable::kMostEndedClients; ++id) table.end_client(id);
  EXPECT_EQ(table.num_streams(), 2 * (AppliedTable::kMostEndedClients + 1));
  table.note_applied(changes(client(0), 2, 1));  // and stays
  table.end_client(AppliedTable::kMostEndedClients);
  EXPECT_EQ(table.num_streams(), 2 * (AppliedTable::kMostEndedClients + 1));
  table.end_client(0);
  EXPECT_EQ(table.num_streams(), 2 * AppliedTable::kMostEndedClients);  // client 1 is forgotten
  EXPECT_EQ(table.num_applied_before(changes(client(0), 0, 3)), 3u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 2)), 0u);
  table.end_client(123456789);  // never changed anything
}

TEST(AppliedTable, IsSavedAndRestoredAsAValue) {
  AppliedTable table;
  table.note_applied(changes(client(3, 1), 0, 5, 2, 6));
  table.note_applied(changes(client(9), 0, 1));
  table.note_applied(changes(closure(4), 0, 7));
  table.end_client(9);
  const std::vector<std::byte> bytes = table.save();
  const AppliedTable again = AppliedTable::restore(bytes);
  EXPECT_EQ(again, table);
  EXPECT_EQ(again.save(), bytes);
  EXPECT_EQ(again.num_applied_before(changes(closure(4), 5, 4, 0, 6)), 2u);
  AppliedTable other = again;
  other.note_applied(changes(closure(4), 7, 1));
  EXPECT_NE(other, table);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    expect_error(ErrorCode::kDataLoss, {"AppliedTable"},
                 [&] { (void)AppliedTable::restore(std::span(bytes).first(size)); });
  }
  int num_refused = 0;
  for (std::size_t place = 0; place < bytes.size(); ++place) {
    std::vector<std::byte> damaged = bytes;
    damaged[place] = std::byte{77};  // the kind of a stream, for one
    try {
      (void)AppliedTable::restore(damaged);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 10);
}

}  // namespace applied_table
}  // namespace
}  // namespace tutti
