// Weights of the antialiased bilinear filter on one axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace custom_op {

// Weights of the triangle filter for every output sample, as torch computes them for uint8.
class AxisWeights {
 public:
  static constexpr int kBits = 14;

  // For a crop of `length` samples.
  void compute(int64_t length, int64_t size);
  int64_t size() const { return static_cast<int64_t>(first_.size()); }
  int64_t first(int64_t i) const { return first_[static_cast<size_t>(i)]; }
  int64_t count(int64_t i) const { return count_[static_cast<size_t>(i)]; }
  int64_t longest() const { return longest_; }
  // count(i) weights that sum to 1 << kBits, then zeros up to longest() rounded up to even.
  const int16_t* weights(int64_t i) const { return weights_.data() + i * stride_; }

 private:
  void quantise(double total, int64_t count, int16_t* weights) const;

  std::vector<int64_t> first_, count_;
  std::vector<int16_t> weights_;
  std::vector<double> exact_;
  int64_t longest_ = 0, stride_ = 0;
};

}  // namespace custom_op
