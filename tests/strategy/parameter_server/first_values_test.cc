// What a server's own program sees of its variables: the values of the servers that keep them.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/first_values.h"

#include "tests/strategy/parameter_server/store_helpers.h"

namespace tutti::first_values_tests {

using internal::FirstValues;
using store_tests::AssignShard;
using store_tests::Client;
using store_tests::CreateShard;
using store_tests::ReadRows;
using store_tests::ReadShard;
using store_tests::rows_of;
using store_tests::ShardSpec;
using store_tests::VariableService;
using store_tests::VariableStore;
using testing::expect_error;
using testing::expect_same_bits;

/// The same calls to both give the same bits.
TEST(FirstValues, AreThoseOfAStore) {
  FirstValues first("ps 0");
  VariableStore store("ps 0");
  const ShardSpec given{"given", DType::kFloat32, {4, 2}, 1, 2, 2, 2};
  const ShardSpec drawn{"drawn", DType::kFloat32, {6, 2}, 1, 3, 2, 2};
  const ValueGenerator normal{
      .kind = ValueGenerator::Kind::kNormal, .b = 1.0, .key = {.seed = 7}, .shape = {6, 2}};
  for (VariableService* const service :
       {static_cast<VariableService*>(&first), static_cast<VariableService*>(&store)}) {
    Client client(*service, 1);
    client.call({CreateShard{given, Tensor::full({2, 2}, 3.0)}, CreateShard{drawn, normal}});
    client.call({CreateShard{given, Tensor::full({2, 2}, 5.0)}});  // it is there already
  }
  Client of_first(first, 2), of_store(store, 2);
  for (const ShardSpec& spec : {given, drawn}) {
    expect_same_bits(of_first.read(spec.id()), of_store.read(spec.id()));
    const ReadRows row{spec.id(), rows_of({1, 0, 1})};
    expect_same_bits(*of_first.call({row})[0].value, *of_store.call({row})[0].value);
  }
  const auto answer = of_first.call({ReadShard{given.id()}})[0];
  EXPECT_FALSE(of_first.call({ReadShard{given.id(), answer.version}})[0].value.has_value());
}

TEST(FirstValues, AreNotChanged) {
  FirstValues first("ps 1");
  Client client(first, 1);
  const ShardSpec spec = store_tests::whole("w", {2});
  EXPECT_ERROR(client.read(spec.id()), kNotFound, "ps 1", "no shard");
  client.call({CreateShard{spec, Tensor::ones({2})}});
  EXPECT_ERROR(client.call({AssignShard{spec.id(), AssignOp::kAdd, Tensor::ones({2})}}),
               kFailedPrecondition, "ps 1", "changes nothing");
  store_tests::expect_tensor(client.read(spec.id()), {2}, {1.0, 1.0});
}

}  // namespace tutti::first_values_tests
