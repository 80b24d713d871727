// "auto": what it chooses, and that it says so.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace auto_test {

using namespace cdo_tests;

TEST(ChooseAlgorithm, HasACanonicalAnswerForEverySizeAndWorldAndSaysWhy) {
  for (const Medium medium : {Medium::kLocal, Medium::kInProcess, Medium::kNetwork}) {
    for (const int size : {2, 3, 4, 7, 64, 1000}) {
      for (std::size_t bytes = 0; bytes < (std::size_t{1} << 40); bytes = bytes * 8 + 4) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          const AlgorithmQuery query{
              .size = size, .bytes = bytes, .dtype = dtype, .medium = medium};
          const AlgorithmChoice choice = choose_algorithm(query);
          const internal::Algorithm* const found = internal::find_algorithm(choice.name);
          ASSERT_NE(found, nullptr) << choice.name;
          EXPECT_EQ(found->determinism, Determinism::kCanonical) << choice.name;
          EXPECT_EQ(choice.name, internal::chosen_name(query));
          EXPECT_NE(choice.why.find(concat(bytes, " bytes among ", size, " ranks")),
                    std::string::npos)
              << choice.why;
          if (is_half(dtype)) {
            EXPECT_TRUE(found->combines_once) << choice.name;
            EXPECT_NE(choice.why.find("16-bit"), std::string::npos) << choice.why;
          }
        }
      }
    }
  }
}

TEST(ChooseAlgorithm, OtherOperationsThanAllReduceHaveNoTable) {
  const AlgorithmChoice choice =
      choose_algorithm({.collective = Collective::kBroadcast, .size = 4, .bytes = 100});
  EXPECT_EQ(choice.name, "canonical");
  EXPECT_NE(choice.why.find("broadcast of 100 bytes"), std::string::npos) << choice.why;
}

TEST(AutoOps, SaysOnceWhatItChose) {
  std::vector<std::string> lines;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kDebug) lines.emplace_back(line);
  });
  set_log_level(LogLevel::kDebug);
  std::vector<Tensor> values;
  for (int r = 0; r < 3; ++r) values.push_back(Tensor::scalar(r, DType::kFloat32, cpu(r)));
  const auto operation = make_op("auto", 3);
  for (int i = 0; i < 3; ++i) {
    const auto sums = operation->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values));
    EXPECT_EQ(sums[2].item(), 3.0);
  }
  set_log_level(LogLevel::kInfo);
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("auto: "), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("all_reduce of 4 bytes among 3 ranks (one thread)"), std::string::npos)
      << lines[0];
}

}  // namespace auto_test
}  // namespace tutti
