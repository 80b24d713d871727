// Layers of several inputs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/merging.h"

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti {
namespace {

using layer_tests::check_layer;
using layer_tests::error_of;
using layer_tests::expect_values;
using ::testing::HasSubstr;

template <class L>
std::vector<double> merged(L layer, const std::vector<Tensor>& inputs) {
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape().without_axis(0));
  layer.build_for(shapes);
  return layer(inputs).to_doubles();
}

TEST(MergingTest, ComputesElementByElement) {
  const Tensor a = Tensor::from<float>({1, 3}, {1, 2, 3});
  const Tensor b = Tensor::from<float>({1, 3}, {4, -2, 0.5});
  const Tensor c = Tensor::from<float>({1, 1}, {2});
  using V = std::vector<double>;
  EXPECT_EQ(merged(Add(), {a, b, c}), (V{7, 2, 5.5}));
  EXPECT_EQ(merged(Subtract(), {a, b}), (V{-3, 4, 2.5}));
  EXPECT_EQ(merged(Multiply(), {a, b, c}), (V{8, -8, 3}));
  EXPECT_EQ(merged(Average(), {a, b}), (V{2.5, 0, 1.75}));
  EXPECT_EQ(merged(Maximum(), {a, b, c}), (V{4, 2, 3}));
  EXPECT_EQ(merged(Minimum(), {a, b, c}), (V{1, -2, 0.5}));
  EXPECT_EQ(merged(Concatenate(), {a, b, c}), (V{1, 2, 3, 4, -2, 0.5, 2}));
}

TEST(MergingTest, KeepsPromisesAndGradients) {
  check_layer([] { return Add(); }, {{2, 3}, {2, 3}, {1, 3}});
  check_layer([] { return Subtract(); }, {{3}, {3}});
  check_layer([] { return Multiply(); }, {{2, 3}, {2, 1}});
  check_layer([] { return Average(); }, {{3}, {3}, {3}});
  check_layer([] { return Maximum(); }, {{3}, {3}});
  check_layer([] { return Minimum(); }, {{3}, {3}});
  check_layer([] { return Concatenate(); }, {{2, 3}, {2, 1}});
  check_layer([] { return Concatenate({.axis = 1}); }, {{2, 3}, {1, 3}});
  check_layer([] { return Dot(); }, {{3}, {3}});
  check_layer([] { return Dot({.axes = {2, 1}}); }, {{2, 3}, {3, 4}});
  check_layer([] { return Dot({.axes = {1, 1}, .normalize = true}); }, {{2, 3}, {2}});
}

TEST(DotTest, SumsProductsAlongItsAxes) {
  const Tensor a = layer_tests::counting({2, 2, 3});
  const Tensor b = layer_tests::counting({2, 4, 2}, 0.5);
  Dot dot({.axes = {1, 2}});
  const std::vector<Shape> shapes = {{2, 3}, {4, 2}};
  EXPECT_EQ(dot.build_for(shapes), (std::vector<Shape>{{3, 4}}));
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  std::vector<double> expected;
  for (std::size_t row = 0; row < 2; ++row)
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < 4; ++j)
        expected.push_back(x[row * 6 + i] * y[row * 8 + j * 2] +
                           x[row * 6 + 3 + i] * y[row * 8 + j * 2 + 1]);
  expect_values(dot({a, b}), expected);
  Dot cosine({.normalize = true});
  cosine.build_for(std::vector<Shape>{{2}, {2}});
  expect_values(cosine({Tensor::from<float>({1, 2}, {3, 4}), Tensor::from<float>({1, 2}, {4, 3})}),
                {24.0 / 25});
}

TEST(MergingTest, ErrorsNameLayerAndShapes) {
  auto error_for = [](auto layer, const std::vector<Shape>& shapes) {
    return error_of([&] { layer.build_for(shapes); });
  };
  EXPECT_THAT(error_for(Add(), {{3}}),
              HasSubstr("layer 'add' (Add): Add: expected at least 2 inputs, got 1"));
  EXPECT_THAT(error_for(Add(), {{3}, {2, 3}}), HasSubstr("equal rank, got [3], [2, 3]"));
  EXPECT_THAT(error_for(Multiply(), {{3}, {4}}), HasSubstr("layer 'multiply' (Multiply): "));
  EXPECT_THAT(error_for(Subtract(), {{3}, {3}, {3}}), HasSubstr("expected two inputs, got 3"));
  EXPECT_THAT(error_for(Concatenate(), {{2, 3}, {3, 3}}),
              HasSubstr("expected equal examples but for axis 2, got [2, 3], [3, 3]"));
  EXPECT_THAT(error_for(Concatenate({.axis = 0}), {{2}, {2}}), HasSubstr("the batch is 0"));
  EXPECT_THAT(error_for(Dot(), {{3}, {4}}), HasSubstr("got [3] and [4]"));
  Dense dense(2);
  dense.build_for({3});
  EXPECT_THAT(error_of([&] {
                dense({Tensor::ones({1, 3}), Tensor::ones({1, 3})});
              }),
              HasSubstr("layer 'dense' (Dense): expected one input, got 2"));
}

}  // namespace
}  // namespace tutti
