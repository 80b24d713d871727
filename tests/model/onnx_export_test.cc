// Models as ONNX files: their outline, and what is refused. onnx_test.py runs them.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "core/file.h"
#include "tests/model/model_helpers.h"
#include "tests/support/protobuf_fields.h"

namespace tutti {
namespace {

using model_tests::error_of;
using protobuf_fields::fields_of;
using ::testing::HasSubstr;

std::string onnx_path() {  // tests run beside each other
  return ::testing::TempDir() + "tutti_" +
         ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".onnx";
}

TEST(OnnxExport, WritesAModelOfOpset17) {
  Sequential model(Input{{3}}, Dense(2, {.name = "scores"}));
  export_onnx(model, onnx_path());
  const std::string bytes = read_file(onnx_path());
  const auto fields = fields_of(bytes);
  EXPECT_EQ(fields.at(1), std::string_view("\x08"));
  EXPECT_EQ(fields.at(2), "tutti");
  EXPECT_EQ(fields_of(fields.at(8)).at(2), std::string_view("\x11"));  // 17
  const auto graph = fields_of(fields.at(7));
  EXPECT_EQ(graph.at(2), "sequential");
  EXPECT_EQ(fields_of(graph.at(11)).at(1), "input");
  EXPECT_EQ(fields_of(graph.at(12)).at(1), "sequential");
  EXPECT_EQ(fields_of(graph.at(1)).at(4), "Identity");  // the last node
  const auto bias = fields_of(graph.at(5));             // the last constant
  EXPECT_EQ(bias.at(8), "scores/bias");
  EXPECT_EQ(bias.at(9), std::string_view("\0\0\0\0\0\0\0\0", 8));
}

TEST(OnnxExport, NamesWhatHasNoForm) {
  const auto refused = [](Sequential model) {
    return error_of([&] { export_onnx(model, onnx_path()); });
  };
  EXPECT_THAT(refused(Sequential(Input{{4, 3}}, LSTM(2))),
              HasSubstr("export_onnx: layer 'lstm' (LSTM): cannot be exported; expected one "
                        "of Dense, Conv2D"));
  EXPECT_THAT(refused(Sequential(Input{{3}}, Dense(2, "mish"))),
              HasSubstr("layer 'dense' (Dense): the activation 'mish' cannot be"));
  EXPECT_THAT(refused(Sequential(Input{{3}}, Relu({.threshold = 1.0}))), HasSubstr("a threshold"));
  Dense wide(2);
  wide.set_dtype_policy("float64");
  EXPECT_THAT(refused(Sequential(Input{{3}}, std::move(wide))),
              HasSubstr("computes in float64; expected float32"));
}

}  // namespace
}  // namespace tutti
