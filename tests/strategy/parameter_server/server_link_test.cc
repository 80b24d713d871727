// One server as a process uses it: what is gathered, and reads whose answers come in parts.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/server_link.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/strategy/parameter_server/store_helpers.h"

namespace tutti {
namespace {
namespace server_link {

using namespace store_tests;
using internal::ServerLink;

/// A store that counts the operations of each batch.
class Counting final : public VariableService {
 public:
  std::string name() const override { return store_.name(); }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override {
    batches.push_back(batch.operations.size());
    return store_.start(std::move(batch));
  }
  std::vector<std::size_t> batches;

 private:
  VariableStore store_{"ps 0"};
};

/// A link to a store with `count` scalars, each of which has its number as value.
struct Linked {
  explicit Linked(int count) {
    std::vector<Operation> creations;
    for (int i = 0; i < count; ++i) {
      const ShardSpec spec = whole(concat("v", i), {});
      creations.push_back(CreateShard{spec, Tensor(static_cast<float>(i))});
      ids.push_back(spec.id());
    }
    (void)link.read(std::move(creations))->wait(soon());
    service->batches.clear();
  }
  std::vector<Operation> reads() const {
    std::vector<Operation> all;
    for (const ShardId id : ids) all.push_back(ReadShard{id});
    return all;
  }
  std::shared_ptr<Counting> service = std::make_shared<Counting>();
  ServerLink link{service, 1};
  std::vector<ShardId> ids;
};

void expect_numbers(const std::vector<OperationAnswer>& answers, std::size_t count) {
  ASSERT_EQ(answers.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    expect_tensor(*answers[i].value, {}, {static_cast<double>(i)});
  }
}

TEST(ServerLink, LongAnswersAreAskedForInPartsAndComeInOrder) {
  Linked linked(10);
  const std::vector<std::size_t> bytes(10, std::size_t{400} << 10);
  const auto answers = linked.link.read(linked.reads(), bytes);
  EXPECT_EQ(linked.service->batches, (std::vector<std::size_t>{3, 3, 3, 1}));
  EXPECT_TRUE(answers->is_ready());
  expect_numbers(answers->wait(soon()), 10);
}

TEST(ServerLink, ShortAnswersComeTogether) {
  Linked linked(10);
  expect_numbers(linked.link.read(linked.reads())->wait(soon()), 10);
  const std::vector<std::size_t> bytes(10, 100);
  expect_numbers(linked.link.read(linked.reads(), bytes)->wait(soon()), 10);
  EXPECT_EQ(linked.service->batches, (std::vector<std::size_t>{10, 10}));
}

TEST(ServerLink, HoweverMuchItIsThereAreNotMoreThanAboutThirtyTwoParts) {
  Linked linked(1000);
  const std::vector<std::size_t> bytes(1000, std::size_t{64} << 20);
  expect_numbers(linked.link.read(linked.reads(), bytes)->wait(soon()), 1000);
  EXPECT_EQ(linked.service->batches.size(), 32u);
  EXPECT_EQ(linked.service->batches.front(), 32u);  // 31.25, rounded up
  EXPECT_EQ(linked.service->batches.back(), 8u);
}

TEST(ServerLink, PartsSeeTheChangesThatWereNotedBefore) {
  Linked linked(4);
  linked.link.change(AssignShard{linked.ids[3], AssignOp::kAdd, Tensor(10.0f)});
  const std::vector<std::size_t> bytes(4, std::size_t{1} << 20);
  const auto answers = linked.link.read(linked.reads(), bytes)->wait(soon());
  EXPECT_EQ(linked.service->batches, (std::vector<std::size_t>{1, 1, 1, 1, 1}));
  expect_tensor(*answers[3].value, {}, {13});
}

TEST(ServerLink, AFailureOfOnePartIsTheFailureOfTheRead) {
  Linked linked(3);
  std::vector<Operation> reads = linked.reads();
  reads[2] = ReadShard{5};
  const std::vector<std::size_t> bytes(3, std::size_t{1} << 20);
  const auto answers = linked.link.read(std::move(reads), bytes);
  EXPECT_ERROR((void)answers->wait(soon()), kNotFound, "ps 0", "there is no shard of the id 5");
}

}  // namespace server_link
}  // namespace
}  // namespace tutti
