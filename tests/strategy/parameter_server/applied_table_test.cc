// Tests the table of changes that a server has applied: duplicates, gaps, finished closures,
// generations.
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
                       std::uint64_t finished_below = 0) {
  return {stream, first, count, finished_below};
}

TEST(AppliedTable, CountsLeadingChangesAlreadyApplied) {
  AppliedTable table;
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 3)), 0u);
  table.note_applied(changes(client(1), 0, 3));
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 3)), 3u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 1, 5)), 2u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 3, 1)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 1)), 1u);
  // Changes from another replica or client, or from a closure with the same number, belong to
  // separate streams.
  EXPECT_EQ(table.num_applied_before(changes(client(1, 1), 0, 1)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(client(2), 0, 1)), 0u);
  EXPECT_EQ(table.num_applied_before(changes(closure(1), 0, 1)), 0u);
}

TEST(AppliedTable, RejectsGapsBetweenChanges) {
  AppliedTable table;
  table.note_applied(changes(closure(17), 0, 2));
  expect_error(ErrorCode::kAborted, {"closure 17", "change 3 arrived before change 2", "lost"},
               [&] { (void)table.num_applied_before(changes(closure(17), 3, 1)); });
  expect_error(ErrorCode::kAborted, {"client 5, replica 2", "change 1 arrived before change 0"},
               [&] { (void)table.num_applied_before(changes(client(5, 2), 1, 1)); });
  // The ordinal 9 causes no gap, because reads have no ordinals.
  EXPECT_EQ(table.num_applied_before(changes(closure(17), 9, 0)), 0u);
}

TEST(AppliedTable, ForgetsFinishedClosuresAndRejectsTheirChanges) {
  AppliedTable table;
  for (std::uint64_t id = 0; id < 10; ++id) {
    table.note_applied(changes(closure(id, 0), 0, 1));
    table.note_applied(changes(closure(id, 1), 0, 1));
  }
  EXPECT_EQ(table.num_streams(), 20u);
  table.note_applied(changes(client(4), 0, 1, 7));
  EXPECT_EQ(table.num_streams(), 7u);  // one client, and closures 7, 8 and 9 on two replicas
  EXPECT_EQ(table.finished_below(), 7u);
  for (const std::uint64_t first : {0, 1}) {
    expect_error(ErrorCode::kAborted, {"closure 6", "finished", "checkpoint"},
                 [&] { (void)table.num_applied_before(changes(closure(6), first, 1)); });
  }
  EXPECT_EQ(table.num_applied_before(changes(closure(7), 0, 1)), 1u);
  // The batch's watermark, 9, shows that closure 8 has finished.
  expect_error(ErrorCode::kAborted, {"closure 8"},
               [&] { (void)table.num_applied_before(changes(closure(8), 0, 1, 9)); });
  // A lower watermark does not lower the table's watermark.
  table.note_applied(changes(client(4), 1, 1, 3));
  EXPECT_EQ(table.finished_below(), 7u);
}

TEST(AppliedTable, RejectsClosuresOfEarlierGenerations) {
  using internal::closure_id;
  const std::uint64_t old_id = closure_id(1, 9), id = closure_id(2, 3);
  AppliedTable table(closure_id(1, 0));
  table.note_applied(changes(closure(old_id), 0, 1));
  EXPECT_EQ(table.num_applied_before(changes(closure(old_id), 0, 1)), 1u);
  // The server restores a checkpoint that contains 3 closures.
  table = AppliedTable(closure_id(2, 3));
  EXPECT_EQ(table.finished_below(), closure_id(2, 3));
  for (const std::uint64_t refused : {old_id, closure_id(1, 3), closure_id(2, 2)}) {
    expect_error(ErrorCode::kAborted, {"closure", "its changes are refused"},
                 [&] { (void)table.num_applied_before(changes(closure(refused), 0, 1)); });
  }
  EXPECT_EQ(table.num_applied_before(changes(closure(id), 0, 1)), 0u);
  table.note_applied(changes(closure(id), 0, 1));
  EXPECT_EQ(table.num_applied_before(changes(closure(id), 0, 1)), 1u);
  EXPECT_EQ(table.num_applied_before(changes(client(2), 0, 1)), 0u);
  // The batch's watermark has a later generation than the id of the batch's closure.
  expect_error(ErrorCode::kAborted, {"closure 3"}, [&] {
    (void)table.num_applied_before(changes(closure(id), 1, 1, closure_id(3, 0)));
  });
  table.note_applied(changes(client(2), 0, 1, closure_id(3, 0)));
  EXPECT_EQ(table.num_streams(), 1u);
  // A watermark from an earlier generation changes nothing.
  table.note_applied(changes(client(2), 1, 1, closure_id(2, 50)));
  EXPECT_EQ(table.finished_below(), closure_id(3, 0));
}

TEST(AppliedTable, RemembersLimitedNumberOfEndedClients) {
  AppliedTable table;
  for (std::uint64_t id = 0; id <= AppliedTable::kMostEndedClients; ++id) {
    table.note_applied(changes(client(id), 0, 2));
    table.note_applied(changes(client(id, 1), 0, 1));
  }
  table.end_client(0);
  table.end_client(0);
  // A repeated call that was in transit when the client ended is still recognized.
  EXPECT_EQ(table.num_applied_before(changes(client(0), 0, 2)), 2u);
  for (std::uint64_t id = 1; id < AppliedTable::kMostEndedClients; ++id) table.end_client(id);
  EXPECT_EQ(table.num_streams(), 2 * (AppliedTable::kMostEndedClients + 1));
  table.note_applied(changes(client(0), 2, 1));  // client 0 is active again
  table.end_client(AppliedTable::kMostEndedClients);
  EXPECT_EQ(table.num_streams(), 2 * (AppliedTable::kMostEndedClients + 1));
  table.end_client(0);
  EXPECT_EQ(table.num_streams(), 2 * AppliedTable::kMostEndedClients);  // client 1 is forgotten
  EXPECT_EQ(table.num_applied_before(changes(client(0), 0, 3)), 3u);
  EXPECT_EQ(table.num_applied_before(changes(client(1), 0, 2)), 0u);
  table.end_client(123456789);  // this client made no changes
}

TEST(AppliedTable, ComparesByValue) {
  AppliedTable table;
  table.note_applied(changes(client(3, 1), 0, 5, 2));
  table.note_applied(changes(client(9), 0, 1));
  table.note_applied(changes(closure(4), 0, 7));
  AppliedTable other = table;
  EXPECT_EQ(other, table);
  EXPECT_EQ(other.num_applied_before(changes(closure(4), 5, 4)), 2u);
  other.end_client(9);
  EXPECT_NE(other, table);
  other = table;
  other.note_applied(changes(closure(4), 7, 1));
  EXPECT_NE(other, table);
  EXPECT_NE(AppliedTable(1), AppliedTable());
}

}  // namespace applied_table
}  // namespace
}  // namespace tutti
